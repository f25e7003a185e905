"""Changes that are too large for the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.algebra.nodes import Materialized, MultiKeySemiJoin, Node
from tautochrone.model import limits
from tautochrone.spark.execute import engine
from tautochrone.spark.translate import to_catalyst, to_catalyst_semi_joins
from tautochrone.spark.translate.to_catalyst import Lowering

from .testbed import ViewTestbed

pytestmark = pytest.mark.spark

VIEWS = {
    "joined": "SELECT s.id, s.amount, p.name FROM src.sales s LEFT JOIN src.shops p ON s.shop = p.id",
    "totals": "SELECT name, count(*) AS n, sum(amount) AS s, min(id) AS low, max(amount) AS most, "
    "count(DISTINCT amount) AS amounts FROM joined GROUP BY name",
    "pairs": "SELECT a.id, b.id AS other FROM src.sales a JOIN src.sales b ON a.id = b.id + 1 "
    "WHERE a.shop = 3",
    "first_ones": "SELECT id, amount FROM src.sales ORDER BY amount DESC, id LIMIT 20",
    "ranked": "SELECT id, rank() OVER (PARTITION BY shop ORDER BY amount) AS place FROM src.sales "
    "WHERE shop < 5",
}


SAMPLE = ("joined", "totals", "ranked")
"""A join, the view of a view with every aggregate, and a window."""


@pytest.mark.slow
def test_change_larger_than_the_driver_limits(testbed: ViewTestbed) -> None:
    insert_and_update(testbed, tuple(VIEWS), limits.MAX_DRIVER_ROWS + 200_000)
    delete(testbed, limits.MAX_DRIVER_ROWS + 200_000)


def test_lower_limits_have_the_same_effect(testbed: ViewTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with fewer rows and lower limits."""
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 100)
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 100)
    insert_and_update(testbed, SAMPLE, 1_500)


def test_large_result_of_a_small_change_stays_off_the_driver(
    testbed: ViewTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change of `now()` is one row, so only the rule knows that the change of the view is large."""
    large: list[int] = []
    on_driver: list[int] = []
    materialize, local_relation = engine.SparkEngine.materialize, engine.local_relation

    def recorded_materialize(
        self: engine.SparkEngine, plan: Node, *, may_be_large: bool = False
    ) -> Materialized:
        result = materialize(self, plan, may_be_large=may_be_large)
        large.extend([result.rows] if may_be_large else [])
        return result

    def recorded_local_relation(*frames: DataFrame, **named: Any) -> tuple[JavaObject, int]:
        relation, rows = local_relation(*frames, **named)
        on_driver.extend([rows] if large else [])
        return relation, rows

    monkeypatch.setattr(engine, "local_relation", recorded_local_relation)
    monkeypatch.setattr(limits, "LARGE_RELATION_ROWS", 100)
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 100)
    monkeypatch.setattr(engine.SparkEngine, "materialize", recorded_materialize)
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        "CREATE TABLE lake.src.sales USING iceberg TBLPROPERTIES ('format-version' = '3') AS "
        "SELECT id FROM range(400)",
    )
    testbed.view("timed", "SELECT id, now() AS at FROM src.sales")
    testbed.checkpoint()
    assert not large
    testbed.sql("INSERT INTO lake.src.sales VALUES (1000)")
    refresh = testbed.checkpoint(restart=False).refresh("timed")
    assert (refresh["mode"], refresh["rows_inserted"], refresh["rows_deleted"]) == ("incremental", 401, 400)
    assert large == [400]
    assert not on_driver


def test_one_changed_row_that_meets_many(testbed: ViewTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows changed, and only the join knows how many rows of the view that are."""
    on_driver: list[int] = []
    local_relation = engine.local_relation

    def recorded_local_relation(*frames: DataFrame, **named: Any) -> tuple[JavaObject, int]:
        relation, rows = local_relation(*frames, **named)
        on_driver.append(rows)
        return relation, rows

    monkeypatch.setattr(engine, "local_relation", recorded_local_relation)
    monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", 50)
    monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", 50)
    table = "USING iceberg TBLPROPERTIES ('format-version' = '3', 'write.update.mode' = 'merge-on-read') AS"
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        f"CREATE TABLE lake.src.facts {table} SELECT id, id % 2 AS d FROM range(4000)",
        f"CREATE TABLE lake.src.dim {table} SELECT id, concat('n', id) AS name FROM range(3)",
    )
    testbed.view("joined", "SELECT f.id, d.name FROM src.facts f JOIN src.dim d ON f.d = d.id")
    testbed.view(
        "counted",
        "SELECT f.id, count(*) AS n, max(name) AS name FROM src.facts f JOIN src.dim d "
        "ON f.d = d.id GROUP BY f.id",
    )
    testbed.view("numbered", "SELECT id, row_number() OVER (PARTITION BY d ORDER BY id) AS n FROM src.facts")
    testbed.checkpoint()
    testbed.sql(
        "UPDATE lake.src.dim SET name = 'other' WHERE id = 0", "DELETE FROM lake.src.facts WHERE id = 1"
    )
    happened = testbed.checkpoint(restart=False)
    assert happened.refresh("joined")["rows_deleted"] == 2001
    assert max(on_driver) < 1000


