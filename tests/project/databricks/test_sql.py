"""SQL definitions as Databricks' projects write them."""

from __future__ import annotations

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Expectation, ViolationAction
from tautochrone.project.databricks.files import FileSource
from tautochrone.project.databricks.sql import translate

from .conftest import DialectProject


@pytest.mark.parametrize(
    ("text", "spark"),
    [
        ("CREATE OR REFRESH STREAMING TABLE a AS SELECT 1", "CREATE  STREAMING TABLE a AS SELECT 1"),
        ("CREATE STREAMING LIVE TABLE a AS SELECT 1", "CREATE STREAMING TABLE a AS SELECT 1"),
        ("CREATE OR REPLACE STREAMING TABLE a AS SELECT 1", "CREATE  STREAMING TABLE a AS SELECT 1"),
        ("CREATE OR REPLACE LIVE TABLE a AS SELECT 1", "CREATE  MATERIALIZED VIEW a AS SELECT 1"),
        ("CREATE OR REPLACE MATERIALIZED VIEW a AS SELECT 1", "CREATE  MATERIALIZED VIEW a AS SELECT 1"),
        ("CREATE OR REPLACE TEMPORARY VIEW a AS SELECT 1", "CREATE OR REPLACE TEMPORARY VIEW a AS SELECT 1"),
        ("CREATE OR REPLACE TABLE a AS SELECT 1", "CREATE OR REPLACE TABLE a AS SELECT 1"),
        ("CREATE OR REFRESH LIVE TABLE a AS SELECT 1", "CREATE  MATERIALIZED VIEW a AS SELECT 1"),
        ("CREATE LIVE VIEW a AS SELECT 1", "CREATE TEMPORARY VIEW a AS SELECT 1"),
        ("CREATE TEMPORARY STREAMING LIVE VIEW a AS SELECT 1", "CREATE TEMPORARY VIEW a AS SELECT 1"),
        ("CREATE OR REFRESH MATERIALIZED VIEW a\nAS SELECT 1", "CREATE  MATERIALIZED VIEW a\nAS SELECT 1"),
        ("CREATE MATERIALIZED VIEW a AS SELECT 1", "CREATE MATERIALIZED VIEW a AS SELECT 1"),
        ("CREATE TEMPORARY VIEW a AS SELECT 1", "CREATE TEMPORARY VIEW a AS SELECT 1"),
        ("SET a = b", "SET a = b"),
    ],
)
def test_header_becomes_that_of_spark(text: str, spark: str) -> None:
    assert _dense(translate(text, "x.sql:1").text) == _dense(spark)


def _dense(text: str) -> str:
    return "".join(text.split())


def test_constraints_are_taken_out_of_the_columns() -> None:
    translated = translate(
        """CREATE OR REFRESH STREAMING TABLE ${schema}.a (
          id INT NOT NULL,
          tags MAP<STRING, STRING>,
          CONSTRAINT `an id` EXPECT (id IS NOT NULL AND id > 0) ON VIOLATION DROP ROW,
          CONSTRAINT warned EXPECT (tags['x'] = 'a,b'),
          amount DECIMAL(10, 2) COMMENT 'in euros',
          CONSTRAINT failing EXPECT (amount >= 0) ON VIOLATION FAIL UPDATE,
          CONSTRAINT key PRIMARY KEY (id)
        ) AS SELECT * FROM STREAM b""",
        "x.sql:1",
    )
    assert translated.expectations == (
        Expectation("an id", "id IS NOT NULL AND id > 0", ViolationAction.DROP),
        Expectation("warned", "tags['x'] = 'a,b'", ViolationAction.WARN),
        Expectation("failing", "amount >= 0", ViolationAction.FAIL),
    )
    assert _dense(translated.text) == _dense(
        "CREATE STREAMING TABLE ${schema}.a (id INT NOT NULL, tags MAP<STRING, STRING>, "
        "amount DECIMAL(10, 2) COMMENT 'in euros') AS SELECT * FROM STREAM b"
    )
    assert translated.text.count("\n") == 8
    assert translated.ignored == ("CONSTRAINT key",)


def test_column_named_constraint_stays() -> None:
    translated = translate(
        "CREATE STREAMING TABLE t (constraint STRING, id INT, CONSTRAINT c EXPECT (id > 0))", "x:1"
    )
    assert _dense(translated.text) == _dense("CREATE STREAMING TABLE t (constraint STRING, id INT)")
    assert (len(translated.expectations), translated.ignored) == (1, ())


def test_condition_may_compare_a_column_named_as_a_type() -> None:
    translated = translate(
        "CREATE STREAMING TABLE t (CONSTRAINT c EXPECT (map < 3), map INT, "
        "s STRUCT<a: DECIMAL(3,2), b: INT>)",
        "x:1",
    )
    assert [expectation.condition for expectation in translated.expectations] == ["map < 3"]
    assert _dense(translated.text) == _dense(
        "CREATE STREAMING TABLE t (map INT, s STRUCT<a: DECIMAL(3,2), b: INT>)"
    )


