"""Bronze, silver, gold: the structure of most public projects."""

from __future__ import annotations

import pytest

from .conftest import Survey

pytestmark = pytest.mark.spark

BRONZE = """
import os
from pyspark import pipelines as dp
from pyspark.sql import functions as F

BASE = os.environ.get("SURVEY_BASE", "@IN@")
print("loading bronze from", BASE)

orders_schema = "order_id INT, customer_id INT, product STRING, quantity INT, price DOUBLE, ts TIMESTAMP"
orders_schema += ", _corrupt_record STRING"


@dp.table(name="bronze_orders", comment="as delivered", table_properties={"layer": "bronze"}, spark_conf={})
def bronze_orders():
    return (
        spark.readStream.format("json")
        .schema(orders_schema)
        .option("columnNameOfCorruptRecord", "_corrupt_record")
        .option("maxFilesPerTrigger", "1")
        .load(f"{BASE}/orders")
        .withColumn("_source_file", F.col("_metadata.file_path"))
        .withColumn("_ingested_at", F.current_timestamp())
    )


@dp.table(name="bronze_customers")
def bronze_customers():
    schema = "customer_id INT, name STRING, city STRING, updated DATE"
    return spark.readStream.format("csv").option("header", "true").schema(schema).load(f"{BASE}/customers")


@dp.table(name="silver_orders", partition_cols=["day"])
def silver_orders():
    return (
        spark.readStream.table("bronze_orders")
        .where("_corrupt_record IS NULL AND quantity > 0")
        .withColumn("total", F.round(F.col("quantity") * F.col("price"), 2))
        .withColumn("day", F.to_date("ts"))
        .select("order_id", "customer_id", "product", "quantity", "total", "day")
    )
"""

SILVER = """
-- the newest record of each customer
CREATE MATERIALIZED VIEW silver_customers COMMENT 'newest; per customer'
AS WITH ranked AS (
  SELECT *, ROW_NUMBER() OVER (PARTITION BY customer_id ORDER BY updated DESC, name) AS rn
  FROM bronze_customers
)
SELECT customer_id, initcap(trim(name)) AS name, upper(city) AS city FROM ranked WHERE rn = 1;

CREATE STREAMING TABLE silver_rejected AS
SELECT _corrupt_record AS raw, _source_file FROM STREAM(bronze_orders) WHERE _corrupt_record IS NOT NULL;
"""

GOLD = """
SET spark.sql.shuffle.partitions = 3;

CREATE MATERIALIZED VIEW gold_city TBLPROPERTIES ('layer' = 'gold') AS
SELECT c.city, COUNT(DISTINCT o.customer_id) AS customers, SUM(o.total) AS revenue
FROM silver_orders o JOIN silver_customers c USING (customer_id)
GROUP BY c.city ORDER BY revenue DESC;

CREATE MATERIALIZED VIEW gold_bands AS
SELECT CASE WHEN total < 10 THEN 'low' WHEN total < 100 THEN 'mid' ELSE 'high' END AS band,
       COUNT(*) AS n, ROUND(AVG(total), 2) AS mean, MAX(day) AS newest
FROM silver_orders GROUP BY ALL;

CREATE MATERIALIZED VIEW gold_idle AS
SELECT customer_id FROM silver_customers EXCEPT SELECT customer_id FROM silver_orders;

CREATE MATERIALIZED VIEW gold_top AS
SELECT day, product, revenue FROM (
  SELECT day, product, SUM(total) AS revenue,
         RANK() OVER (PARTITION BY day ORDER BY SUM(total) DESC) AS place
  FROM silver_orders GROUP BY day, product)
WHERE place = 1;

CREATE MATERIALIZED VIEW gold_top3 AS
SELECT order_id, total FROM silver_orders ORDER BY total DESC, order_id LIMIT 3
"""

ORDERS = """\
{"order_id": 1, "customer_id": 1, "product": "pen", "quantity": 2, "price": 1.5, "ts": "2026-01-01T10:00:00Z"}
{"order_id": 2, "customer_id": 2, "product": "ink", "quantity": 1, "price": 150, "ts":"2026-01-01T11:00:00Z"}
{"order_id": broken
{"order_id": 3, "customer_id": 1, "product": "ink", "quantity": 0, "price": 150, "ts":"2026-01-01T11:00:00Z"}
"""


@pytest.mark.quick
def test_medallion(survey: Survey) -> None:
    survey.define("bronze.py", BRONZE)
    survey.define("silver.sql", SILVER)
    survey.define("gold.sql", GOLD)
    survey.data("orders/a.json", ORDERS)
    survey.data(
        "customers/a.csv",
        "customer_id,name,city,updated\n"
        "1, ann ,Oslo,2026-01-01\n2,bob,Rome,2026-01-01\n3,cy,Oslo,2026-01-02\n",
    )
    survey.build()
    assert survey.rows("SELECT * FROM gold_city") == [("OSLO", 1, 3.0), ("ROME", 1, 150.0)]
    assert survey.rows("SELECT * FROM gold_idle") == [(3,)]
    assert survey.rows("SELECT raw FROM silver_rejected") == [('{"order_id": broken',)]

    order = '{"order_id": %d, "customer_id": %d, "product": "pad", "quantity": 1, "price": %f, '
    order += '"ts": "2026-01-02T00:00:00Z"}\n'
    survey.data("orders/b.json", order % (4, 3, 20) + order % (5, 1, 30))
    survey.data("orders/c.json", order % (6, 2, 5))
    survey.data(
        "customers/b.csv", "customer_id,name,city,updated\n2,bob b,Oslo,2026-02-01\n4,dee,Rome,2026-02-01\n"
    )
    happened = survey.run()
    assert len([event for event in happened.of("batch") if event["flow"] == "bronze_orders"]) == 2
    assert survey.rows("SELECT * FROM gold_city") == [("OSLO", 3, 208.0)]
    assert survey.rows("SELECT * FROM gold_idle") == [(4,)]
    assert survey.rows("SELECT band, n, mean FROM gold_bands") == [
        ("high", 1, 150.0),
        ("low", 2, 4.0),
        ("mid", 2, 25.0),
    ]
    assert survey.rows("SELECT product, revenue FROM gold_top") == [("ink", 150.0), ("pad", 55.0)]
    assert survey.rows("SELECT order_id FROM gold_top3") == [(2,), (4,), (5,)]
    assert survey.rows("SELECT name, city FROM silver_customers WHERE customer_id = 2") == [("Bob B", "OSLO")]


def test_verify_takes_tied_rows_in_the_order_of_the_view(survey: Survey) -> None:
    followed = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"
    survey.define(
        "a.sql",
        f"""
        CREATE MATERIALIZED VIEW a AS SELECT x % 2 AS g, 9 - x AS x FROM (SELECT id AS x FROM range(9));
        CREATE MATERIALIZED VIEW ranked {followed} AS
        SELECT x, row_number() OVER (ORDER BY g) AS place FROM a;
        CREATE MATERIALIZED VIEW best {followed} AS SELECT x FROM a ORDER BY g DESC LIMIT 2
        """,
    )
    survey.run()
    places = [(1, 1), (2, 6), (3, 2), (4, 7), (5, 3), (6, 8), (7, 4), (8, 9), (9, 5)]
    assert survey.rows("SELECT x, place FROM ranked") == places
    assert survey.rows("SELECT x FROM best ORDER BY x") == [(2,), (4,)]
    assert set(survey.verdicts.values()) == {True}
