"""The calls of the store that cross the wire: which only read, and a way through each that writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tautochrone.meta import DatasetEntry, LakeVersion, Store, TableRole
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import BrokenInvariant, InvariantEntry, Refresh, RefreshMode, SourceTime
from tautochrone.model.dataset_change import DatasetChange
from tautochrone.model.definitions import ColumnLineage, DatasetDetails, ExpectationCount, ViolationAction
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.project_build import BuiltTable, ProjectBuild, RowComparison, RowSample, ViewOfBuild
from tautochrone.model.project_plan import ColumnChange, ColumnChangeKind, DefinitionChange
from tautochrone.model.reason import unclassified
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.model.run_report import RunEnd, RunReport
from tautochrone.model.sink import (
    Intent,
    Published,
    SinkDeclaration,
    SinkFlow,
    TransactionId,
    TransactionState,
)
from tautochrone.model.source import SkippedFiles, SkipReason
from tautochrone.model.transactions import CLIENT, TransactionChunk, TransactionOperation

ROOT, VIEW, OUTSIDER = (TableName("lake", ("db",), name) for name in ("orders", "totals", "outsider"))
RENAMED = TableName("lake", ("db",), "sums")
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
TOPOLOGY = [
    DatasetEntry(ROOT, "streaming table", "a"),
    DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})),
]
SKIPPED = SkippedFiles("flow", SkipReason.MISSING, 1, ("file:///in/a",))
READS = {
    "alarms.changed_after", "alarms.current", "alarms.resolved",
    "builds.get", "builds.look_up", "builds.of_job", "builds.remembered",
    "jobs.report",
    "checkpoints.busy_jobs", "checkpoints.cut_times", "checkpoints.failures_at", "checkpoints.get",
    "checkpoints.highest_used_number", "checkpoints.last_done", "checkpoints.latest_done",
    "checkpoints.latest_published", "checkpoints.newest", "checkpoints.next_for", "checkpoints.progress",
    "checkpoints.states",
    "checkpoints.unexpired", "checkpoints.versions_at", "datasets.details", "datasets.details_of_job",
    "datasets.registered", "datasets.retired", "datasets.retired_table_ids",
    "checkpoints.neighbours", "checkpoints.readable_before", "history.newest_refreshes",
    "history.refreshed_between", "history.totals",
    "datasets.columns", "datasets.lineage", "datasets.skipped_files",
    "datasets.statuses", "datasets.job_of", "datasets.pending_changes", "datasets.readers",
    "datasets.require_unused",
    "datasets.table_id", "datasets.table_ids", "deliveries.sinks",
    "history.delays", "history.newest_refresh_id",
    "history.recent_refreshes", "history.refreshes", "history.refreshes_after", "history.refreshes_at",
    "history.timeline", "incarnation", "invariants.registered", "invariants.last_check", "jobs.registered",
    "jobs.newest_fence", "jobs.owner_process", "jobs.require_free", "jobs.states", "now_ms", "pins.live",
    "pins.followed_versions", "pins.pinned_checkpoints", "pins.retained_versions", "reads.knows",
    "reads.missing_reason", "reads.newest_versions", "reads.publication_blockers",
    "reads.published_versions", "recovery.compare",
    "recovery.is_empty", "revisions.decided_after", "revisions.find", "revisions.get",
    "revisions.last_complete", "revisions.newest_decision", "revisions.pending",
    "revisions.published_after", "roots.aligned_cut", "roots.external_versions",
    "roots.report_times", "roots.reported", "roots.shared_clocks", "roots.tables_of_other_jobs",
    "schema_revision", "transactions.chunks", "transactions.due", "transactions.ended", "transactions.find",
    "transactions.get", "transactions.is_forgotten", "transactions.serial",
}  # fmt: skip
"""Methods that change nothing: they may be asked as often as one likes."""

SINK = SinkDeclaration(name="mirror", format="toy", tables=(VIEW,))
TRANSACTION = TransactionId(
    incarnation="i", sink="mirror", checkpoint=CheckpointNumber(1), fence=Fence(1), attempt=1
)


def claimed(store: Store, fence: Fence) -> Fence:
    """The sink's fence, set: a lost answer raises it once more."""
    store.deliveries.claim("job", fence, SINK, Fence(0))
    return next(sink.fence for sink in store.deliveries.sinks())


def intended(store: Store, fence: Fence) -> Fence:
    claimed(store, fence)
    store.deliveries.record_intent(
        "job", fence, Intent(transaction=TRANSACTION, versions={VIEW: Version("v")})
    )
    return TRANSACTION.fence


def begun(store: Store) -> TransactionState:
    return store.transactions.begin("t", "loader", 1, 10**9, CLIENT)


def deciding(store: Store) -> TransactionState:
    begun(store)
    return store.transactions.commit("t", "loader", 1)


