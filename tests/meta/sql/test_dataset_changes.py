"""Drops and renames in the store: who still needs a dataset, and that no row names it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, String, Text, insert, select, update

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import DatasetEntry, MetaStore, TableRole
from tautochrone.meta.database import tables as t
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import InvariantEntry, Refresh, RefreshMode
from tautochrone.model.dataset_change import DatasetChange, StoredTable
from tautochrone.model.definitions import ColumnLineage, ColumnRef, DatasetDetails
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.model.run_report import CaptureReport, FlowFailure, Quarantine, RunReport
from tautochrone.model.sink import Intent, Published, SinkDeclaration, TransactionId
from tautochrone.model.source import SkippedFiles, SkipReason

OLD, NEW, VIEW, MORE = (TableName("lake", ("db",), name) for name in ("old", "new", "totals", "more"))
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
STORED = StoredTable(table=OLD, identity="i", folder="file:/w/old", metadata="file:/w/old/m.json")
DROP = DatasetChange(dataset=OLD, job="job", tables=(STORED,))
RENAME = DatasetChange(dataset=OLD, job="job", renamed_to=NEW, tables=(STORED,))
ENTRY = DatasetEntry(OLD, "streaming table", "a", is_root=True)
OVER = DatasetEntry(VIEW, "materialized view", "b", frozenset({OLD}))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetaStore]:
    """`old` and a view over it, with everything that is recorded of tables: checkpoints, a failure, details,
    skipped files, a report, a delivery, a pin that is over, an invariant."""
    clock_ms = [5_000]
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db", clock=lambda: clock_ms[0]) as store:
        invariant = InvariantEntry(
            name="no_gaps", location="i.sql:1", definition="d", tables=frozenset({OLD})
        )
        store.jobs.start_run("shop", "job", [ENTRY, OVER], invariants=[invariant])
        fence = store.jobs.take_over("job", ingests=[OLD])
        for number in (1, 2):
            opened = store.checkpoints.open(
                "job", fence, NewCheckpoint({OLD: Version(f"o{number}")}, number)
            ).number
            store.roots.report("job", fence, {OLD: Version(f"o{number}")})
            store.checkpoints.record_version("job", fence, opened, VIEW, Version(f"v{number}"), FULL)
            store.checkpoints.publish("job", fence, opened, number)
        store.jobs.heartbeat("job", fence, observed_ms=900, observations={OLD: 800}, checkpoint=2)
        store.datasets.record_skipped_files(
            "job", fence, OLD, "old", [SkippedFiles("old", SkipReason.MISSING, 1, ("file:///in/a",))]
        )
        lineage = ColumnLineage(values={"n": frozenset({ColumnRef(OLD, "x")})})
        for name in (OLD, VIEW):
            details = DatasetDetails(
                dataset=name, definition="b", location="a.sql:1", text="SELECT 1", columns=(), lineage=lineage
            )
            store.datasets.describe("job", fence, [details])
        deliver(store, fence)
        store.reads.resolve(lease_ms=1, owner="over")
        clock_ms[0] = 6_000
        yield store


def deliver(store: MetaStore, fence: Fence) -> None:
    sink = store.deliveries.claim(
        "job", fence, SinkDeclaration(name="mirror", format="toy", tables=(OLD, VIEW)), Fence(0)
    )
    transaction = TransactionId(
        incarnation=store.incarnation, sink="mirror", checkpoint=CheckpointNumber(2), fence=sink, attempt=1
    )
    versions = {OLD: Version("o2"), VIEW: Version("v2")}
    store.deliveries.record_delivered(
        "job", fence, "mirror", sink, Published(transaction=transaction, versions=versions)
    )
    store.deliveries.record_intent("job", fence, Intent(transaction=transaction, versions=versions))


def naming(store: MetaStore, name: TableName) -> list[str]:
    """The columns in which a row names the dataset."""

    def in_columns(connection: Connection) -> Iterator[str]:
        for table in t.metadata.sorted_tables:
            for row in connection.execute(select(table)).mappings():
                for column in table.columns:
                    value = row[column.name]
                    is_text = isinstance(column.type, String | Text)
                    if value == str(name) if is_text else f"'{name}'" in repr(value):
                        yield f"{table.name}.{column.name}"

    with store._database.read() as connection:
        return sorted({*in_columns(connection)})


def without_readers(store: MetaStore) -> Fence:
    """The job has neither the dataset nor what reads it any more."""
    store.jobs.start_run("shop", "job", [DatasetEntry(MORE, "streaming table", "c")])
    return store.jobs.take_over("job")


def test_a_drop_leaves_no_row(store: MetaStore) -> None:
    before = naming(store, OLD)
    assert {"versions.table_name", "deliveries.versions", "jobs.observations"} <= {*before}
    fence = without_readers(store)
    store.datasets.decide_changes("job", fence, [DROP])
    store.datasets.decide_changes("job", fence, [DROP])
    assert store.datasets.pending_changes() == (DROP,)
    assert OLD not in store.reads.published_versions(2)
    assert OLD not in store.checkpoints.get(CheckpointNumber(1)).roots
    store.datasets.complete_changes("job", fence, [OLD], {})
    store.datasets.complete_changes("job", fence, [OLD], {})
    assert store.datasets.pending_changes() == ()
    # An intent says what a transaction is about to do, a pin that is over and lineage what was so.
    assert naming(store, OLD) == ["dataset_details.column_lineage", "deliveries.intent", "pins.versions"]


def test_a_rename_leaves_no_row(store: MetaStore) -> None:
    before = naming(store, OLD)
    fence = store.jobs.take_over("job")
    store.datasets.decide_changes("job", fence, [RENAME])
    assert OLD in store.reads.published_versions(2)
    store.datasets.complete_changes("job", fence, [OLD], {"old": "new"})
    store.datasets.complete_changes("job", fence, [OLD], {"old": "new"})
    assert naming(store, OLD) == []
    assert naming(store, NEW) == before
    assert store.reads.published_versions(1)[NEW] == Version("o1")
    assert [files.flow for files in store.datasets.skipped_files(NEW)] == ["new"]
    assert store.datasets.lineage(VIEW).inputs == {NEW}


def test_nothing_replaces_a_decision(store: MetaStore) -> None:
    fence = without_readers(store)
    for decided, other in ((RENAME, DROP), (DROP, RENAME)):
        store.datasets.decide_changes("job", fence, [decided])
        with pytest.raises(MetaError, match="DATASET_CHANGE_UNFINISHED") as refused:
            store.datasets.decide_changes("job", fence, [other])
        assert refused.value.hint is not None
        assert decided.command in refused.value.hint
        assert store.datasets.pending_changes() == (decided,)
        with store._database.write() as connection:
            connection.execute(update(t.datasets).values(pending_change=None))


def test_a_retired_dataset_keeps_the_id_of_its_table(store: MetaStore) -> None:
    fence = store.jobs.take_over("job")
    store.datasets.record_table_ids("job", fence, {OLD: "a", VIEW: "b"})
    fence = without_readers(store)
    store.datasets.record_table_ids("job", fence, {MORE: "c"})
    assert store.datasets.table_id(OLD) == "a"
    assert store.datasets.table_ids("job") == {MORE: "c"}


def test_names_of_changes_are_not_registered_meanwhile(store: MetaStore) -> None:
    fence = without_readers(store)
    store.datasets.decide_changes("job", fence, [DROP])
    store.jobs.start_run("shop", "job", [DatasetEntry(MORE, "streaming table", "c")])
    with pytest.raises(MetaError, match=r"DATASET_CHANGE_UNFINISHED.*being dropped"):
        store.jobs.start_run("shop", "job", [ENTRY])
    store.datasets.complete_changes("job", fence, [OLD], {})
    store.jobs.start_run("shop", "job", [ENTRY])
    store.datasets.decide_changes("job", fence, [RENAME])
    for entries in ([ENTRY], [DatasetEntry(NEW, "streaming table", "a")], []):
        with pytest.raises(MetaError, match=r"DATASET_CHANGE_UNFINISHED.*renamed"):
            store.jobs.start_run("shop", "job", entries)


def test_who_reads_what_is_renamed_waits(store: MetaStore) -> None:
    reads = {
        name: DatasetEntry(MORE, "materialized view", "c", frozenset({name})) for name in (OLD, NEW, VIEW)
    }
    store.registrations.register("etl", MORE, TableRole.SINK)
    store.registrations.register("etl", OLD, TableRole.SOURCE)
    fence = store.jobs.take_over("job")
    store.datasets.decide_changes("job", fence, [RENAME])
    for name in (OLD, NEW):
        with pytest.raises(MetaError, match=r"DATASET_CHANGE_UNFINISHED.*renamed"):
            store.jobs.start_run("side", "side", [reads[name]])
    with pytest.raises(MetaError, match=r"DATASET_CHANGE_UNFINISHED.*renamed"):
        store.registrations.start("etl")
    store.datasets.complete_changes("job", fence, [OLD], {})
    store.registrations.start("etl")


def test_what_was_recorded_of_the_new_name_meanwhile_gives_way(store: MetaStore) -> None:
    store.jobs.start_run("side", "side", [DatasetEntry(MORE, "materialized view", "c", frozenset({OLD}))])
    side = store.jobs.take_over("side")
    fence = store.jobs.take_over("job")
    store.datasets.decide_changes("job", fence, [RENAME])
    for name in (OLD, NEW):
        store.registrations.register("etl", name, TableRole.SOURCE)
    with store._database.write() as connection:
        connection.execute(insert(t.dataset_inputs).values(dataset=str(MORE), input=str(NEW)))
    store.roots.observe_external_table("side", side, NEW, None, Version("o2"))
    store.checkpoints.open("side", side, NewCheckpoint({NEW: Version("o2")}, 3))
    store.datasets.complete_changes("job", fence, [OLD], {})
    assert naming(store, OLD) == []
    assert NEW not in store.roots.external_versions()
    assert store.datasets.lineage(MORE).inputs == {NEW}
    with store._database.read() as connection:
        versions = connection.execute(select(t.versions).where(t.versions.c.table_name == str(NEW))).all()
    assert [row.job for row in versions if row.to_checkpoint is None] == ["job"]


def read_by_another_job(store: MetaStore) -> None:
    store.jobs.start_run("side", "side", [DatasetEntry(VIEW, "materialized view", "c", frozenset({OLD}))])


def checked_by_another_job(store: MetaStore) -> None:
    invariant = InvariantEntry(name="sums", location="i.sql:1", definition="d", tables=frozenset({OLD}))
    store.jobs.start_run(
        "side", "side", [DatasetEntry(NEW, "materialized view", "c")], invariants=[invariant]
    )


def registered_as_source(store: MetaStore) -> None:
    store.registrations.register("etl", OLD, TableRole.SOURCE)


def mirrored_by_another_job(store: MetaStore) -> None:
    store.jobs.start_run("side", "side", [DatasetEntry(NEW, "materialized view", "c")])
    fence = store.jobs.take_over("side")
    store.deliveries.claim(
        "side", fence, SinkDeclaration(name="far", format="toy", tables=(NEW, OLD)), Fence(0)
    )


def pinned(store: MetaStore) -> None:
    store.reads.resolve(tables=[OLD], checkpoint=2, lease_ms=60_000, owner="a dashboard")


def taken_back(store: MetaStore) -> None:
    reverted = RevisedTable(
        table=OLD, action=RevisionAction.ROLL_BACK, reason="wrong", job="job", version=Version("o1")
    )
    fence = store.jobs.newest_fence("job")
    store.revisions.decide("wrong1", RevisionPlan(to=CheckpointNumber(1), tables=(reverted,)), {"job": fence})
    store.revisions.complete("wrong1")


@pytest.mark.parametrize(
    ("need", "refusal"),
    [
        (read_by_another_job, "DATASET_STILL_READ.*totals of job side"),
        (checked_by_another_job, "DATASET_STILL_READ.*invariant sums of job side"),
        (registered_as_source, "DATASET_STILL_READ.*job etl"),
        (mirrored_by_another_job, "DATASET_STILL_READ.*sink far of job side"),
        (pinned, "DATASET_PINNED.*a dashboard"),
        (taken_back, "DATASET_IN_REVISION.*wrong1"),
    ],
)
def test_who_needs_it_is_named(store: MetaStore, need: Callable[[MetaStore], None], refusal: str) -> None:
    fence = without_readers(store)
    need(store)
    with pytest.raises(MetaError, match=refusal):
        store.datasets.require_unused([OLD], except_job="job")
    before = naming(store, OLD)
    with pytest.raises(MetaError, match=refusal):
        store.datasets.decide_changes("job", fence, [DROP])
    assert naming(store, OLD) == before
    assert store.datasets.pending_changes() == ()


def test_what_is_dropped_together_may_read_each_other(store: MetaStore) -> None:
    fence = without_readers(store)
    store.jobs.start_run("shop", "job", [ENTRY, OVER])
    with pytest.raises(MetaError, match="DATASET_STILL_READ"):
        store.datasets.decide_changes("job", fence, [DROP])
    store.datasets.decide_changes("job", fence, [DROP, DatasetChange(dataset=VIEW, job="job")])
    assert {change.dataset for change in store.datasets.pending_changes()} == {OLD, VIEW}


def test_only_the_owner_decides_and_only_of_its_own(store: MetaStore) -> None:
    older = store.jobs.newest_fence("job")
    fence = without_readers(store)
    with pytest.raises(FencedError):
        store.datasets.decide_changes("job", older, [DROP])
    store.jobs.start_run("side", "side", [DatasetEntry(NEW, "materialized view", "c")])
    side = store.jobs.take_over("side")
    with pytest.raises(MetaError, match="DATASET_OWNED_BY_ANOTHER_JOB"):
        store.datasets.decide_changes("side", side, [DatasetChange(dataset=OLD, job="side")])
    with pytest.raises(MetaError, match="RENAME_TARGET_EXISTS"):
        store.datasets.decide_changes("job", fence, [RENAME])


def test_reports_of_runs_are_renamed(store: MetaStore) -> None:
    fence = store.jobs.take_over("job")
    report = RunReport(
        flows={"old": FlowFailure(dataset=str(OLD), error="x", since_ms=1)},
        captures={str(OLD): CaptureReport(source="pg", dataset=str(OLD), phase="streaming")},
        quarantines={str(OLD): Quarantine(table=str(OLD), records=1, reason=unclassified("x"), last_ms=2)},
    )
    store.jobs.heartbeat("job", fence, report=report)
    store.datasets.decide_changes("job", fence, [RENAME])
    store.datasets.complete_changes("job", fence, [OLD], {"old": "new"})
    renamed = store.jobs.report("job")
    assert renamed is not None
    assert renamed.captures.keys() == renamed.quarantines.keys() == {str(NEW)}
    assert renamed.flows["old"].dataset == str(NEW)


def test_one_of_two_drops_is_completed(store: MetaStore) -> None:
    fence = without_readers(store)
    other = DatasetChange(dataset=VIEW, job="job")
    store.datasets.decide_changes("job", fence, [DROP])
    store.datasets.decide_changes("job", fence, [other])
    store.datasets.complete_changes("job", fence, [OLD], {})
    assert store.datasets.pending_changes() == (other,)
