"""A column gets another type or becomes another column, and what was remembered of it is of no use."""

from __future__ import annotations

import pytest

from .stand import Stand

pytestmark = pytest.mark.spark


FOLLOWED = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"
MERGE = "USING iceberg TBLPROPERTIES ('format-version' = '3')"


@pytest.fixture
def stand(stand: Stand) -> Stand:
    stand.sql("CREATE NAMESPACE lake.src")
    return stand


def test_a_state_that_the_plan_no_longer_has(stand: Stand) -> None:
    """Else rows that its sums gave would be looked for as the whole computation gives them."""
    stand.sql(
        f"CREATE TABLE lake.src.t (k INT, x INT) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 10), (1, 25), (2, 3), (2, 7), (2, -2147483648)",
    )
    stand.view("spread", "SELECT k, stddev(x) AS s FROM src.t GROUP BY k")
    stand.checkpoint()
    stand.sql("INSERT INTO lake.src.t VALUES (1, 31)", "DELETE FROM lake.src.t WHERE x < 0")
    assert stand.checkpoint().refresh("spread")["mode"] == "incremental"
    stand.sql(
        "ALTER TABLE lake.src.t ALTER COLUMN x TYPE BIGINT",
        "INSERT INTO lake.src.t VALUES (1, 5000000000)",
    )
    refresh = stand.checkpoint(allowed={"spread"}).refresh("spread")
    assert refresh["mode"] == "full"
    assert "no longer has the state" in refresh["reason"]
    stand.sql("DELETE FROM lake.src.t WHERE x = 31")
    assert stand.checkpoint().refresh("spread")["mode"] == "incremental"


def test_sums_of_another_scale_are_another_state(stand: Stand) -> None:
    stand.sql(
        f"CREATE TABLE lake.src.t (k INT, d DECIMAL(9,2)) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1.25), (1, 2.50)",
    )
    stand.view("spread", "SELECT k, var_pop(d) AS v FROM src.t GROUP BY k", FOLLOWED)
    stand.checkpoint()
    stand.sql(
        "ALTER TABLE lake.src.t DROP COLUMN d",
        "ALTER TABLE lake.src.t ADD COLUMN d DECIMAL(9,4)",
        "INSERT INTO lake.src.t VALUES (1, 1.2525), (1, 2.5001), (1, 3.0000)",
    )
    assert stand.checkpoint(allowed={"spread"}).refresh("spread")["mode"] == "diff"
    stand.sql("DELETE FROM lake.src.t WHERE d = 3")
    assert stand.checkpoint().refresh("spread")["mode"] == "incremental"


@pytest.mark.parametrize(
    "change",
    [
        ["DROP COLUMN d", "ADD COLUMN d INT"],
        ["RENAME COLUMN d TO was", "RENAME COLUMN e TO d", "RENAME COLUMN was TO e"],
        ["DROP COLUMN s.d", "ADD COLUMN s.d INT"],
    ],
)
def test_a_name_that_stands_for_another_column(stand: Stand, change: list[str]) -> None:
    """Every row is another one then, although no commit moved any."""
    stand.sql(
        f"CREATE TABLE lake.src.t (k INT, d INT, e INT, s STRUCT<d: INT, f: INT>) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1, 10, struct(1, 2)), (1, 2, 20, struct(3, 4))",
    )
    stand.view("total", "SELECT k, sum(d) AS d, sum(s.d) AS s FROM src.t GROUP BY k", FOLLOWED)
    stand.view("rows", "SELECT k, d + s.d AS d FROM src.t WHERE k > 0", FOLLOWED)
    stand.checkpoint()
    stand.sql(
        *(f"ALTER TABLE lake.src.t {each}" for each in change),
        "INSERT INTO lake.src.t (k, d, e) VALUES (1, 3, 30)",
    )
    done = stand.checkpoint(allowed={"total", "rows"})
    for name in ("total", "rows"):
        assert done.refresh(name)["mode"] == "diff"
        assert "was dropped and added again, or took another one's name" in done.refresh(name)["reason"]
    stand.sql("INSERT INTO lake.src.t (k, d, e) VALUES (2, 4, 40)")
    assert stand.checkpoint().refresh("total")["mode"] == "incremental"


def test_a_column_that_is_replaced_behind_the_last_commit(stand: Stand) -> None:
    """What changed would be read by the table's newest columns, its versions by their own."""
    stand.sql(
        f"CREATE TABLE lake.src.t (k INT, d INT) {MERGE}",
        "INSERT INTO lake.src.t VALUES (1, 1), (1, 2)",
    )
    stand.view("total", "SELECT k, sum(d) AS d FROM src.t GROUP BY k", FOLLOWED)
    stand.checkpoint()
    stand.sql(
        "INSERT INTO lake.src.t VALUES (1, 5)",
        "ALTER TABLE lake.src.t DROP COLUMN d",
        "ALTER TABLE lake.src.t ADD COLUMN d INT",
    )
    assert stand.checkpoint(allowed={"total"}).refresh("total")["mode"] == "diff"
    stand.sql("INSERT INTO lake.src.t VALUES (1, 7)")
    assert stand.checkpoint(allowed={"total"}).refresh("total")["mode"] == "diff"
    stand.sql("INSERT INTO lake.src.t VALUES (2, 7)")
    assert stand.checkpoint().refresh("total")["mode"] == "incremental"
