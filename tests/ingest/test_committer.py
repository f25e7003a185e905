"""One committer per table: waiting batches share a commit; which files a failed commit deletes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from tautochrone.errors import (
    CommitOutcomeUnknownError,
    ConflictError,
    FencedError,
    LakeError,
    MetaError,
    TautochroneError,
)
from tautochrone.ingest.committer import TableCommitter
from tautochrone.model.events import Abort, CleanupFailed, Event, Recommit
from tautochrone.model.lake import CommitMetadata, Committed, Fork, Prepared, Staged
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.source_position import SparkPosition

NAME = TableName("lake", ("default",), "events")
COMMIT_METADATA = CommitMetadata(pipeline="p", job="j", fence=Fence(3), store="s")


@dataclass
class Table:
    """Counts versions; `fails` are raised by the commits to come, `gate` blocks the next fork."""

    name: TableName = NAME
    version: int = 0
    fails: list[Exception] = field(default_factory=list)
    gate: threading.Event | None = None
    entered: threading.Event = field(default_factory=threading.Event)
    commits: list[tuple[str, ...]] = field(default_factory=list)
    metadata: list[CommitMetadata] = field(default_factory=list)
    discarded: list[str] = field(default_factory=list)
    aborted: list[Prepared] = field(default_factory=list)
    refuses: list[Exception] = field(default_factory=list)
    newest: CommitMetadata | None = None

    def fork(self) -> Fork:
        self.entered.set()
        gate, self.gate = self.gate, None
        if gate is not None:
            assert gate.wait(10)
        return Fork(
            table=NAME, version=Version(str(self.version)), fence=Fence(3), commit_metadata=self.newest
        )

    def prepare(self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata) -> Prepared:
        if self.refuses:
            raise self.refuses.pop(0)
        self.commits.append(tuple(str(part.files[0]) for part in staged))
        self.metadata.append(commit_metadata)
        return Prepared(
            table=NAME,
            parent=fork.version,
            version=Version(str(self.version + 1)),
            branch="b",
            commit_metadata=commit_metadata,
            rows=sum(part.rows for part in staged),
        )

    def commit(self, prepared: Prepared, fence: Fence) -> Committed:
        assert fence == 3
        if self.fails:
            raise self.fails.pop(0)
        self.version += 1
        return Committed(
            table=self.name, version=prepared.version, parent=prepared.parent, rows_inserted=prepared.rows
        )

    def commit_metadata_only(self, fork: Fork, commit_metadata: CommitMetadata) -> Committed:
        self.metadata.append(commit_metadata)
        return Committed(table=NAME, version=fork.version, parent=None)

    def raise_fence(self, fork: Fork, commit_metadata: CommitMetadata) -> Committed:
        self.metadata.append(commit_metadata)
        self.version += 1
        return Committed(table=NAME, version=self.current_version(), parent=fork.version)

    fails_to_delete: bool = False
    """Files cannot be deleted."""

    def abort(self, prepared: Prepared) -> None:
        if self.fails_to_delete:
            raise LakeError("LAKE_OPERATION_FAILED", "forbidden")
        self.aborted.append(prepared)

    def current_version(self) -> Version:
        return Version(str(self.version))

    def discard(self, staged: Staged) -> None:
        if self.fails_to_delete:
            raise LakeError("LAKE_OPERATION_FAILED", "forbidden")
        self.discarded.append(str(staged.files[0]))


def staged(file: str, rows: int = 1) -> Staged:
    return Staged(table=NAME, files=[file], rows=rows, at_ms=0)


def position(batch: int) -> SparkPosition:
    return SparkPosition(query_id="q", batch_id=batch, offsets=f"o{batch}", commit="")


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def reported() -> list[str]:
    return []


@pytest.fixture
def emitted() -> list[Event]:
    return []


@pytest.fixture
def committer(table: Table, reported: list[str], emitted: list[Event]) -> TableCommitter:
    def report(versions: Mapping[TableName, Version]) -> None:
        reported.extend(versions.values())

    return TableCommitter(table, COMMIT_METADATA, report, emitted.append)  # type: ignore[arg-type]


def together(committer: TableCommitter, table: Table, *flows: str) -> dict[str, Committed | TautochroneError]:
    """Submit for each flow while the first one holds the commit lock."""
    answers: dict[str, Committed | TautochroneError] = {}

    def submit(flow: str) -> None:
        try:
            answers[flow] = committer.submit(flow, staged(f"file-{flow}"), position(1))
        except TautochroneError as error:
            answers[flow] = error

    gate = table.gate = threading.Event()
    threads = [threading.Thread(target=submit, args=(flow,)) for flow in flows]
    threads[0].start()
    assert table.entered.wait(10)
    for thread in threads[1:]:
        thread.start()
    deadline = time.monotonic() + 10
    while len(committer._waiting) < len(flows) - 1:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    gate.set()
    for thread in threads:
        thread.join(10)
    return answers


def test_single_flow_commits_each_batch(committer: TableCommitter, table: Table, reported: list[str]) -> None:
    done = committer.submit("f", staged("a", 4), position(7))
    assert (done.version, done.rows_inserted) == ("1", 4)
    assert table.metadata[0].positions == {"f": position(7)}
    assert table.metadata[0].fence == 3
    assert reported == ["1"]


def test_batch_brings_what_its_commit_says(committer: TableCommitter, table: Table) -> None:
    of_checkpoint = replace(COMMIT_METADATA, checkpoint=CheckpointNumber(8))
    committer.submit("f", staged("a"), position(1), commit_metadata=of_checkpoint)
    committer.submit("f", staged("b"), position(2))
    assert [metadata.checkpoint for metadata in table.metadata] == [8, None]
    assert table.metadata[0].positions == {"f": position(1)}


def test_waiting_batches_share_one_commit(
    committer: TableCommitter, table: Table, reported: list[str]
) -> None:
    answers = together(committer, table, "first", "x", "y", "z")
    assert [len(files) for files in table.commits] == [1, 3]
    assert set(table.metadata[1].positions) == {"x", "y", "z"}
    assert reported == ["1", "2"]
    assert {flow: a.version for flow, a in answers.items() if isinstance(a, Committed)} == {
        "first": "1",
        "x": "2",
        "y": "2",
        "z": "2",
    }


def test_batch_without_rows_records_positions_only(
    committer: TableCommitter, table: Table, reported: list[str]
) -> None:
    done = committer.submit("f", staged("a", 0), position(1))
    assert done.version == "0"
    assert (table.commits, reported) == ([], [])
    assert table.metadata[0].positions == {"f": position(1)}


def test_conflict_at_prepare_deletes_the_staged_files(
    committer: TableCommitter, table: Table, reported: list[str]
) -> None:
    table.refuses.append(ConflictError("TABLE_MOVED", "m"))
    with pytest.raises(ConflictError):
        committer.submit("f", staged("a"), position(1))
    assert (table.discarded, table.aborted, reported) == (["a"], [], [])
    # The committer can be used again.
    assert committer.submit("f", staged("b"), position(1)).version == "1"


def test_conflict_at_commit_aborts_the_prepared_batch(
    committer: TableCommitter, table: Table, reported: list[str]
) -> None:
    """The files belong to the branch: they go with it, and only if nobody committed it meanwhile."""
    table.fails.append(FencedError("JOB_FENCED", "m"))
    with pytest.raises(FencedError):
        committer.submit("f", staged("a"), position(1))
    assert (table.discarded, len(table.aborted), reported) == ([], 1, [])


@pytest.mark.parametrize("step", ["refuses", "fails"])
def test_failed_cleanup_is_reported_and_the_conflict_is_raised(
    committer: TableCommitter, table: Table, emitted: list[Event], step: str
) -> None:
    table.fails_to_delete = True
    getattr(table, step).append(ConflictError("TABLE_MOVED", "m"))
    with pytest.raises(ConflictError, match="TABLE_MOVED"):
        committer.submit("f", staged("a"), position(1))
    (event,) = emitted
    assert isinstance(event, CleanupFailed)
    assert "forbidden" in event.error


def test_conflict_is_raised_for_every_batch_of_the_group(committer: TableCommitter, table: Table) -> None:
    table.fails = [ConflictError("TABLE_MOVED", "first"), ConflictError("TABLE_MOVED", "second")]
    answers = together(committer, table, "first", "x", "y")
    assert isinstance(answers["x"], ConflictError)
    assert answers["x"] is answers["y"]
    assert len(table.aborted) == 2


@pytest.mark.parametrize(
    "error",
    [
        CommitOutcomeUnknownError("COMMIT_OUTCOME_UNKNOWN", "lost"),
        LakeError("LAKE_OPERATION_FAILED", "forbidden"),
        OSError("broken pipe"),
    ],
)
@pytest.mark.parametrize("step", ["refuses", "fails"])
def test_unclear_outcome_keeps_the_files(
    committer: TableCommitter, table: Table, reported: list[str], error: Exception, step: str
) -> None:
    """They may be in the table, or a new owner may commit them: deleting them would break it."""
    getattr(table, step).append(error)
    with pytest.raises(type(error)):
        committer.submit("f", staged("a"), position(1))
    assert (table.discarded, table.aborted, reported) == ([], [], [])


def test_failed_report_keeps_the_commit(table: Table) -> None:
    def report(_versions: Mapping[TableName, Version]) -> None:
        raise MetaError("META_STORE_BUSY", "busy")

    committer = TableCommitter(table, COMMIT_METADATA, report, lambda _event: None)  # type: ignore[arg-type]
    with pytest.raises(MetaError):
        committer.submit("f", staged("a"), position(1))
    assert table.version == 1
    assert (table.discarded, table.aborted) == ([], [])


class QuarantineTable(Table):
    """A quarantine table: what is prepared waits until it is committed or aborted."""

    def __init__(self) -> None:
        super().__init__(name=TableName("lake", ("default",), "events__quarantine"))
        self.waiting: list[Prepared] = []

    def prepare(self, fork: Fork, staged: Sequence[Staged], commit_metadata: CommitMetadata) -> Prepared:
        prepared_batch = replace(
            super().prepare(fork, staged, commit_metadata), table=self.name, version=Version("b1")
        )
        self.waiting.append(prepared_batch)
        return prepared_batch

    def commit(self, prepared: Prepared, fence: Fence) -> Committed:
        done = replace(super().commit(prepared, fence), table=self.name)
        self.waiting.remove(prepared)
        return done

    def abort(self, prepared: Prepared) -> None:
        super().abort(prepared)
        self.waiting.remove(prepared)

    def prepared(self) -> list[Prepared]:
        return list(self.waiting)


@pytest.fixture
def quarantine_table(committer: TableCommitter) -> QuarantineTable:
    committer.quarantine_table = QuarantineTable()  # type: ignore[assignment]
    return committer.quarantine_table  # type: ignore[return-value]


def test_table_commit_names_the_quarantine_version(
    committer: TableCommitter, table: Table, quarantine_table: QuarantineTable, reported: list[str]
) -> None:
    committer.submit("a", staged("good"), position(1), staged("bad"))
    assert table.metadata[-1].companions == {str(quarantine_table.name): "b1"}
    assert quarantine_table.waiting == []
    assert reported == ["1", "b1"]


def test_batch_of_bad_records_only(
    committer: TableCommitter, table: Table, quarantine_table: QuarantineTable, reported: list[str]
) -> None:
    """A revision takes the bad records back with the position: so that has a version of the table."""
    committer.submit("a", staged("good", rows=0), position(1), staged("bad"))
    assert table.commits == []
    assert table.metadata[-1].companions == {str(quarantine_table.name): "b1"}
    assert quarantine_table.version == 1
    assert reported == ["1", "b1"]


@pytest.mark.parametrize("named", [True, False])
def test_half_done_commit_is_settled_first(
    committer: TableCommitter,
    table: Table,
    quarantine_table: QuarantineTable,
    emitted: list[Event],
    named: bool,
) -> None:
    """The next start finds out from the table whether its batch is in."""
    failing = quarantine_table if named else table
    failing.fails.append(CommitOutcomeUnknownError("COMMIT_OUTCOME_UNKNOWN", "no answer"))
    with pytest.raises(CommitOutcomeUnknownError):
        committer.submit("a", staged("good"), position(1), staged("bad"))
    (left,) = quarantine_table.waiting
    table.newest = table.metadata[-1] if named else COMMIT_METADATA
    committer.settle_quarantine_table()
    assert quarantine_table.waiting == []
    assert [type(event) for event in emitted] == [Recommit if named else Abort]
    assert (left in quarantine_table.aborted) is not named
    committer.settle_quarantine_table()
    assert len(emitted) == 1


def test_failed_quarantine_prepare_leaves_no_files(
    committer: TableCommitter, table: Table, quarantine_table: QuarantineTable
) -> None:
    quarantine_table.refuses.append(ConflictError("TABLE_MOVED", "compacted"))
    with pytest.raises(ConflictError):
        committer.submit("a", staged("good"), position(1), staged("bad"))
    assert (quarantine_table.discarded, table.discarded, table.commits) == (["bad"], ["good"], [])
    committer.submit("a", staged("good"), position(1), staged("bad"))
    assert quarantine_table.version == 1


def test_batch_of_a_newer_owner_is_not_touched(
    committer: TableCommitter, table: Table, quarantine_table: QuarantineTable
) -> None:
    table.fails.append(CommitOutcomeUnknownError("COMMIT_OUTCOME_UNKNOWN", "no answer"))
    with pytest.raises(CommitOutcomeUnknownError):
        committer.submit("a", staged("good"), position(1), staged("bad"))
    quarantine_table.waiting = [
        replace(quarantine_table.waiting[0], commit_metadata=replace(COMMIT_METADATA, fence=Fence(4)))
    ]
    with pytest.raises(FencedError):
        committer.settle_quarantine_table()
    assert len(quarantine_table.waiting) == 1
    assert quarantine_table.aborted == []
