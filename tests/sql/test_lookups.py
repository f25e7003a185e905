"""Views that are refreshed for the same change look up the rows of other tables once, and are correct."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tautochrone.model import limits
from tautochrone.model.reason_codes import ReasonCode
from tautochrone.runtime.views import changes
from tautochrone.spark.execute import key_lookups

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

MERGE = (
    "USING iceberg TBLPROPERTIES ('format-version' = '3', 'write.update.mode' = 'merge-on-read', "
    "'write.delete.mode' = 'merge-on-read')"
)
VIEWS = {
    # Other filters before the same lookup, and other columns.
    "large": "SELECT o.id, o.town, l.price FROM src.orders o JOIN src.lines l ON l.order_id = o.id "
    "WHERE o.total > 200",
    "early": "SELECT o.town, sum(l.amount) AS amount FROM src.orders o JOIN src.lines l "
    "ON l.order_id = o.id WHERE o.day < 5 GROUP BY o.town",
    "unsold": "SELECT o.id, o.day FROM src.orders o WHERE NOT EXISTS "
    "(SELECT 1 FROM src.lines l WHERE l.order_id = o.id AND l.amount > 3)",
    "outer": "SELECT o.id, count(l.price) AS n FROM src.orders o LEFT JOIN src.lines l "
    "ON l.order_id <=> o.id GROUP BY o.id",
}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Lookups that read a table: column, number of keys."""
    lookups: list[tuple[str, int]] = []
    read = key_lookups._read

    def recorded(
        rows: DataFrame, request: key_lookups.LookupRequest, *sizes: int
    ) -> tuple[DataFrame, int] | None:
        lookups.append((request.column, len(request.values)))
        return read(rows, request, *sizes)

    monkeypatch.setattr(key_lookups, "_read", recorded)
    monkeypatch.setattr(limits, "LARGE_RELATION_ROWS", 100)
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 100)
    return lookups


@pytest.fixture
def testbed(testbed: ViewTestbed) -> ViewTestbed:
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        f"CREATE TABLE lake.src.orders {MERGE} AS SELECT id, id % 7 AS town, id % 9 AS day, "
        "(id * 37) % 400 AS total FROM range(300)",
        f"CREATE TABLE lake.src.lines {MERGE} AS SELECT nullif(id % 300, 13) AS order_id, id % 11 AS price, "
        "id % 5 AS amount FROM range(900)",
    )
    for name, query in VIEWS.items():
        testbed.view(name, query)
    testbed.checkpoint()
    return testbed


def change(testbed: ViewTestbed, step: int) -> None:
    testbed.sql(
        f"INSERT INTO lake.src.orders SELECT id, id % 7, id % 9, (id * 31) % 400 "
        f"FROM range({300 * step}, {300 * step + 20})",
        f"INSERT INTO lake.src.lines SELECT id, id % 11, id % 5 FROM range({300 * step}, {300 * step + 25})",
        f"UPDATE lake.src.orders SET town = 8, day = 4 WHERE id % 50 = {step}",
        f"DELETE FROM lake.src.lines WHERE order_id % 60 = {step}",
        f"UPDATE lake.src.orders SET id = NULL WHERE id = {40 + step}",
        f"INSERT INTO lake.src.lines VALUES (NULL, {step}, 4)",
    )


def test_views_share_lookups(
    testbed: ViewTestbed, reads: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[tuple[str, ...]] = []
    computed = changes._computed_delta

    def recorded(change: Any, columns: list[str]) -> Any:
        changed.append(tuple(columns))
        return computed(change, columns)

    monkeypatch.setattr(changes, "_computed_delta", recorded)
    change(testbed, 1)
    testbed.checkpoint(restart=False)
    # Lines of changed orders, orders of changed lines: at one cut, from which the other one follows.
    assert Counter(column for column, _ in reads) == {"order_id": 1, "id": 1}, reads
    reads.clear()
    # Each table's change, with the columns that any of the views needs.
    assert sorted(changed) == [("amount", "order_id", "price"), ("day", "id", "total", "town")]
    assert testbed._run is not None
    assert not testbed._run._checkpoints._refresher._changes.lookups._cached, (
        "forgotten once every view is refreshed"
    )


def test_rows_that_were_looked_up_are_joined_without_a_job(
    testbed: ViewTestbed, reads: list[tuple[str, int]]
) -> None:
    for step in (1, 2, 3):
        change(testbed, step)
        happened = testbed.checkpoint(restart=False)
    assert reads
    operators = {
        node["reason_params"]["operator"]
        for refresh in happened.of("refresh")
        for node in refresh["nodes"]
        if node["reason_code"] == ReasonCode.OPERATOR_OF_JOBS
    }
    assert not [operator for operator in operators if "Join" in operator], operators


@pytest.mark.slow
@pytest.mark.parametrize("literals", [1, 1000])
def test_too_many_rows_are_not_cached(
    testbed: ViewTestbed, reads: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, literals: int
) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", literals)
    monkeypatch.setattr(limits, "MAX_LOOKUP_ROWS", 10)
    change(testbed, 3)
    testbed.checkpoint(restart=False)
    attempts = Counter(reads)
    assert attempts
    assert max(attempts.values()) <= 2, "one attempt per cut shows that there are too many"


@pytest.mark.slow
def test_more_keys_than_literals(
    testbed: ViewTestbed, reads: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", 1)
    for step in (1, 2):
        change(testbed, step)
        testbed.checkpoint(restart=False)
    assert reads
