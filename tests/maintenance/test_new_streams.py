"""A stream that cannot be led from a table's first version takes all rows of one version, then what comes.

Iceberg's source has four ways to get that wrong, each without a word: it takes nothing where the version is
a compaction, the rows of deleted files where a manifest remembers some, a part where the table grew
before it was done, and it stops where the version is an update.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tautochrone.model.effects import Step
from tautochrone.runtime.effects import CountingEffects
from tautochrone.testing.harness import Happened

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
    return [str(told["dataset"]) for told in happened.of("flow_from_snapshot")]


def check(upkept: Upkept, table: str = "late") -> None:
    assert upkept.ids(table) == [n for n in range(upkept.rows) if n % 5]


def newest(upkept: Upkept, table: str = "lake.default.events") -> str:
    rows = upkept.pipeline.session.sql(f"SELECT operation FROM {table}.snapshots ORDER BY committed_at")
    return str(rows.collect()[-1][0])


def remembered(upkept: Upkept, table: str = "lake.default.events") -> list[int]:
    """Deleted files that the manifests with other files still remember."""
    rows = upkept.pipeline.session.sql(
        f"SELECT deleted_data_files_count FROM {table}.manifests "
        "WHERE added_data_files_count + existing_data_files_count > 0"
    )
    return [row[0] for row in rows.collect() if row[0]]


def goes_on(upkept: Upkept) -> None:
    for _ in range(2):
        upkept.add()
        assert not begun(run(upkept))
    check(upkept)


def test_from_a_compaction(upkept: Upkept) -> None:
    for _ in range(4):
        upkept.add()
        run(upkept)
    assert newest(upkept) == "replace"
    upkept.stream("late")
    assert begun(run(upkept)) == ["lake.default.late"]
    check(upkept)
    goes_on(upkept)


def compact_one_kind(upkept: Upkept) -> None:
    """Appends of several files each, of which one is compacted: their manifests keep its name, as deleted."""
    upkept.set("min_files", "100")
    ingest = upkept.pipeline.folder / "definitions" / "ingest.py"
    ingest.write_text(ingest.read_text().replace("@dp.table", "@dp.table(partition_cols=['kind'])"))
    for _ in range(3):
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


def test_from_manifests_that_remember_deleted_files(upkept: Upkept) -> None:
    compact_one_kind(upkept)
    upkept.stream("late")
    assert begun(run(upkept)) == ["lake.default.late"]
    check(upkept)
    folders = list(Path(upkept.pipeline.settings.storage).glob("_beginnings/*/*/late/late"))
    assert folders, "what the flow needed for that"
    goes_on(upkept)
    assert not folders[0].exists()


def test_a_table_of_somebody_else_that_was_updated(upkept: Upkept) -> None:
    sql = upkept.pipeline.session.sql
    sql("CREATE NAMESPACE IF NOT EXISTS lake.shared")
    sql(
        "CREATE TABLE lake.shared.prices (id INT, price INT) USING iceberg PARTITIONED BY (id) "
        "TBLPROPERTIES ('write.update.mode' = 'copy-on-write', 'write.delete.mode' = 'copy-on-write')"
    )
    sql("INSERT INTO lake.shared.prices VALUES (1, 10), (2, 20), (3, 30)")
    sql("UPDATE lake.shared.prices SET price = 21 WHERE id = 2")
    assert newest(upkept, "lake.shared.prices") == "overwrite"
    assert remembered(upkept, "lake.shared.prices")
    upkept.pipeline.write(
        "definitions/prices.sql",
        "CREATE STREAMING TABLE prices AS SELECT * FROM STREAM(lake.shared.prices);",
    )
    upkept.add()
    files = upkept.folder("shared").rglob("*.avro")
    before = set(files)
    assert begun(run(upkept)) == ["lake.default.prices"]
    assert set(upkept.folder("shared").rglob("*.avro")) == before, "nothing is written into others' folders"
    query = upkept.pipeline.query
    assert query("SELECT * FROM prices") == [(1, 10), (2, 21), (3, 30)]
    sql("INSERT INTO lake.shared.prices VALUES (4, 40)")
    run(upkept)
    assert query("SELECT * FROM prices") == [(1, 10), (2, 21), (3, 30), (4, 40)]


@pytest.mark.parametrize("mixed", [False, True], ids=["plain", "deleted files remembered"])
def test_stopped_in_the_middle_of_it(upkept: Upkept, mixed: bool) -> None:
    """Batch after batch of a version that the table has left when the stream goes on."""
    upkept.set("min_files", "100")
    if mixed:
        compact_one_kind(upkept)
    for _ in range(4):
        upkept.add()
        run(upkept)
    upkept.pipeline.write("definitions/late.py", _LIMITED)
    with upkept.pipeline.opened(Breaking()) as (job, stopped):
        upkept.pipeline.execute(job)
    assert begun(stopped) == ["lake.default.late"]
    assert "third batch" in stopped.failure("late")
    for _ in range(2):
        upkept.add()
        run(upkept)
    check(upkept)
    goes_on(upkept)