def test_list_of_constraints_alone_goes_away() -> None:
    translated = translate(
        "CREATE LIVE TABLE a (CONSTRAINT c EXPECT (x > 1)) COMMENT 'a' AS SELECT 2 AS x", "x:1"
    )
    assert _dense(translated.text) == _dense("CREATE MATERIALIZED VIEW a COMMENT 'a' AS SELECT 2 AS x")


def test_clauses_of_storage_are_ignored_and_the_policy_is_a_property() -> None:
    translated = translate(
        "CREATE MATERIALIZED VIEW a (x COMMENT 'the x', y) CLUSTER BY AUTO LOCATION '/a' "
        "SCHEDULE REFRESH EVERY 1 HOUR REFRESH POLICY INCREMENTAL STRICT AS SELECT 1, 2",
        "x:1",
    )
    assert _dense(translated.text) == _dense("CREATE MATERIALIZED VIEW a AS SELECT 1, 2")
    assert translated.columns == ("x", "y")
    assert translated.properties == {"tautochrone.refresh-policy": "incremental_strict"}
    assert translated.ignored[1:] == ("CLUSTER BY AUTO", "LOCATION '/a'", "SCHEDULE REFRESH EVERY 1 HOUR")


def test_files_are_views() -> None:
    translated = translate(
        "CREATE STREAMING TABLE a AS SELECT * FROM STREAM read_files('/in', format => 'csv', header => true)",
        "x:1",
    )
    ((name, source),) = translated.files.items()
    assert translated.text == f"CREATE STREAMING TABLE a AS SELECT * FROM {name}"
    assert source == FileSource("/in", {"format": "csv", "header": "true"}, None, True, True)
    old = translate(
        'CREATE STREAMING LIVE TABLE a AS SELECT * FROM cloud_files("/in", "json", map("multiLine", "true"))',
        "x:1",
    )
    (source,) = old.files.values()
    assert source == FileSource("/in", {"format": "json", "multiLine": "true"})


@pytest.mark.parametrize(
    ("text", "error_class"),
    [
        ("CREATE STREAMING TABLE a (x INT MASK f) AS SELECT 1", "DATABRICKS_ONLY"),
        ("CREATE STREAMING TABLE a (x INT GENERATED ALWAYS AS (1)) AS SELECT 1", "DATABRICKS_ONLY"),
        ("CREATE MATERIALIZED VIEW a WITH ROW FILTER f ON (x) AS SELECT 1", "DATABRICKS_ONLY"),
        ("CREATE FLOW f AS INSERT INTO ONCE a BY NAME SELECT 1", "DATABRICKS_ONLY"),
        ("CREATE FLOW f AS INSERT ONCE INTO a BY NAME SELECT 1", "DATABRICKS_ONLY"),
        (
            "CREATE LIVE TABLE a (CONSTRAINT c EXPECT (x) ON VIOLATION IGNORE) AS SELECT 1",
            "INVALID_EXPECTATION",
        ),
    ],
)
def test_what_databricks_alone_has_is_refused(text: str, error_class: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        translate(text, "a.sql:3")
    assert (refused.value.error_class, refused.value.location) == (error_class, "a.sql:3")
    assert refused.value.hint


PIPELINE = """\
-- Databricks notebook source
CREATE OR REFRESH STREAMING LIVE TABLE orders (
  CONSTRAINT known EXPECT (id IS NOT NULL) ON VIOLATION DROP ROW
)
TBLPROPERTIES ("quality" = "bronze")
AS SELECT id, amount FROM STREAM read_files(
  "@IN@/orders", format => "json", schema => "id INT, amount DOUBLE"
)

-- COMMAND ----------

CREATE OR REFRESH LIVE TABLE totals (
  CONSTRAINT positive EXPECT (total > 0) ON VIOLATION DROP ROW
) AS SELECT id, sum(amount) AS total FROM LIVE.orders GROUP BY id;
CREATE TEMPORARY LIVE VIEW big AS SELECT * FROM LIVE.totals WHERE total > 10;
CREATE OR REFRESH STREAMING TABLE copies (CONSTRAINT c EXPECT (amount > 0) ON VIOLATION DROP ROW);
CREATE FLOW copy AS INSERT INTO LIVE.copies BY NAME SELECT * FROM STREAM(LIVE.orders);
CREATE OR REFRESH MATERIALIZED VIEW big_ids (id COMMENT 'of an order') AS SELECT big.id FROM LIVE.big
"""


@pytest.mark.quick
@pytest.mark.spark
def test_notebook_in_sql(project: DialectProject) -> None:
    project.define("notebook.sql", PIPELINE)
    project.json("orders/1.json", {"id": 1, "amount": 5.0}, {"id": 2, "amount": -1.0}, {"amount": 7.0})
    project.build()
    assert project.rows("SELECT * FROM orders") == [(1, 5.0), (2, -1.0)]
    assert project.rows("SELECT * FROM totals") == [(1, 5.0)]
    assert project.rows("SELECT * FROM copies") == [(1, 5.0)]
    assert project.rows("SELECT * FROM big_ids") == []
    project.json("orders/2.json", {"id": 1, "amount": 50.0}, {"id": 2, "amount": 2.0})
    project.run()
    assert project.rows("SELECT * FROM totals") == [(1, 55.0), (2, 1.0)]
    assert project.rows("SELECT * FROM big_ids") == [(1,)]