def opened(store: Store, fence: Fence, version: int = 1) -> CheckpointNumber:
    return store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version(f"r{version}")}, version)).number


def whole(store: Store, fence: Fence, version: int = 1) -> CheckpointNumber:
    number = opened(store, fence, version)
    store.checkpoints.record_version(
        "job", fence, number, VIEW, Version(f"v{version}"), FULL, finished_at_ms=version
    )
    store.checkpoints.publish("job", fence, number, version)
    return number


def failed(store: Store, fence: Fence) -> CheckpointNumber:
    number = opened(store, fence)
    store.checkpoints.record_failure(
        "job", fence, number, VIEW, unclassified("boom"), RefreshMode.DIFF, finished_at_ms=3
    )
    return number


def repaired(store: Store, fence: Fence) -> None:
    number = failed(store, fence)
    store.checkpoints.publish("job", fence, number, 4)
    store.checkpoints.record_version("job", fence, number, VIEW, Version("late"), FULL, finished_at_ms=5)


def expired(store: Store, fence: Fence) -> None:
    first = whole(store, fence, 1)
    whole(store, fence, 2)
    store.checkpoints.expire(first)


def forgotten(store: Store, fence: Fence) -> None:
    expired(store, fence)
    store.checkpoints.forget_expired("job", kept=0)


def pinned(store: Store, fence: Fence) -> tuple[Any, ...]:
    whole(store, fence)
    resolved = store.reads.resolve(tables=[VIEW], lease_ms=50_000)
    store.pins.renew(resolved.pin, 60_000)
    return resolved.checkpoint, resolved.versions, resolved.behind


def released(store: Store, fence: Fence) -> None:
    whole(store, fence)
    store.pins.release(store.reads.resolve().pin)


def rebuilt(store: Store, _fence: Fence) -> object:
    commit_metadata = CommitMetadata(
        pipeline="shop",
        job="other",
        fence=Fence(3),
        store="lost",
        checkpoint=CheckpointNumber(5),
        inputs={str(ROOT): "r1"},
    )
    return store.recovery.rebuild(
        {VIEW: [LakeVersion(version=Version("v1"), commit_metadata=commit_metadata, committed_at_ms=50)]}
    )


def reconciled(store: Store, fence: Fence) -> object:
    whole(store, fence)
    commit_metadata = CommitMetadata(
        pipeline="shop",
        job="job",
        fence=Fence(30),
        store="another",
        checkpoint=CheckpointNumber(5),
        inputs={str(ROOT): "r5"},
    )
    lake = {VIEW: [LakeVersion(version=Version("v5"), commit_metadata=commit_metadata, committed_at_ms=50)]}
    store.recovery.reconcile("job", lake)
    return store.checkpoints.highest_used_number(), store.checkpoints.versions_at(5)


def decided(store: Store, fence: Fence) -> None:
    first = whole(store, fence, 1)
    whole(store, fence, 2)
    taken_back = RevisedTable(
        table=VIEW, action=RevisionAction.ROLL_BACK, reason="wrong", job="job", version=Version("v1")
    )
    store.revisions.decide("one", RevisionPlan(to=first, tables=(taken_back,)), {"job": fence})


def confirmed(store: Store, fence: Fence) -> None:
    decided(store, fence)
    store.revisions.complete("one")
    store.revisions.confirm("one")


def copied(store: Store, fence: Fence) -> None:
    whole(store, fence)
    # Each answer is an incarnation of its own.
    store.jobs.become_copy("file:/copy")


def renamed(store: Store, fence: Fence) -> None:
    store.jobs.end_run("job", fence)
    store.jobs.rename_pipeline("shop", "renamed")


def registered(store: Store, _fence: Fence) -> None:
    store.registrations.register("etl", OUTSIDER, TableRole.SINK)
    store.registrations.start("etl")
    store.registrations.unregister("etl")


def alarmed(store: Store, fence: Fence) -> int:
    """The number of the alarm about a run that an error ended."""
    store.jobs.end_run("job", fence, RunEnd(error="No space left"))
    (alarm,) = store.alarms.evaluate()
    assert alarm.id is not None
    return alarm.id


def changed(store: Store, fence: Fence) -> None:
    """The view gets another name, and the table is dropped."""
    store.datasets.decide_changes(
        "job",
        fence,
        [
            DatasetChange(dataset=VIEW, job="job", renamed_to=RENAMED),
            DatasetChange(dataset=OUTSIDER, job="job"),
        ],
    )
    store.datasets.complete_changes("job", fence, [VIEW, OUTSIDER], {"totals": "sums"})


DETAILS = DatasetDetails(
    dataset=VIEW, definition="b", location="a.sql:1", text="SELECT 1", columns=(), lineage=ColumnLineage()
)

