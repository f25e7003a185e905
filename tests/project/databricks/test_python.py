"""Python definitions as Databricks' projects write them."""

from __future__ import annotations

import pytest

from tautochrone.errors import DefinitionError

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
@dlt.expect_or_drop(constraint="amount > 0", description="positive amount")
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


@pytest.mark.parametrize(
    ("line", "error_class"),
    [
        ("dbutils.widgets.get('x')", "DATABRICKS_ONLY"),
        ("display(1)", "DATABRICKS_ONLY"),
        ("from databricks.sdk.runtime import dbutils", "DATABRICKS_ONLY"),
        ("dlt.event_log()", "DATABRICKS_ONLY"),
        ("from dlt import event_log", "DATABRICKS_ONLY"),
        ("dlt.foreach_batch_sink(name='a')", "DATABRICKS_ONLY"),
        ("dlt.table(row_filter='f')(lambda: None)", "DATABRICKS_ONLY"),
        ("dlt.append_flow(target='a', once=True)", "DATABRICKS_ONLY"),
        ("dlt.create_auto_cdc_from_snapshot_flow('a', 7, ['k'])", "AUTO_CDC_SNAPSHOT_SOURCE"),
        ("dlt.create_auto_cdc_from_snapshot_flow('a', 'b', [])", "AUTO_CDC_WITHOUT_KEYS"),
        ("dlt.create_auto_cdc_flow('a', 'b', [], 's')", "AUTO_CDC_WITHOUT_KEYS"),
        ("dlt.create_auto_cdc_from_snapshot_flow('a', 'b', ['k'], once=True)", "DATABRICKS_ONLY"),
        ("dlt.create_auto_cdc_flow('a', 'b', ['k'], 's', where='x')", "AUTO_CDC_ARGUMENT_NOT_SUPPORTED"),
        ("dlt.create_auto_cdc_flow('a', 'b', ['k'], 's', stored_as_scd_type='3')", "AUTO_CDC_SCD_TYPE"),
        (
            "dlt.create_auto_cdc_flow('a', 'b', ['k'], 's', stored_as_scd_type='bitemporal')",
            "AUTO_CDC_SCD_TYPE",
        ),
        (
            "dlt.create_auto_cdc_flow('a', 'b', ['k'], 's', system_sequence_by='t')",
            "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
        ),
        (
            "dlt.create_auto_cdc_flow('a', 'b', ['k'], 's', column_list=['a'], except_column_list=['b'])",
            "AUTO_CDC_TWO_COLUMN_LISTS",
        ),
        ("dlt.expect('a', 1)(lambda: None)", "INVALID_EXPECTATION"),
        ("dlt.expect('a')(lambda: None)", "INVALID_EXPECTATION"),
        ("dlt.expect('a', 'b > 1')(None)", "INVALID_EXPECTATION"),
        (
            "dlt.create_streaming_table('a', expect_all={'x': 'a'}, expect_all_or_drop={'x': 'b'})",
            "DUPLICATE_EXPECTATION",
        ),
        ("dlt.table(cluster='x')(lambda: None)", "USER_CODE_FAILED"),
    ],
)
def test_refusal_names_the_line(project: DialectProject, line: str, error_class: str) -> None:
    project.define("a.py", f"import dlt\n\n{line}\n")
    with pytest.raises(DefinitionError) as refused:
        project.pipeline.run()
    assert (refused.value.error_class, refused.value.location) == (error_class, "definitions/a.py:3")
    assert refused.value.hint


def test_expectation_of_a_view_that_fails_is_refused(project: DialectProject) -> None:
    project.define(
        "a.sql",
        """
        CREATE TEMPORARY LIVE VIEW a (CONSTRAINT c EXPECT (id > 1) ON VIOLATION FAIL UPDATE)
        AS SELECT id FROM range(3);
        CREATE LIVE TABLE b AS SELECT * FROM LIVE.a
        """,
    )
    with pytest.raises(DefinitionError, match="EXPECTATION_OF_VIEW"):
        project.pipeline.run()


def test_condition_over_a_missing_column_names_the_expectation(project: DialectProject) -> None:
    project.define("a.sql", "CREATE LIVE TABLE a (CONSTRAINT c EXPECT (idd > 1)) AS SELECT id FROM range(3)")
    with pytest.raises(DefinitionError, match="The expectation 'c', idd > 1:") as refused:
        project.pipeline.run()
    assert refused.value.error_class.startswith("UNRESOLVED_COLUMN")


def test_cells_of_other_languages_are_told(project: DialectProject) -> None:
    project.define(
        "a.py",
        """
        # Databricks notebook source
        # MAGIC %run ./helpers
        import dlt

        @dlt.table
        def a():
            return spark.range(3)
        """,
    )
    events = project.run()
    assert [event["location"] for event in events.of("definition_warning")] == ["definitions/a.py:3"]
    assert "%run ./helpers" in str(events.of("definition_warning")[0]["reason"])


def test_modules_and_main_program_of_databricks(project: DialectProject) -> None:
    project.define(
        "a.py",
        """
        from pyspark import pipelines as dp

        @dp.table(spark_conf={"spark.databricks.delta.optimizeWrite.enabled": "true"})
        @dp.expect("small", "id < 2")
        def a():
            return spark.range(3)
        """,
    )
    project.define(
        "b.py",
        """
        import databricks.pipelines as dp

        def define(name):
            @dp.table(name=name)
            def copy():
                return dp.read("a")

        if __name__ == "__main__":
            define("b")
        """,
    )
    project.define(
        "c.sql",
        "SET spark.databricks.x = 1;\nSET spark.source;\n"
        "CREATE MATERIALIZED VIEW c AS SELECT count(*) n FROM b",
    )
    events = project.run()
    assert project.verdicts == {"a": True, "b": True, "c": True}
    assert project.rows("SELECT n FROM c") == [(3,)]
    ignored = [
        (event["location"], event["reason_params"]["clause"]) for event in events.of("definition_warning")
    ]
    assert ignored == [
        ("definitions/a.py:4", "spark.databricks.delta.optimizeWrite.enabled"),
        ("definitions/c.sql:1", "spark.databricks.x"),
        ("definitions/c.sql:2", "SET without a value"),
    ]


@pytest.mark.parametrize(
    ("file", "text", "hint"),
    [
        (
            "a.py",
            "from pyspark import pipelines\nif __name__ == '__main__':\n    pass",
            "a.py defines datasets below",
        ),
        ("a.py", "spark.conf.get('bucket')", "below `configuration`"),
        ("a.sql", "CREATE TABLE a AS SELECT 1", "CREATE MATERIALIZED VIEW"),
        ("a.sql", "CREATE MATERIALIZED VIEW a AS SELECT * FROM samples.tpch.part", "no catalog samples"),
        ("a.sql", "CREATE MATERIALIZED VIEW a AS SELECT * FROM csv.`/nowhere/x`", "must be there"),
    ],
)
def test_hint_fits_the_refusal(project: DialectProject, file: str, text: str, hint: str) -> None:
    project.define(file, text)
    with pytest.raises(DefinitionError) as refused:
        project.pipeline.run()
    assert hint in (refused.value.hint or "")