@pytest.mark.parametrize("local_rows", [pytest.param(None, marks=pytest.mark.slow), 5])
def test_more_keys_than_literals(
    testbed: ViewTestbed, monkeypatch: pytest.MonkeyPatch, local_rows: int | None
) -> None:
    """Every input of a join changes, and its keys are joined: those on the driver, and those that are not."""
    monkeypatch.setattr(limits, "MAX_IN_LIST_VALUES", 1)
    if local_rows is not None:
        monkeypatch.setattr(limits, "MAX_DRIVER_ROWS", local_rows)
        monkeypatch.setattr(limits, "MAX_SINGLE_TASK_ROWS", local_rows)
    lowered: list[int] = []
    lower = to_catalyst_semi_joins.lower_multi_key_semi_join

    def recorded(lowering: Lowering, node: MultiKeySemiJoin) -> object:
        lowered.append(len(node.keys))
        return lower(lowering, node)

    monkeypatch.setattr(to_catalyst, "lower_multi_key_semi_join", recorded)
    table = "USING iceberg TBLPROPERTIES ('format-version' = '3', 'write.update.mode' = 'merge-on-read') AS"
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        f"CREATE TABLE lake.src.lines {table} SELECT id, id % 40 AS part, nullif(id % 30, 7) AS shop, "
        "id % 9 AS n FROM range(900)",
        f"CREATE TABLE lake.src.parts {table} SELECT id, concat('p', id % 8) AS kind FROM range(45)",
        f"CREATE TABLE lake.src.shops {table} SELECT id, id % 5 AS town FROM range(30)",
        f"CREATE TABLE lake.src.towns {table} SELECT id, concat('t', id) AS name FROM range(5)",
    )
    testbed.view(
        "sold",
        "SELECT l.id, l.n, kind, name FROM src.lines l JOIN src.parts p ON part = p.id "
        "JOIN src.shops s ON shop <=> s.id JOIN src.towns t ON town = t.id",
    )
    testbed.checkpoint()
    testbed.sql(
        "INSERT INTO lake.src.lines SELECT id, id % 45, id % 31, 1 FROM range(900, 930)",
        "UPDATE lake.src.lines SET part = part + 1 WHERE id % 50 = 1",
        "UPDATE lake.src.parts SET kind = 'new' WHERE id % 11 = 1",
        "UPDATE lake.src.shops SET town = (town + 1) % 5 WHERE id % 10 = 1",
        "UPDATE lake.src.towns SET name = concat(name, '!') WHERE id = 1",
    )
    testbed.checkpoint(restart=False)
    assert max(lowered) == 2, "both sides of the lines"


def insert_and_update(testbed: ViewTestbed, names: Sequence[str], rows: int) -> None:
    """Build views over 2,000 rows, and insert `rows` more."""
    merge = "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"
    testbed.sql(
        "CREATE NAMESPACE lake.src",
        f"CREATE TABLE lake.src.shops USING iceberg TBLPROPERTIES ('format-version' = '3', {merge}) AS "
        "SELECT id, concat('n', id % 40) AS name FROM range(60)",
        f"CREATE TABLE lake.src.sales USING iceberg TBLPROPERTIES ('format-version' = '3', {merge}) AS "
        "SELECT id, id % 50 AS shop, id * 7 % 1000 AS amount FROM range(2000)",
    )
    for name in names:
        testbed.view(name, VIEWS[name])
    testbed.checkpoint()
    testbed.sql(
        "INSERT INTO lake.src.sales SELECT id, id % 70 AS shop, id * 11 % 1000 AS amount "
        f"FROM range(2000, {2000 + rows})",
        "UPDATE lake.src.shops SET name = 'other' WHERE id % 9 = 1",
    )
    happened = testbed.checkpoint(restart=False)
    assert happened.refresh("joined")["rows_inserted"] > rows


def delete(testbed: ViewTestbed, rows: int) -> None:
    """Delete most of them again."""
    testbed.sql("DELETE FROM lake.src.sales WHERE id > 500 AND id % 7 <> 3")
    happened = testbed.checkpoint(restart=False)
    assert happened.refresh("joined")["rows_deleted"] > rows // 2