INVARIANT = InvariantEntry(name="one", location="i/one.sql:1", definition="d", tables=frozenset({VIEW}))
BROKEN = BrokenInvariant(name="one", location="i/one.sql:1", rows=1, sample=("a=1",))

BUILD = ProjectBuild(id="0123abcd", job="job", base=CheckpointNumber(1), created=(RENAMED,))
BUILT = BuiltTable(
    table=VIEW,
    version=Version("b1"),
    definition="c",
    replaces="b",
    inputs={ROOT: Version("r1")},
    violations={"some": 2},
)

SEEN = ViewOfBuild(
    table=VIEW,
    change=DefinitionChange.CHANGED,
    reason=unclassified("the definition changed"),
    difference=("-a", "+b"),
    columns=(ColumnChange(name="n", kind=ColumnChangeKind.ADDED, after="bigint"),),
    comparison=RowComparison(
        added=1,
        removed=2,
        changed_values={"n": 1},
        samples=(RowSample(sign="+", columns=("n",), rows=(("1",), (None,))),),
    ),
)


def built(store: Store, fence: Fence) -> None:
    whole(store, fence)
    store.builds.begin(BUILD)
    store.builds.finish(replace(BUILD.with_table(BUILT), definitions={str(VIEW): "c"}, problems=("one",)))


def built_and_decided(store: Store, fence: Fence) -> None:
    built(store, fence)
    store.builds.decide("job", fence, BUILD.id)


