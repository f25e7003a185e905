"""The query box over a real reader: values as Spark formats them, the checkpoint that was read, refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.published_lake import Lake

from tautochrone.app.console import Console
from tautochrone.app.locate import Options, locate
from tautochrone.app.query_runner import query_answer
from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.query import Answer
from tautochrone.reader import Reader

pytestmark = pytest.mark.spark
STRONG, WEAK = Consistency.STRONG, Consistency.WEAK


@pytest.fixture
def run(lake: Lake) -> Iterator[Callable[..., Answer]]:
    with Reader(lake.store, lake.settings, base=lake.spark, database="db") as reader:
        yield partial(query_answer, reader, "lake")


def test_answers_have_columns_rows_and_checkpoint(lake: Lake, run: Callable[..., Answer]) -> None:
    answer = run("SELECT * FROM orders ORDER BY id DESC", STRONG, None, 2)
    assert answer.columns == ("id", "price", "note")
    assert answer.rows == (("3", "30", "new"), ("2", "20", None))
    assert (answer.checkpoint, answer.more) == (lake.numbers[1], True)
    older = run("SELECT count(*) FROM orders", STRONG, lake.numbers[0], 2)
    assert (older.rows, older.checkpoint, older.more) == ((("2",),), lake.numbers[0], False)
    assert run("SELECT count(*) FROM orders", WEAK, None, 2).checkpoint is None
    duplicate_names = run("SELECT 1 AS a, X'0aff' AS a, map('k', array(1.50)), NULL", STRONG, None, 2)
    assert duplicate_names.rows == (("1", "0AFF", "{k -> [1.50]}", None),)
    assert duplicate_names.columns[:2] == ("a", "a")
    long_values = run("SELECT repeat('x', 2000), repeat('x', 1000000)", STRONG, None, 2).rows[0]
    assert long_values == ("x" * 2000, "x" * 2000 + "…")


def test_tables_can_be_listed_and_described(lake: Lake, run: Callable[..., Answer]) -> None:
    columns = ("id", "int"), ("price", "int"), ("note", "string")
    for number, shown in zip(lake.numbers, (2, 3), strict=True):
        described = run("DESCRIBE orders", STRONG, number, 100)
        assert [row[:2] for row in described.rows][:shown] == [*columns[:shown]]
        assert ("note" in str(described.rows[:3])) is (shown == 3)
        assert described.checkpoint == number
    assert run("DESC TABLE lake.db.orders", STRONG, None, 100).rows == described.rows
    listed = run("SHOW TABLES", STRONG, None, 100)
    assert ("db", "orders") in {row[:2] for row in listed.rows}
    assert listed.checkpoint == lake.numbers[-1]
    assert run("SHOW TABLES", WEAK, None, 100).checkpoint is None
    assert run("SHOW TABLES IN lake.db LIKE 'ord*'", STRONG, None, 100).rows == (("db", "orders", "false"),)
    named = "DESCRIBE IDENTIFIER('orders')"
    for refused in (
        named,
        "DESCRIBE EXTENDED orders",
        "SHOW CREATE TABLE orders",
        "SHOW TBLPROPERTIES orders",
    ):
        with pytest.raises(QueryError, match="QUERY_NOT_READ_ONLY"):
            run(refused, STRONG, None, 10)
    with pytest.raises(QueryError):
        run("DESCRIBE nothing", STRONG, None, 10)


@pytest.fixture
def console(lake: Lake, tmp_path: Path) -> Iterator[Console]:
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text("name: shop\nstorage: storage\ndatabase: db\nlibraries: []\n")
    project_spec, settings = locate(Options(spec=str(spec)))
    settings = replace(settings, catalog=lake.settings)
    service_console = Console(
        project_spec, settings, lake.store, base=lake.spark, time_limit_s=5, lease_ms=900
    )
    yield service_console
    service_console.close()


def test_queries_of_the_service_are_limited(lake: Lake, console: Console) -> None:
    """Queries read newer and older checkpoints, their pins end soon, and they end when they take too long."""
    count = "SELECT count(*) FROM orders"
    console.run(count, STRONG, None, 2)  # Spark's first query
    assert console.run("DESCRIBE orders", STRONG, None, 9).rows[0][:2] == ("id", "int")
    assert ("db", "orders", "false") in console.run("SHOW TABLES", STRONG, None, 99).rows
    for index, rows in ((1, "3"), (0, "2")):
        assert console.run(count, STRONG, lake.numbers[index], 2).rows == ((rows,),)
    deadline = time.monotonic() + 30
    while lake.store.pins.live():
        assert time.monotonic() < deadline, "a checkpoint stays pinned"
        time.sleep(0.05)
    slow = "SELECT max(a.id % (b.id + 1)) FROM range(10000000) a, range(10000000) b"
    queries = []
    with ThreadPoolExecutor(12) as pool:
        queries = [pool.submit(console.run, slow, STRONG, None, 2) for _ in range(12)]
    error_classes = [str(query.exception()).split("]")[0] for query in queries]
    assert sorted(error_classes) == ["[QUERY_TIMED_OUT"] * 8 + ["[TOO_MANY_QUERIES"] * 4
    deadline = time.monotonic() + 30
    while True:
        try:
            assert console.run(count, STRONG, None, 2).rows == (("3",),)
            break
        except QueryError as error:
            # A stopped query may need a moment to end.
            if time.monotonic() > deadline:
                raise AssertionError("a stopped query still counts as running") from error


def test_invalid_queries_are_refused(run: Callable[..., Answer]) -> None:
    with pytest.raises(QueryError, match="QUERY_NOT_READ_ONLY"):
        run("DROP TABLE orders", STRONG, None, 2)
    with pytest.raises(QueryError, match="UNRESOLVED_COLUMN"):
        run("SELECT nothing FROM orders", STRONG, None, 2)
    with pytest.raises(QueryError, match="DIVIDE_BY_ZERO"):
        run("SELECT 1 / (id - id) FROM orders", STRONG, None, 2)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        run("SELECT * FROM orders", STRONG, 999, 2)
