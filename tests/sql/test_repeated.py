"""Plans that one run keeps are right over the rows of its later checkpoints, also after columns changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from tautochrone.spark.execute.repeated_plans import repeated_plan, run_again

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

TABLE = "USING iceberg TBLPROPERTIES ('format-version' = '3')"
INCREMENTAL = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"
VIEWS = {
    "joined": "SELECT o.id, o.v, c.name, c.spare FROM src.o o JOIN src.c c ON o.k = c.k",
    "rest": "SELECT c.k, c.name, o.v FROM src.c c LEFT JOIN src.o o ON o.k = c.k AND o.v > 1",
    "totals": """SELECT c.name, count(*) AS n, sum(o.v) AS s, max(o.v) AS m
        FROM src.o o JOIN src.c c ON o.k = c.k GROUP BY c.name""",
}
CHANGES = (
    ["INSERT INTO lake.src.o VALUES (10, 1, 5), (11, 2, NULL)"],
    ["UPDATE lake.src.o SET v = v + 1 WHERE id < 4", "INSERT INTO lake.src.o VALUES (12, NULL, 3)"],
    ["DELETE FROM lake.src.o WHERE id IN (1, 11)", "INSERT INTO lake.src.o VALUES (13, 9, 3), (14, 0, -1)"],
)
ALTERATIONS = (
    ["ALTER TABLE lake.src.c ALTER COLUMN spare FIRST", "ALTER TABLE lake.src.c ALTER COLUMN k AFTER name"],
    ["ALTER TABLE lake.src.c ADD COLUMN more STRING"],
    ["ALTER TABLE lake.src.o ALTER COLUMN v TYPE BIGINT", "ALTER TABLE lake.src.c ALTER COLUMN k FIRST"],
)
"""The columns `spare` and `k` of `c` have the same type, so that only their names tell them apart."""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many plans were made and how often one of them ran."""
    counts: Counter[str] = Counter()
    make, run = repeated_plan, run_again

    def made(*args: Any) -> Any:
        counts["made"] += 1
        return make(*args)

    def ran(*args: Any) -> Any:
        rows = run(*args)
        counts["refused" if rows is None else "ran"] += 1
        return rows

    monkeypatch.setattr("tautochrone.spark.execute.engine.repeated_plan", made)
    monkeypatch.setattr("tautochrone.spark.execute.engine.run_again", ran)
    return counts


@pytest.mark.parametrize(
    "all_alterations",
    [ALTERATIONS[::2], pytest.param(ALTERATIONS, marks=pytest.mark.slow)],
    ids=["two", "all"],
)
def test_rows_of_later_checkpoints(
    testbed: ViewTestbed, counts: Counter[str], all_alterations: Sequence[Sequence[str]]
) -> None:
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        f"CREATE TABLE lake.src.o (id INT, k INT, v INT) {TABLE}",
        f"CREATE TABLE lake.src.c (k INT, name STRING, spare INT) {TABLE}",
        "INSERT INTO lake.src.o VALUES (1, 0, 1), (2, 1, 2), (3, 1, 3), (4, 2, NULL)",
        "INSERT INTO lake.src.c VALUES (0, 'zero', 1), (1, 'one', 1), (2, 'two', 2)",
    )
    for name, query in VIEWS.items():
        testbed.view(name, query, INCREMENTAL)
    testbed.checkpoint()
    for statements in CHANGES:
        testbed.sql(*statements)
        testbed.checkpoint(restart=False)
    assert counts["ran"] > counts["made"]
    assert not counts["refused"]
    for number, alterations in enumerate(all_alterations):
        testbed.sql(
            *alterations,
            f"INSERT INTO lake.src.c (k, name, spare) VALUES ({3 + number}, 'more', 1)",
            f"INSERT INTO lake.src.o VALUES ({20 + number}, {number % 4}, {number})",
            f"DELETE FROM lake.src.o WHERE id = {19 + number}",
        )
        testbed.checkpoint(allowed=VIEWS, restart=False)
    assert counts["refused"]
