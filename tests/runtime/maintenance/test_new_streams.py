"""A stream that cannot be led from a table's first version takes all rows of one version, then what comes.

Iceberg's source has four ways to get that wrong, each without a word: it takes nothing where the version is
a compaction, the rows of deleted files where a manifest remembers some, a part where the table grew
before it was done, and it stops where the version is an update.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.harness import Happened

from tautochrone.model.effects import Step
from tautochrone.runtime.job.effects import CountingEffects
from tautochrone.runtime.loop.run import Run

from .conftest import Upkept

pytestmark = pytest.mark.spark

T = TypeVar("T")

_LIMITED = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession


@dp.table
def late():
    reader = SparkSession.active().readStream.option("streaming-max-files-per-micro-batch", 1)
    return reader.table("events").where("id % 5 != 0")
"""


class Breaking(CountingEffects):
    """The third batch of `late` fails before its positions are known."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        if step is Step.INGEST_SOURCE_FILES and subject.endswith(".late"):
            self.batches += 1
            if self.batches == 3:
                raise OSError("the third batch fails")
        return super().perform(step, subject, action)


def run(upkept: Upkept) -> Happened:
    happened = upkept.pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    return happened


def begun(happened: Happened) -> list[str]:
    return [str(event["dataset"]) for event in happened.of("flow_from_snapshot")]


def check(upkept: Upkept, table: str = "late") -> None:
    assert upkept.ids(table) == [n for n in range(upkept.rows) if n % 5]


def newest(upkept: Upkept, table: str = "lake.default.events") -> str:
    rows = upkept.pipeline.session.sql(f"SELECT operation FROM {table}.snapshots ORDER BY committed_at")
    return str(rows.collect()[-1][0])


_THROUGH_A_VIEW = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession


@dp.temporary_view
def chosen():
    return SparkSession.active().readStream.table("events").where("id % 5 != 0")


@dp.table
def viewed():
    return SparkSession.active().readStream.table("chosen")
"""


def remembered(upkept: Upkept, table: str = "lake.default.events") -> list[int]:
    """Numbers of deleted files that manifests still remember."""
    rows = upkept.pipeline.session.sql(
        f"SELECT deleted_data_files_count FROM {table}.manifests WHERE content = 0"
    )
    return [row[0] for row in rows.collect() if row[0]]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def goes_on(upkept: Upkept) -> None:
    upkept.add()
    assert not begun(run(upkept))
    check(upkept)


def test_from_a_compaction(upkept: Upkept) -> None:
    for _ in range(3):
        upkept.add()
        run(upkept)
    assert newest(upkept) == "replace"
    upkept.stream("late")
    assert begun(run(upkept)) == ["lake.default.late"]
    check(upkept)
    # Now nothing new came to the other tables.
    upkept.pipeline.write("definitions/viewed.py", _THROUGH_A_VIEW)
    assert begun(run(upkept)) == ["lake.default.viewed"]
    check(upkept, "viewed")
    goes_on(upkept)
    check(upkept, "viewed")


def compact_one_kind(upkept: Upkept) -> None:
    """Appends of several files each, of which one is compacted: their manifests keep its name, as deleted."""
    upkept.set("min_files", "100")
    ingest = upkept.pipeline.folder / "definitions" / "ingest.py"
    ingest.write_text(ingest.read_text().replace("@dp.table", "@dp.table(partition_cols=['kind'])"))
    for _ in range(2):
        upkept.add(6)
        run(upkept)
    upkept.pipeline.session.sql(
        "CALL lake.system.rewrite_data_files(table => 'default.events', where => 'kind = 1', "
        "options => map('rewrite-all', 'true'))"
    )
    for _ in range(2):
        upkept.add()
        run(upkept)
    assert remembered(upkept)


@pytest.mark.slow
def test_from_manifests_that_remember_deleted_files(upkept: Upkept) -> None:
    compact_one_kind(upkept)
    upkept.stream("late")
    assert begun(run(upkept)) == ["lake.default.late"]
    check(upkept)
    folders = list(Path(upkept.pipeline.settings.storage).glob("_beginnings/*/*/late/late/*"))
    assert folders, "what the flow needed for that"
    goes_on(upkept)
    assert not folders[0].exists()


UPDATE = "UPDATE lake.shared.prices SET price = 21 WHERE id = 2"
COMPACT = (
    "CALL lake.system.rewrite_data_files(table => 'shared.prices', options => map('rewrite-all', 'true'))"
)
FIRST = [(1, 10), (2, 20), (3, 30)]
UPDATED = [(1, 10), (2, 21), (3, 30)]


