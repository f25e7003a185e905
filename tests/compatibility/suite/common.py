"""Texts that several constructs share."""

from __future__ import annotations

HEAD = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.active()
"""
SALES = (
    {"sales/1.json": '{"id": 1, "kind": "a", "amount": 5}\n{"id": 2, "kind": "b", "amount": 7}\n'},
    {"sales/2.json": '{"id": 3, "kind": "a", "amount": 11}\n{"id": 4, "kind": null, "amount": 1}\n'},
)
"""What arrives before the first and before the second run."""

READ_SALES = """\
def read_sales():
    return spark.readStream.schema("id INT, kind STRING, amount INT").json("@PROJECT@/in/sales")
"""
SALES_TABLE = f"""\
{HEAD}
@dp.table
def sales():
    return spark.readStream.schema("id INT, kind STRING, amount INT").json("@PROJECT@/in/sales")
"""
NUMBERS = (
    "CREATE MATERIALIZED VIEW numbers AS SELECT id, id % 3 AS k, CAST(id * 1.5 AS DOUBLE) AS x FROM range(8);"
)
