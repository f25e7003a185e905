"""A run tells the store what people want to read about its datasets, and only news."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.harness import Pipeline

from tautochrone.model.definitions import ColumnRef, DatasetDetails, LakeColumn
from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.redaction import without_literals

pytestmark = pytest.mark.spark

VIEWS = """
CREATE TEMPORARY VIEW paid AS SELECT customer, amount * 2 AS twice FROM orders WHERE state = 'paid';

CREATE MATERIALIZED VIEW totals AS
-- what a customer paid
SELECT customer, sum(twice) AS total FROM paid GROUP BY customer;
"""
PYTHON = """
from pyspark import pipelines as dp

@dp.table
def orders():
    return (
        spark.readStream.schema("customer STRING, amount INT, state STRING")
        .option("password", "hunter2")
        .json("{folder}")
    )
"""


@pytest.fixture
def pipeline(pipeline: Pipeline, tmp_path: Path) -> Pipeline:
    pipeline.write("definitions/views.sql", VIEWS)
    pipeline.write("orders/1.json", '{"customer": "a", "amount": 1, "state": "paid"}\n')
    pipeline.write("definitions/orders.py", PYTHON.format(folder=tmp_path / "orders"))
    return pipeline


def told(pipeline: Pipeline, table: str) -> DatasetDetails:
    details = pipeline.job.store.datasets.details(TableName("lake", ("default",), table))
    assert details is not None
    return details


def test_definitions_columns_and_lineage(pipeline: Pipeline) -> None:
    assert pipeline.run().state == "COMPLETED"
    orders = TableName("lake", ("default",), "orders")
    totals = told(pipeline, "totals")
    assert totals.location == "definitions/views.sql:4"
    assert totals.text == (
        "CREATE MATERIALIZED VIEW totals AS\n-- what a customer paid\n"
        "SELECT customer, sum(twice) AS total FROM paid GROUP BY customer"
    )
    assert totals.columns == (LakeColumn("customer", "string"), LakeColumn("total", "bigint"))
    assert totals.lineage.values == {
        "customer": frozenset({ColumnRef(orders, "customer")}),
        "total": frozenset({ColumnRef(orders, "amount")}),
    }
    assert totals.lineage.rows == {ColumnRef(orders, "customer"), ColumnRef(orders, "state")}
    source = told(pipeline, "orders")
    assert "def orders():" in source.text
    assert "hunter2" not in source.text
    assert '.option("password", "***")' in source.text
    assert set(source.lineage.values.values()) == {frozenset()}

    # Only news are written.
    assert pipeline.effects.steps[Step.META_DESCRIBE] == 1
    pipeline.run()
    assert pipeline.effects.steps[Step.META_DESCRIBE] == 0
    pipeline.write("definitions/views.sql", VIEWS.replace("sum(twice)", "max(twice)"))
    pipeline.run()
    assert pipeline.effects.steps[Step.META_DESCRIBE] == 1
    after = told(pipeline, "totals")
    assert "max(twice)" in after.text
    assert after.definition != totals.definition


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("option('kafka.ssl.key.password' , \"a'b\")", "option('kafka.ssl.key.password' , \"***\")"),
        ("OPTIONS (secretKey = 'x', path = 'y')", "OPTIONS (secretKey = '***', path = 'y')"),
        ("API_KEY: str = 'x'", "API_KEY: str = '***'"),
        ('{"access-key": "x", "a": "b"}', '{"access-key": "***", "a": "b"}'),
        ("WHERE token_count > 3 AND name = 'x'", "WHERE token_count > 3 AND name = 'x'"),
        ("token => ''", "token => '***'"),
    ],
)
def test_quoted_secrets_are_masked(text: str, shown: str) -> None:
    assert without_literals(text) == shown
