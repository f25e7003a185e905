"""A column gets another type or is replaced by another one: states and cached changes are discarded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark


INCREMENTAL = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"
MERGE = "USING iceberg TBLPROPERTIES ('format-version' = '3')"


@pytest.fixture
def testbed(testbed: ViewTestbed) -> ViewTestbed:
    testbed.sql("CREATE NAMESPACE lake.src")
    return testbed


def test_state_is_discarded_when_the_plan_changes(testbed: ViewTestbed) -> None:
    """Otherwise rows computed from the old state would be searched by the values of a full computation."""
    testbed.sql(
        f"CREATE TABLE lake.src.t (k INT, x INT) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 10), (1, 25), (2, 3), (2, 7), (2, -2147483648)",
    )
    testbed.view("spread", "SELECT k, stddev(x) AS s FROM src.t GROUP BY k")
    testbed.checkpoint()
    testbed.sql("INSERT INTO lake.src.t VALUES (1, 31)", "DELETE FROM lake.src.t WHERE x < 0")
    assert testbed.checkpoint().refresh("spread")["mode"] == "incremental"
    testbed.sql(
        "ALTER TABLE lake.src.t ALTER COLUMN x TYPE BIGINT",
        "INSERT INTO lake.src.t VALUES (1, 5000000000)",
    )
    refresh = testbed.checkpoint(allowed={"spread"}).refresh("spread")
    assert (refresh["mode"], refresh["reason_code"]) == ("full", "INPUT_TYPES_CHANGED")
    testbed.sql("DELETE FROM lake.src.t WHERE x = 31")
    assert testbed.checkpoint().refresh("spread")["mode"] == "incremental"


def test_rows_that_no_commit_changed_give_others_with_another_type(testbed: ViewTestbed) -> None:
    testbed.sql(
        f"CREATE TABLE lake.src.t (k INT, x FLOAT, n INT) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1.1, 2147483647), (2, 0.5, 1)",
    )
    testbed.view("texts", "SELECT k, CAST(x AS STRING) AS s FROM src.t", INCREMENTAL)
    testbed.view("types", "SELECT k, typeof(n) AS s FROM src.t", INCREMENTAL)
    testbed.view("kept", "SELECT k, n FROM src.t", INCREMENTAL)
    testbed.view("beside", "SELECT k FROM src.t", INCREMENTAL)
    testbed.checkpoint()
    testbed.sql(
        "ALTER TABLE lake.src.t ALTER COLUMN x TYPE DOUBLE",
        "ALTER TABLE lake.src.t ALTER COLUMN n TYPE BIGINT",
        "INSERT INTO lake.src.t VALUES (3, 0.25, 1)",
    )
    happened = testbed.checkpoint(allowed={"texts", "types", "kept"})
    refreshes = {name: happened.refresh(name) for name in ("texts", "types", "kept", "beside")}
    assert {name: refresh["mode"] for name, refresh in refreshes.items()} == {
        "texts": "diff",
        "types": "diff",
        "kept": "full",
        "beside": "append",
    }
    assert {refresh["reason_code"] for name, refresh in refreshes.items() if name != "beside"} == {
        "INPUT_TYPES_CHANGED"
    }


@pytest.mark.slow
def test_sums_of_another_scale_have_another_state(testbed: ViewTestbed) -> None:
    testbed.sql(
        f"CREATE TABLE lake.src.t (k INT, d DECIMAL(9,2)) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1.25), (1, 2.50)",
    )
    testbed.view("spread", "SELECT k, var_pop(d) AS v FROM src.t GROUP BY k", INCREMENTAL)
    testbed.checkpoint()
    testbed.sql(
        "ALTER TABLE lake.src.t DROP COLUMN d",
        "ALTER TABLE lake.src.t ADD COLUMN d DECIMAL(9,4)",
        "INSERT INTO lake.src.t VALUES (1, 1.2525), (1, 2.5001), (1, 3.0000)",
    )
    assert testbed.checkpoint(allowed={"spread"}).refresh("spread")["mode"] == "diff"
    testbed.sql("DELETE FROM lake.src.t WHERE d = 3")
    assert testbed.checkpoint().refresh("spread")["mode"] == "incremental"


REPLACEMENTS = {
    "added": ["DROP COLUMN d", "ADD COLUMN d INT"],
    "renamed": ["RENAME COLUMN d TO was", "RENAME COLUMN e TO d", "RENAME COLUMN was TO e"],
    "nested": ["DROP COLUMN s.d", "ADD COLUMN s.d INT"],
}
"""Changes, each of a table with this name."""


@pytest.mark.parametrize(
    "linear", [("renamed",), pytest.param(tuple(REPLACEMENTS), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_column_is_replaced_under_its_name(testbed: ViewTestbed, linear: Sequence[str]) -> None:
    """Every row differs then, although no commit changed one. Some tables have a view without aggregates."""
    for table in REPLACEMENTS:
        testbed.sql(
            f"CREATE TABLE lake.src.{table} (k INT, d INT, e INT, s STRUCT<d: INT, f: INT>) {MERGE}",
            f"INSERT INTO lake.src.{table} VALUES (1, 1, 10, struct(1, 2)), (1, 2, 20, struct(3, 4))",
        )
        total = f"SELECT k, sum(d) AS d, sum(s.d) AS s FROM src.{table} GROUP BY k"
        testbed.view(f"total_{table}", total, INCREMENTAL)
        if table in linear:
            testbed.view(f"rows_{table}", f"SELECT k, d + s.d AS d FROM src.{table} WHERE k > 0", INCREMENTAL)
    testbed.checkpoint()
    for table, clauses in REPLACEMENTS.items():
        testbed.sql(
            *(f"ALTER TABLE lake.src.{table} {clause}" for clause in clauses),
            f"INSERT INTO lake.src.{table} (k, d, e) VALUES (1, 3, 30)",
        )
    views = {*(f"total_{table}" for table in REPLACEMENTS), *(f"rows_{table}" for table in linear)}
    happened = testbed.checkpoint(allowed=views)
    for name in views:
        assert happened.refresh(name)["mode"] == "diff"
        assert "was dropped and added again, or took another one's name" in happened.refresh(name)["reason"]
    for table in REPLACEMENTS:
        testbed.sql(f"INSERT INTO lake.src.{table} (k, d, e) VALUES (2, 4, 40)")
    happened = testbed.checkpoint()
    assert {happened.refresh(f"total_{table}")["mode"] for table in REPLACEMENTS} == {"incremental"}


def test_column_is_replaced_after_the_last_commit(testbed: ViewTestbed) -> None:
    """Changes are read with the table's newest columns, versions with their own."""
    testbed.sql(
        f"CREATE TABLE lake.src.t (k INT, d INT) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1), (1, 2)",
    )
    testbed.view("total", "SELECT k, sum(d) AS d FROM src.t GROUP BY k", INCREMENTAL)
    testbed.checkpoint()
    testbed.sql(
        "INSERT INTO lake.src.t VALUES (1, 5)",
        "ALTER TABLE lake.src.t DROP COLUMN d",
        "ALTER TABLE lake.src.t ADD COLUMN d INT",
    )
    assert testbed.checkpoint(allowed={"total"}).refresh("total")["mode"] == "diff"
    testbed.sql("INSERT INTO lake.src.t VALUES (1, 7)")
    assert testbed.checkpoint(allowed={"total"}).refresh("total")["mode"] == "diff"
    testbed.sql("INSERT INTO lake.src.t VALUES (2, 7)")
    assert testbed.checkpoint().refresh("total")["mode"] == "incremental"
