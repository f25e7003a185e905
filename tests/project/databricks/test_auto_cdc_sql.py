"""How AUTO CDC statements are read. No Spark."""

from __future__ import annotations

import re

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.project.databricks.auto_cdc import AutoCdcClause, auto_cdc_clause

FULL = """CREATE FLOW `my flow` AS AUTO CDC INTO db.users -- the target
FROM STREAM(events)
KEYS (id, `region id`)
IGNORE NULL UPDATES
APPLY AS DELETE WHEN operation IN ('DELETE', 'KEYS (x)') AND (sequence > 1)
APPLY AS TRUNCATE WHEN operation = 'TRUNCATE'
SEQUENCE BY STRUCT(time, sequence)
COLUMNS * EXCEPT (operation, time)
STORED AS SCD TYPE 2
TRACK HISTORY ON name, city"""


def test_all_clauses() -> None:
    assert auto_cdc_clause(FULL, "a.sql:1") == AutoCdcClause(
        flow=("my flow",),
        target=("db", "users"),
        query="\nSELECT * FROM STREAM(events)",
        auto_cdc=AutoCdc(
            keys=("id", "region id"),
            sequence="STRUCT(time, sequence)",
            delete="operation IN ('DELETE', 'KEYS (x)') AND (sequence > 1)",
            truncate="operation = 'TRUNCATE'",
            columns=ColumnChoice(("operation", "time"), is_except=True),
            is_ignoring_nulls=True,
            scd_type=2,
            tracked=ColumnChoice(("name", "city")),
        ),
        table_text="",
    )


def test_names_with_parameters() -> None:
    text = """CREATE FLOW ${layer}_f AS AUTO CDC INTO ${catalog}.${layer}.a FROM STREAM(${layer}.b)
    KEYS (${key}) APPLY AS DELETE WHEN op = ${op} SEQUENCE BY n
    COLUMNS * EXCEPT (${key}, n) STORED AS SCD TYPE ${type}"""
    values = {"catalog": "lake", "layer": "silver", "key": "id, `region id`", "type": "2"}

    def substitute(text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda parameter: values.get(parameter[1], parameter[0]), text)

    clause = auto_cdc_clause(text, "a.sql:1", substitute)
    assert clause is not None
    assert (clause.flow, clause.target) == (("silver_f",), ("lake", "silver", "a"))
    assert clause.query == "SELECT * FROM STREAM(${layer}.b)", "Spark's parser replaces them"
    assert clause.auto_cdc == AutoCdc(
        keys=("id", "region id"),
        sequence="n",
        delete="op = ${op}",
        columns=ColumnChoice(("id", "region id", "n"), is_except=True),
        scd_type=2,
    )


def test_older_statement_names_the_flow_after_its_target() -> None:
    clause = auto_cdc_clause(
        "APPLY CHANGES INTO LIVE.a FROM STREAM(LIVE.b) KEYS (id) SEQUENCE BY x", "a.sql:1"
    )
    assert clause is not None
    assert (clause.flow, clause.target) == ((), ("LIVE", "a"))
    assert clause.auto_cdc == AutoCdc(keys=("id",), sequence="x")


def test_flow_of_the_table_that_the_statement_creates() -> None:
    text = (
        "CREATE STREAMING TABLE a (id INT) FLOW AUTO CDC FROM STREAM b KEYS (id) SEQUENCE BY x COLUMNS (id)"
    )
    clause = auto_cdc_clause(text, "a.sql:1")
    assert clause is not None
    assert clause.table_text == "CREATE STREAMING TABLE a (id INT)"
    assert clause.auto_cdc.columns == ColumnChoice(("id",))


@pytest.mark.parametrize(
    ("columns", "choice"),
    [
        ("ON (a, b)", ColumnChoice(("a", "b"))),
        ("ON a, b", ColumnChoice(("a", "b"))),
        ("ON * EXCEPT (a)", ColumnChoice(("a",), is_except=True)),
        ("", None),
    ],
)
def test_columns_in_which_null_is_ignored(columns: str, choice: ColumnChoice | None) -> None:
    text = f"APPLY CHANGES INTO a FROM STREAM(b) KEYS (id) IGNORE NULL UPDATES {columns} SEQUENCE BY x"
    clause = auto_cdc_clause(text, "a.sql:1")
    assert clause is not None
    assert clause.auto_cdc.is_ignoring_nulls
    assert clause.auto_cdc.null_ignoring == choice


