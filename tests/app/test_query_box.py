"""The query box over a real reader: values as Spark spells them, the checkpoint that was read, refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from tests.published_lake import Lake

from tautochrone.app.console import Console
from tautochrone.app.locate import Options, locate
from tautochrone.app.query_box import ReaderRunner
from tautochrone.errors import CheckpointUnavailableError, QueryError
from tautochrone.model.checkpoint import Consistency
from tautochrone.reader.reader import Reader

pytestmark = pytest.mark.spark
STRONG, WEAK = Consistency.STRONG, Consistency.WEAK


@pytest.fixture
def runner(lake: Lake) -> Iterator[ReaderRunner]:
    with Reader(lake.store, lake.settings, base=lake.spark, database="db") as reader:
        yield ReaderRunner(reader, "lake")


def test_answers(lake: Lake, runner: ReaderRunner) -> None:
    found = runner.run("SELECT * FROM orders ORDER BY id DESC", STRONG, None, 2)
    assert found.columns == ("id", "price", "note")
    assert found.rows == (("3", "30", "new"), ("2", "20", None))
    assert (found.checkpoint, found.more) == (lake.numbers[1], True)
    older = runner.run("SELECT count(*) FROM orders", STRONG, lake.numbers[0], 2)
    assert (older.rows, older.checkpoint, older.more) == ((("2",),), lake.numbers[0], False)
    assert runner.run("SELECT count(*) FROM orders", WEAK, None, 2).checkpoint is None
    odd = runner.run("SELECT 1 AS a, X'0aff' AS a, map('k', array(1.50)), NULL", STRONG, None, 2)
    assert odd.rows == (("1", "0AFF", "{k -> [1.50]}", None),)
    assert odd.columns[:2] == ("a", "a")
    long = runner.run("SELECT repeat('x', 2000), repeat('x', 1000000)", STRONG, None, 2).rows[0]
    assert long == ("x" * 2000, "x" * 2000 + "…")


@pytest.fixture
def console(lake: Lake, tmp_path: Path) -> Iterator[Console]:
    spec = tmp_path / "spark-pipeline.yml"
    spec.write_text("name: shop\nstorage: storage\ndatabase: db\nlibraries: []\n")
    found, settings = locate(Options(spec=str(spec)))
    settings = replace(settings, catalog=lake.settings)
    made = Console(found, settings, lake.store, base=lake.spark, time_limit_s=5)
    yield made
    made.close()


def test_the_box_of_a_service(lake: Lake, console: Console) -> None:
    """Its queries go back and forth, leave no pin behind, and end when they take too long."""
    count = "SELECT count(*) FROM orders"
    console.run(count, STRONG, None, 2)  # Spark's first one
    for at, rows in ((1, "3"), (0, "2")):
        assert console.run(count, STRONG, lake.numbers[at], 2).rows == ((rows,),)
    assert not lake.store.pins.live()
    slow = "SELECT max(a.id % (b.id + 1)) FROM range(10000000) a, range(10000000) b"
    queries = []
    with ThreadPoolExecutor(12) as people:
        queries = [people.submit(console.run, slow, STRONG, None, 2) for _ in range(12)]
    said = [str(query.exception()).split("]")[0] for query in queries]
    assert sorted(said) == ["[QUERY_TIMED_OUT"] * 8 + ["[TOO_MANY_QUERIES"] * 4
    deadline = time.monotonic() + 30
    while True:
        try:
            assert console.run(count, STRONG, None, 2).rows == (("3",),)
            break
        except QueryError as error:
            # What was stopped may need a moment to end.
            if time.monotonic() > deadline:
                raise AssertionError("what was stopped holds its place") from error


def test_refusals(runner: ReaderRunner) -> None:
    with pytest.raises(QueryError, match="QUERY_NOT_READ_ONLY"):
        runner.run("DROP TABLE orders", STRONG, None, 2)
    with pytest.raises(QueryError, match="UNRESOLVED_COLUMN"):
        runner.run("SELECT nothing FROM orders", STRONG, None, 2)
    with pytest.raises(QueryError, match="DIVIDE_BY_ZERO"):
        runner.run("SELECT 1 / (id - id) FROM orders", STRONG, None, 2)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_NOT_FOUND"):
        runner.run("SELECT * FROM orders", STRONG, 999, 2)
