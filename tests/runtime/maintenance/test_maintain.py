"""Expiry beside refreshes, readers and streams: nothing that anybody needs is gone, nothing else stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from pyspark.sql import DataFrame

from tautochrone.errors import CheckpointUnavailableError, LakeError
from tautochrone.iceberg.tables.table import IcebergTable
from tautochrone.model.effects import Step
from tautochrone.model.lake import Expired
from tautochrone.model.names import TableName
from tautochrone.runtime.job.effects import CountingEffects
from tautochrone.runtime.loop.takeover import take_over
from tautochrone.runtime.maintenance.maintain import Maintenance

from .conftest import Upkept

pytestmark = pytest.mark.spark

T = TypeVar("T")


def test_changes_are_followed_over_what_expired(upkept: Upkept) -> None:
    upkept.stream("clean")
    upkept.view("totals")
    upkept.view("odd")
    for turn in range(4):
        upkept.add()
        happened = upkept.pipeline.run()
        assert happened.state == "COMPLETED", happened
        if turn > 2:
            assert [event for event in happened.of("versions_expired") if event["files"]]
            assert not happened.of("maintenance_failed")
            assert happened.mode("totals")[0] == "incremental"
            assert happened.mode("odd")[0] == "append"
            assert happened.mode("clean")[0] == "append"
    compacted = [event for event in happened.of("compacted") if event["dataset"] == "lake.default.events"]
    assert compacted
    assert upkept.ids("events") == list(range(upkept.rows))
    assert upkept.ids("clean") == [n for n in range(upkept.rows) if n % 5]
    upkept.pipeline.verify()
    assert upkept.versions("events") <= 6
    assert upkept.versions("totals") <= 6
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_EXPIRED"):
        upkept.pipeline.query("SELECT * FROM totals", checkpoint=1)


@pytest.mark.slow
def test_a_pinned_reader_is_undisturbed(upkept: Upkept) -> None:
    upkept.add()
    number = upkept.pipeline.run().checkpoints[-1]
    frame = upkept.pipeline.reader.sql("SELECT id FROM events", checkpoint=number)
    before = upkept.rows
    for _ in range(3):
        upkept.add()
        happened = upkept.pipeline.run()
    assert happened.of("checkpoints_expired")[-1]["held"] == {str(number): "CHECKPOINT_PINNED"}
    assert sorted(row[0] for row in frame.collect()) == list(range(before))


def test_what_is_told_dry_is_done(upkept: Upkept) -> None:
    """By a job that does not own the tables: nobody is fenced off, main does not move."""
    upkept.view("totals")
    for _ in range(2):
        upkept.add()
        upkept.pipeline.run()
    upkept.keep_last(1)
    with upkept.pipeline.opened() as (job, _):
        mains = {name: job.lake.load(name).fork() for name in job.graph.order}
        files = upkept.files("events")
        previewed = {f.table: f.versions for f in Maintenance(job).run(dry_run=True)}
        assert upkept.files("events") == files
        done = {f.table: f.versions for f in Maintenance(job).run()}
        assert previewed == done
        assert any(done.values())
        assert not any(f.versions for f in Maintenance(job).run())
        for name, fork in mains.items():
            now = job.lake.load(name).fork()
            assert (now.version, now.commit_metadata) == (fork.version, fork.commit_metadata)
    upkept.add()
    assert upkept.pipeline.run().mode("totals")[0] == "incremental"
    upkept.pipeline.verify()


def test_a_reader_that_pins_at_the_last_moment(upkept: Upkept) -> None:
    """Between the choice of a checkpoint and its mark: the reader was first, so it stays."""
    upkept.add()
    first = upkept.pipeline.run().checkpoints[0]
    upkept.add()
    upkept.pipeline.run()
    upkept.keep_last(1)
    frames: list[DataFrame] = []

    class Racing(CountingEffects):
        def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
            if step is Step.META_EXPIRE and not frames:
                frames.append(upkept.pipeline.reader.sql("SELECT id FROM events", checkpoint=first))
            return super().perform(step, subject, action)

    with upkept.pipeline.opened() as (job, happened):
        job.effects = Racing()
        Maintenance(job).run()
        assert job.store.checkpoints.unexpired(job.name)[0].number == first
    assert not happened.of("checkpoints_expired")
    assert sorted(row[0] for row in frames[0].collect()) == [0, 1, 2]


def test_small_files_are_merged_without_a_run(upkept: Upkept) -> None:
    """By whoever takes the job over; beside an owner nobody moves main."""
    upkept.set("enabled", "false")
    upkept.view("totals")
    for _ in range(2):
        upkept.add()
        upkept.pipeline.run()
    before = len(upkept.files("events", ".parquet"))
    assert before >= 2
    with upkept.pipeline.opened() as (job, happened):
        main = job.lake.load(TableName.parse("lake.default.events")).current_version()
        Maintenance(job).run()
        assert not happened.of("compacted")
        assert job.lake.load(TableName.parse("lake.default.events")).current_version() == main
        take_over(job)
        Maintenance(job).run()
        (event,) = [t for t in happened.of("compacted") if t["dataset"] == "lake.default.events"]
        assert (event["files_before"], event["files_after"]) == (before, 1)
    assert upkept.ids("events") == list(range(upkept.rows))
    upkept.add()
    happened = upkept.pipeline.run()
    assert happened.mode("totals")[0] == "incremental"
    assert upkept.ids("events") == list(range(upkept.rows))
    upkept.pipeline.verify()


def test_a_compaction_that_fails_is_told_and_ends_nothing(upkept: Upkept) -> None:
    upkept.add()
    upkept.pipeline.run()
    upkept.files("events", ".parquet")[0].unlink()
    upkept.add()
    happened = upkept.pipeline.run()
    assert happened.state == "COMPLETED"
    (event,) = happened.of("compaction_skipped")
    assert event["dataset"] == "lake.default.events"
    assert event["reason"].startswith("[LAKE_OPERATION_FAILED]")
    assert event["reason_code"] == "COMPACTION_FAILED"
    assert len(upkept.files("events", ".parquet")) == 1, "what it wrote is removed"


def test_a_table_that_fails_keeps_no_other_waiting(upkept: Upkept, monkeypatch: pytest.MonkeyPatch) -> None:
    expire = IcebergTable.expire

    def broken(table: IcebergTable, *arguments: Any, **more: Any) -> Expired:
        if table.name.table == "events":
            raise LakeError("LAKE_OPERATION_FAILED", "a manifest is gone")
        return expire(table, *arguments, **more)

    monkeypatch.setattr(IcebergTable, "expire", broken)
    upkept.view("totals")
    for _ in range(3):
        upkept.add()
        happened = upkept.pipeline.run()
        assert happened.state == "COMPLETED"
    (event,) = happened.of("maintenance_failed")
    assert event["dataset"] == "lake.default.events"
    assert "a manifest is gone" in event["error"]
    assert "lake.default.totals" in {event["dataset"] for event in happened.of("versions_expired")}