def test_snapshots_of_a_query() -> None:
    text = """CREATE FLOW f AS AUTO CDC INTO a FROM SNAPSHOT (
      SELECT * FROM b WHERE (x > 1) AND y <> ')'
    ) KEYS (id) STORED AS SCD TYPE 2 TRACK HISTORY ON * EXCEPT (y)"""
    clause = auto_cdc_clause(text, "a.sql:1")
    assert clause is not None
    assert (clause.flow, clause.target) == (("f",), ("a",))
    assert clause.query == "\nSELECT * FROM b WHERE (x > 1) AND y <> ')'"
    assert clause.auto_cdc == AutoCdc(
        keys=("id",),
        sequence=None,
        scd_type=2,
        tracked=ColumnChoice(("y",), is_except=True),
        takes_snapshots=True,
    )


@pytest.mark.parametrize(
    ("text", "error_class"),
    [
        (
            "INTO a FROM SNAPSHOT (SELECT 1) WITH VERSION (SELECT 2) KEYS (id)",
            "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
        ),
        ("INTO a FROM SNAPSHOT (SELECT 1) KEYS (id) SEQUENCE BY x", "AUTO_CDC_SYNTAX"),
        ("INTO a FROM SNAPSHOT (SELECT 1) b KEYS (id)", "AUTO_CDC_SYNTAX"),
        ("INTO a FROM SNAPSHOT () KEYS (id)", "AUTO_CDC_SYNTAX"),
        ("INTO a FROM SNAPSHOT (SELECT 1 KEYS (id)", "AUTO_CDC_SYNTAX"),
        ("ONCE INTO a FROM SNAPSHOT (SELECT 1) KEYS (id)", "DATABRICKS_ONLY"),
    ],
)
def test_refusals_of_snapshots(text: str, error_class: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        auto_cdc_clause(f"CREATE FLOW f AS AUTO CDC {text}", "a.sql:3")
    assert refused.value.error_class == error_class


@pytest.mark.parametrize("name", ["f", "comment", "s.comment"])
def test_flow_with_a_comment(name: str) -> None:
    text = f"CREATE FLOW {name} COMMENT 'as AS' AS AUTO CDC INTO a FROM STREAM(b) KEYS (id) SEQUENCE BY x"
    clause = auto_cdc_clause(text, "a.sql:1")
    assert clause is not None
    assert (".".join(clause.flow), clause.target) == (name, ("a",))


def test_flow_that_runs_once() -> None:
    text = "CREATE FLOW f AS AUTO CDC ONCE INTO a FROM STREAM(b) KEYS (id) SEQUENCE BY x"
    clause = auto_cdc_clause(text, "a.sql:1")
    assert clause is not None
    assert clause.target == ("a",)
    assert clause.auto_cdc == AutoCdc(keys=("id",), sequence="x", is_once=True)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE STREAMING TABLE a AS SELECT auto, cdc FROM STREAM b",
        "CREATE FLOW f AS INSERT INTO a BY NAME SELECT auto cdc FROM STREAM b",
        "CREATE MATERIALIZED VIEW apply AS SELECT 1 AS changes",
    ],
)
def test_other_statements_have_none(text: str) -> None:
    assert auto_cdc_clause(text, "a.sql:1") is None


@pytest.mark.parametrize(
    ("clauses", "error_class"),
    [
        ("KEYS (id)", "AUTO_CDC_SYNTAX"),
        ("KEYS (id, 1) SEQUENCE BY x", "AUTO_CDC_SYNTAX"),
        ("KEYS (id) KEYS (id) SEQUENCE BY x", "AUTO_CDC_SYNTAX"),
        ("KEYS (id) SEQUENCE BY x STORED AS BITEMPORAL", "AUTO_CDC_ARGUMENT_NOT_SUPPORTED"),
        ("KEYS (id) SEQUENCE BY x SYSTEM SEQUENCE BY y", "AUTO_CDC_ARGUMENT_NOT_SUPPORTED"),
        ("KEYS (id) WHERE x = 'a' SEQUENCE BY x", "AUTO_CDC_ARGUMENT_NOT_SUPPORTED"),
        ("KEYS (id) IGNORE NULL UPDATES WHERE x = 'a' SEQUENCE BY x", "AUTO_CDC_ARGUMENT_NOT_SUPPORTED"),
        ("KEYS (id) COLUMNS SEQUENCE BY x", "AUTO_CDC_SYNTAX"),
        ("KEYS (id) IGNORE NULL UPDATES (a) SEQUENCE BY x", "AUTO_CDC_SYNTAX"),
        ("KEYS (id) IGNORE NULL UPDATES ON SEQUENCE BY x", "AUTO_CDC_SYNTAX"),
    ],
)
def test_refusals(clauses: str, error_class: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        auto_cdc_clause(f"APPLY CHANGES INTO a FROM STREAM b {clauses}", "a.sql:3")
    assert (refused.value.error_class, refused.value.location) == (error_class, "a.sql:3")
    assert refused.value.hint
