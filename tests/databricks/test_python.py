"""Python definitions as Databricks' projects write them."""

from __future__ import annotations

import pytest

from .conftest import DialectProject

pytestmark = pytest.mark.spark

NOTEBOOK = """
# Databricks notebook source
import dlt
from pyspark.sql.functions import col

# COMMAND ----------

@dlt.table(comment="raw orders", table_properties={"quality": "bronze"}, path="/mnt/orders")
def orders():
    return spark.readStream.schema("id INT, amount DOUBLE").json("@IN@/orders")

@dlt.view
@dlt.expect_or_drop("has an id", "id IS NOT NULL")
def known_orders():
    return dlt.read("LIVE.orders")

# COMMAND ----------

@dlt.table(name="valid_orders")
@dlt.expect_or_drop("positive amount", "amount > 0")
def valid():
    return dlt.read("known_orders").select("id", col("amount"))

@dlt.table
@dlt.expect_all_or_drop({"small": "amount < 100", "known": "id IS NOT NULL"})
def small_orders():
    return dlt.read_stream("orders")
"""


def test_dlt_table_is_what_its_query_is(project: DialectProject) -> None:
    project.define("notebook.py", NOTEBOOK)
    project.json("orders/1.json", {"id": 1, "amount": 5.0}, {"id": 2, "amount": -1.0}, {"amount": 7.0})
    events = project.run()
    kinds = {
        entry["dataset"].rsplit(".", 1)[-1]: entry["kind"] for entry in events.of("graph")[0]["datasets"]
    }
    assert kinds == {
        "orders": "streaming table",
        "valid_orders": "materialized view",
        "small_orders": "streaming table",
    }
    assert project.rows("SELECT amount FROM orders") == [(-1.0,), (5.0,), (7.0,)]
    assert project.rows("SELECT * FROM valid_orders") == [(1, 5.0)]
    assert project.rows("SELECT * FROM small_orders") == [(1, 5.0), (2, -1.0)]
    assert project.verdicts == {"valid_orders": True}
    assert any("path of table" in str(event["reason"]) for event in events.of("definition_warning"))