class Shared:
    """A table of somebody else and a stream that reads it."""

    def __init__(self, upkept: Upkept, partitions: str = "") -> None:
        self.upkept = upkept
        self.sql = upkept.pipeline.session.sql
        self.sql("CREATE NAMESPACE IF NOT EXISTS lake.shared")
        self.sql(
            f"CREATE TABLE lake.shared.prices (id INT, price INT) USING iceberg {partitions} TBLPROPERTIES "
            "('write.update.mode' = 'copy-on-write', 'write.delete.mode' = 'copy-on-write')"
        )

    def add(self, *rows: tuple[int, int]) -> None:
        self.sql(f"INSERT INTO lake.shared.prices VALUES {', '.join(map(str, rows))}")

    def run(self) -> list[str]:
        """Which tables began in the middle. Other tables always have news."""
        self.upkept.add()
        return begun(run(self.upkept))

    def define(self) -> None:
        self.upkept.pipeline.write(
            "definitions/prices.sql",
            "CREATE STREAMING TABLE prices AS SELECT * FROM STREAM(lake.shared.prices);",
        )

    def prices(self) -> list[tuple[int, int]]:
        return self.upkept.pipeline.query("SELECT * FROM prices")


@pytest.fixture
def shared(upkept: Upkept) -> Shared:
    return Shared(upkept)


def test_a_table_of_somebody_else_that_was_updated(upkept: Upkept) -> None:
    """And then nothing comes for a while: the stream stands behind the last file of a version that it took
    whole."""
    shared = Shared(upkept, "PARTITIONED BY (id)")
    shared.add(*FIRST)
    shared.add((4, 40))
    shared.sql(UPDATE)
    assert newest(upkept, "lake.shared.prices") == "overwrite"
    assert remembered(upkept, "lake.shared.prices")
    shared.define()
    files = upkept.folder("shared").rglob("*.avro")
    before = set(files)
    assert shared.run() == ["lake.default.prices"]
    assert set(upkept.folder("shared").rglob("*.avro")) == before, "nothing is written into others' folders"
    for _ in range(2):
        shared.run()
        assert shared.prices() == [*UPDATED, (4, 40)]
        upkept.pipeline.reload()
    shared.add((5, 50))
    shared.run()
    assert shared.prices() == [*UPDATED, (4, 40), (5, 50)]


@pytest.mark.parametrize(
    ("statement", "then"),
    [
        pytest.param(UPDATE, UPDATED, id="updated"),
        pytest.param(COMPACT, FIRST, id="compacted", marks=pytest.mark.slow),
    ],
)
def test_a_manifest_that_remembers_nothing_but_deleted_files(
    shared: Shared, statement: str, then: list[tuple[int, int]]
) -> None:
    for row in FIRST:
        shared.add(row)
    shared.sql("CALL lake.system.rewrite_manifests('shared.prices')")
    shared.sql("UPDATE lake.shared.prices SET price = price WHERE id = 1")
    shared.sql(statement)
    assert remembered(shared.upkept, "lake.shared.prices")
    shared.define()
    assert shared.run() == ["lake.default.prices"]
    assert shared.prices() == then
    shared.add((4, 40))
    shared.run()
    assert shared.prices() == [*then, (4, 40)]


@pytest.mark.slow
def test_from_a_table_that_was_emptied(shared: Shared) -> None:
    shared.add(*FIRST)
    shared.sql("DELETE FROM lake.shared.prices")
    shared.define()
    shared.run()
    assert shared.prices() == []
    shared.add((4, 40))
    failed = shared.upkept.pipeline.run()
    assert "STREAM_HISTORY_EXPIRED" in failed.failure("prices")
    assert shared.upkept.pipeline.run(full=["prices"]).state == "COMPLETED"
    assert shared.prices() == [(4, 40)]


@pytest.mark.slow
@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "deleted files remembered"])
def test_stopped_in_the_middle_of_it(upkept: Upkept, mixed: bool) -> None:
    """Batch after batch of a version that the table has left when the stream goes on."""
    upkept.set("min_files", "100")
    if mixed:
        compact_one_kind(upkept)
    else:
        for _ in range(4):
            upkept.add()
            run(upkept)
    upkept.pipeline.write("definitions/late.py", _LIMITED)
    with upkept.pipeline.opened(Breaking()) as (job, stopped):
        upkept.pipeline.execute(job)
    assert begun(stopped) == ["lake.default.late"]
    assert "third batch" in stopped.failure("late")
    upkept.add()
    run(upkept)
    goes_on(upkept)


def test_a_run_goes_on_after_a_batch_failed(upkept: Upkept) -> None:
    """The next batches are planned where the failed one was: in a table that is shown as it was."""
    compact_one_kind(upkept)
    upkept.pipeline.write("definitions/late.py", _LIMITED)
    with upkept.pipeline.opened(Breaking()) as (job, happened):
        going = Run(job)
        thread = threading.Thread(target=going.continuously, args=(200,))
        thread.start()
        try:
            until(lambda: "third batch" in " ".join(map(str, happened.of("refresh_failed"))))
            upkept.add()
            until(lambda: "lake.default.late" in {event["dataset"] for event in happened.of("refresh")})
        finally:
            going.stop()
            thread.join()
    check(upkept)