WRITES: dict[str, Callable[[Store, Fence], object]] = {
    "jobs.start_run": lambda store, fence: store.jobs.start_run(
        "shop", "job", TOPOLOGY[:1], invariants=[INVARIANT], fence=fence
    ),
    "jobs.take_over": lambda store, _fence: store.roots.report(
        "job", store.jobs.take_over("job"), {ROOT: Version("r")}
    ),
    "jobs.heartbeat": lambda store, fence: store.jobs.heartbeat(
        "job", fence, observed_ms=900, observations={ROOT: 800}, checkpoint=opened(store, fence)
    ),
    "roots.report_source_times": lambda store, fence: (
        store.roots.report("job", fence, {ROOT: Version("r1")}),
        store.roots.report_source_times("job", fence, {ROOT: (SourceTime(version=Version("r1"), at_ms=7),)}),
    ),
    "jobs.end_run": lambda store, fence: store.jobs.end_run("job", fence, RunEnd(error="x"), RunReport()),
    "jobs.record_failed_start": lambda store, fence: (
        store.jobs.end_run("job", fence),
        store.jobs.record_failed_start("job", RunEnd(error="no such column")),
    ),
    "alarms.evaluate": alarmed,
    "alarms.acknowledge": lambda store, fence: store.alarms.acknowledge(alarmed(store, fence), "ann"),
    "alarms.claim_notifications": lambda store, fence: (
        alarmed(store, fence),
        # A message whose claim was lost is due again when the claim is over.
        store.alarms.claim_notifications("ops", 1_000),
        None,
    )[2:],
    "alarms.record_notified": lambda store, fence: store.alarms.record_notified(
        alarmed(store, fence), "ops", "fired", "HTTP 500", attempts=2, retry_ms=10
    ),
    "roots.observe_external_table": lambda store, fence: (
        store.roots.observe_external_table("job", fence, OUTSIDER, None, Version("o1")),
        store.roots.observe_external_table("job", fence, OUTSIDER, Version("o1"), Version("o2")),
    ),
    "checkpoints.begin_next": lambda store, fence: (
        opened(store, fence),
        store.checkpoints.begin_next("job", fence),
    ),
    "checkpoints.record_wait": lambda store, fence: store.checkpoints.record_wait(
        "job", fence, opened(store, fence), "another"
    ),
    "roots.report": lambda store, fence: store.roots.report(
        "job", fence, {ROOT: Version("r1"), VIEW: Version("x")}
    ),
    "checkpoints.open": lambda store, fence: store.checkpoints.open(
        "job", fence, NewCheckpoint({ROOT: Version("r")}, 7)
    ),
    "checkpoints.record_version": whole,
    "checkpoints.record_failure": failed,
    "checkpoints.publish": whole,
    "checkpoints.abort": lambda store, fence: store.checkpoints.abort(
        "job", fence, opened(store, fence), broken=[BROKEN]
    ),
    "checkpoints.revoke": lambda store, fence: store.checkpoints.revoke("job", fence, whole(store, fence)),
    "reads.resolve": pinned,
    "pins.renew": pinned,
    "pins.release": released,
    "checkpoints.expire": expired,
    "checkpoints.forget_expired": forgotten,
    "recovery.reconcile": reconciled,
    "datasets.record_table_ids": lambda store, fence: store.datasets.record_table_ids(
        "job", fence, {VIEW: "one"}
    ),
    "datasets.decide_changes": changed,
    "datasets.complete_changes": changed,
    "recovery.rebuild": rebuilt,
    "revisions.decide": decided,
    "revisions.complete": confirmed,
    "revisions.confirm": confirmed,
    "registrations.register": registered,
    "registrations.start": registered,
    "registrations.unregister": registered,
    "jobs.become_copy": copied,
    "jobs.move_lake": lambda store, fence: store.jobs.move_lake("shop", "file:/moved"),
    "jobs.rename_pipeline": renamed,
    "datasets.describe": lambda store, fence: store.datasets.describe("job", fence, [DETAILS]),
    "datasets.record_skipped_files": lambda store, fence: store.datasets.record_skipped_files(
        "job", fence, ROOT, "flow", [SKIPPED]
    ),
    "datasets.record_expectations": lambda store, fence: store.datasets.record_expectations(
        "job", fence, ROOT, [ExpectationCount("known", ViolationAction.DROP, 3, 1)]
    ),
    "builds.begin": built,
    "builds.finish": built,
    "builds.decide": built_and_decided,
    "builds.approve": lambda store, fence: (
        built(store, fence),
        store.builds.finish(replace(BUILD.with_table(BUILT), views=(SEEN,))),
        store.jobs.end_run("job", fence),
        store.builds.approve(BUILD.id),
    ),
    "builds.complete": lambda store, fence: (
        built_and_decided(store, fence),
        store.builds.complete("job", fence, BUILD.id),
    ),
    "builds.remove": lambda store, fence: (built(store, fence), store.builds.remove(BUILD.job, BUILD.id)),
    "deliveries.claim": lambda store, fence: (claimed(store, fence), None)[1:],
    "deliveries.retire_others": lambda store, fence: (
        claimed(store, fence),
        store.deliveries.retire_others("job", fence, []),
    )[1:],
    "deliveries.record_intent": intended,
    "deliveries.end_intent": lambda store, fence: store.deliveries.end_intent(
        "job", fence, "mirror", intended(store, fence)
    ),
    "deliveries.record_delivered": lambda store, fence: store.deliveries.record_delivered(
        "job", fence, "mirror", claimed(store, fence), Published(transaction=TRANSACTION)
    ),
    "deliveries.record_streamed": lambda store, fence: store.deliveries.record_streamed(
        "job",
        fence,
        "mirror",
        claimed(store, fence),
        {"flow": SinkFlow(batch=3, rows=20)},
        CheckpointNumber(1),
        {ROOT: Version("v1")},
    ),
    "deliveries.record_failure": lambda store, fence: store.deliveries.record_failure(
        "job", fence, "mirror", claimed(store, fence), "it is away", failures=2
    ),
    "deliveries.forget": lambda store, fence: (
        claimed(store, fence),
        store.jobs.end_run("job", fence),
        store.deliveries.forget("mirror"),
    )[1:],
    "transactions.fence": lambda store, _: store.transactions.fence("loader", 2),
    "transactions.roll_back_older_runs": lambda store, _: (
        begun(store),
        len(store.transactions.roll_back_older_runs("loader", 2)),
    )[1:],
    "transactions.begin": lambda store, _: begun(store),
    "transactions.write": lambda store, _: (
        begun(store),
        store.transactions.write("t", "loader", 1, TransactionChunk(id="1", table="x", rows=2, hash="ab")),
    ),
    "transactions.prepare": lambda store, _: (begun(store), store.transactions.prepare("t", "loader", 1)),
    "transactions.commit": lambda store, _: deciding(store),
    "transactions.rollback": lambda store, _: store.transactions.rollback("t", "loader", 1),
    "transactions.confirm": lambda store, _: (
        deciding(store),
        store.transactions.confirm("t", "loader", 1),
    ),
    "transactions.fail": lambda store, _: (
        deciding(store),
        store.transactions.fail("t", "loader", 1, "away", 1, 3).failures,
    ),
    "transactions.record_failure": lambda store, _: (
        deciding(store),
        store.transactions.record_failure("t", "away", 1, 3, 100),
        None,
    )[2:],
    "transactions.settle": lambda store, _: (
        begun(store),
        store.transactions.settle("t", TransactionOperation.ROLLBACK),
    ),
    "transactions.roll_back_expired": lambda store, _: (
        store.transactions.begin("t", "loader", 1, 0),
        store.transactions.roll_back_expired(),
        None,
    )[2:],
    "transactions.forget_ended": lambda store, _: (
        store.transactions.rollback("t", "loader", 1),
        store.transactions.forget_ended(2**52),
    )[1:],
    "transactions.delete_chunks_of_ended_transactions": lambda store, _: (
        store.transactions.delete_chunks_of_ended_transactions(0)
    ),
}
"""A way through each method that writes. What its repeat may leave behind is in `observations`."""
