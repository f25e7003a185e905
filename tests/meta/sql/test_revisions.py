"""Revisions in the store: one transaction decides and revokes; what readers see from then on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tautochrone.errors import CheckpointUnavailableError, ConflictError, FencedError, MetaError
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState, Consistency, Refresh, RefreshMode
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan, RevisionState

ROOT = TableName("lake", ("db",), "orders")
VIEW = TableName("lake", ("db",), "totals")
APART = TableName("lake", ("db",), "apart")
OTHER = TableName("lake", ("db",), "other")
DONE = Refresh(mode=RefreshMode.APPEND, reason=unclassified(""))
TOPOLOGY = (
    DatasetEntry(ROOT, "streaming table", "a"),
    DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT})),
    DatasetEntry(APART, "materialized view", "c"),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as opened:
        opened.jobs.start_run("shop", "job", TOPOLOGY)
        opened.jobs.start_run("shop", "far", [DatasetEntry(OTHER, "materialized view", "d")])
        yield opened


def checkpoint(store: Store, fence: Fence, version: int, *, publish: bool = True) -> int:
    number = store.checkpoints.open(
        "job", fence, NewCheckpoint({ROOT: Version(f"r{version}")}, version)
    ).number
    store.roots.report("job", fence, {ROOT: Version(f"r{version}")})
    store.checkpoints.record_version("job", fence, number, VIEW, Version(f"v{version}"), DONE)
    store.checkpoints.record_version("job", fence, number, APART, Version("a"), DONE)
    if publish:
        store.checkpoints.publish("job", fence, number, version)
    return number


def plan(to: int, *jobs: str) -> RevisionPlan:
    tables = {"job": VIEW, "far": OTHER}
    return RevisionPlan(
        to=CheckpointNumber(to),
        tables=tuple(
            RevisedTable(
                table=tables[job], action=RevisionAction.ROLL_BACK, reason="", job=job, version=Version("v1")
            )
            for job in jobs
        ),
    )


def states(store: Store) -> dict[int, CheckpointState]:
    return {int(c.number): c.state for c in store.checkpoints.newest()}


def newest(store: Store) -> dict[TableName, Version]:
    return store.reads.newest_versions()


def follows_revoked(store: Store) -> bool:
    done = store.checkpoints.last_done("job")
    assert done is not None
    return done.is_followed_by_revoked


def test_decision_revokes_and_aborts_later_checkpoints(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1, n2, n3 = (checkpoint(store, fence, version) for version in (1, 2, 3))
    n4 = checkpoint(store, fence, 4, publish=False)
    assert store.revisions.published_after(n1, ["job"]) == (n2, n3)
    assert not follows_revoked(store)
    newer_fence = store.jobs.take_over("job")
    decided = store.revisions.decide("one", plan(n1, "job"), {"job": newer_fence})
    assert states(store) == {
        n1: CheckpointState.PUBLISHED,
        n2: CheckpointState.REVOKED,
        n3: CheckpointState.REVOKED,
        n4: CheckpointState.ABORTED,
    }
    assert store.reads.resolve().checkpoint == n1
    assert follows_revoked(store)
    # A weak read is no way around it; what did not change is what it was.
    assert newest(store)[VIEW] == "v1"
    assert newest(store)[APART] == "a"
    assert store.revisions.pending("job") == (decided,)
    assert store.revisions.pending("far") == ()
    assert store.revisions.decide("one", plan(n1, "job"), {"job": newer_fence}) == decided
    store.revisions.complete("one")
    # The next number shows what was computed again.
    n5 = checkpoint(store, newer_fence, 5)
    assert store.checkpoints.versions_at(n5) == {ROOT: "r5", VIEW: "v5", APART: "a"}
    assert store.checkpoints.versions_at(n1) == {ROOT: "r1", VIEW: "v1", APART: "a"}
    assert newest(store)[VIEW] == "v5"


def test_pins_keep_revoked_versions_but_cannot_be_renewed(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1, n2 = checkpoint(store, fence, 1), checkpoint(store, fence, 2)
    strong = store.reads.resolve(checkpoint=n2)
    weak = store.reads.resolve(Consistency.WEAK)
    store.revisions.decide("one", plan(n1, "job"), {"job": store.jobs.take_over("job")})
    assert {"v1", "v2"} <= store.pins.retained_versions()[VIEW]
    with pytest.raises(CheckpointUnavailableError) as refused:
        store.pins.renew(strong.pin, 1_000)
    assert refused.value.error_class == "CHECKPOINT_REVOKED"
    store.pins.renew(weak.pin, 1_000)
    with pytest.raises(CheckpointUnavailableError) as refused:
        store.reads.resolve(at_least=n2)
    assert refused.value.error_class == "CHECKPOINT_REVOKED"


def test_decision_of_a_fenced_owner_changes_nothing(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1, n2 = checkpoint(store, fence, 1), checkpoint(store, fence, 2)
    lost_fence = store.jobs.take_over("job")
    store.jobs.take_over("job")
    with pytest.raises(FencedError):
        store.revisions.decide("one", plan(n1, "job"), {"job": lost_fence})
    assert states(store) == {n1: CheckpointState.PUBLISHED, n2: CheckpointState.PUBLISHED}
    assert store.revisions.find() == ()


def test_revision_needs_a_readable_checkpoint(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1, n2, n3 = (checkpoint(store, fence, version) for version in (1, 2, 3))
    store.checkpoints.revoke("job", fence, n2)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_REVOKED"):
        store.revisions.decide("one", plan(n2, "job"), {"job": fence})
    assert states(store)[n3] is CheckpointState.PUBLISHED
    assert store.reads.resolve(checkpoint=n1).checkpoint == n1


def test_one_pending_revision_per_job(store: Store) -> None:
    fence, far = store.jobs.take_over("job"), store.jobs.take_over("far")
    n1 = checkpoint(store, fence, 1)
    store.revisions.decide("one", plan(n1, "job", "far"), {"job": fence, "far": far})
    with pytest.raises(MetaError, match="REVISION_PENDING"):
        store.revisions.decide("two", plan(n1, "far"), {"far": far})
    store.revisions.confirm("one")
    assert store.revisions.get("one").state is RevisionState.DECIDED
    store.revisions.complete("one")
    store.revisions.complete("one")
    assert store.revisions.get("one").state is RevisionState.DONE
    assert store.revisions.pending("job") == store.revisions.pending("far") == ()
    store.revisions.decide("two", plan(n1, "far"), {"far": far})
    store.revisions.confirm("one")
    assert [revision.id for revision in store.revisions.find([RevisionState.CONFIRMED])] == ["one"]
    with pytest.raises(MetaError, match="REVISION_NOT_FOUND"):
        store.revisions.get("three")


def test_pending_revision_blocks_connected_checkpoints(store: Store) -> None:
    reader = DatasetEntry(TableName("lake", ("db",), "beside"), "materialized view", "e", frozenset({ROOT}))
    fence = store.jobs.take_over("job")
    n1 = checkpoint(store, fence, 1)
    store.jobs.start_run("shop", "beside", [reader])
    reader_fence = store.jobs.take_over("beside")
    store.revisions.decide("one", plan(n1, "job"), {"job": store.jobs.take_over("job")})
    with pytest.raises(
        MetaError, match=r"CHECKPOINT_HELD_BACK.*Revision one takes tables of job back"
    ) as refused:
        store.checkpoints.open("beside", reader_fence, NewCheckpoint({}, 2))
    assert refused.value.retryable
    store.jobs.start_run(
        "shop", "apart", [DatasetEntry(TableName("lake", ("db",), "alone"), "streaming table", "f")]
    )
    apart_fence = store.jobs.take_over("apart")
    assert store.checkpoints.open("apart", apart_fence, NewCheckpoint({}, 2)).number > n1
    store.revisions.complete("one")
    assert store.checkpoints.open("beside", reader_fence, NewCheckpoint({}, 2)).number > n1


def test_changed_topology_refuses_the_plan(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1, n2 = checkpoint(store, fence, 1), checkpoint(store, fence, 2)
    late = DatasetEntry(TableName("lake", ("db",), "late"), "materialized view", "e", frozenset({VIEW}))
    store.jobs.start_run("shop", "late", [late])
    with pytest.raises(ConflictError, match=r"REVISION_PLAN_CHANGED.*lake\.db\.late reads one of the tables"):
        store.revisions.decide("one", plan(n1, "job"), {"job": fence})
    store.jobs.start_run("shop", "late", [])
    store.jobs.start_run("shop", "job", [entry for entry in TOPOLOGY if entry.name != VIEW])
    store.jobs.start_run("shop", "far", [DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT}))])
    with pytest.raises(ConflictError, match=r"REVISION_PLAN_CHANGED.*lake\.db\.totals has another job"):
        store.revisions.decide("one", plan(n1, "job"), {"job": fence})
    assert states(store) == {n1: CheckpointState.PUBLISHED, n2: CheckpointState.PUBLISHED}
    assert store.revisions.find() == ()


def test_last_complete_version_of_missing_tables(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1 = checkpoint(store, fence, 1)
    n2 = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version("r2")}, 2)).number
    store.checkpoints.record_failure("job", fence, n2, VIEW, unclassified("boom"))
    store.checkpoints.record_version("job", fence, n2, APART, Version("a"), DONE)
    store.checkpoints.publish("job", fence, n2, 2)
    n3 = checkpoint(store, fence, 3)
    assert store.revisions.last_complete(n2, [VIEW, APART, OTHER]) == {VIEW: (n1, "v1"), APART: (n2, "a")}
    store.checkpoints.revoke("job", fence, n3)
    assert store.revisions.last_complete(n3 + 9, [VIEW]) == {VIEW: (n1, "v1")}


def test_without_a_checkpoint_nothing_is_revoked(store: Store) -> None:
    fence = store.jobs.take_over("job")
    n1 = checkpoint(store, fence, 1)
    n2 = checkpoint(store, fence, 2, publish=False)
    anew = RevisedTable(table=VIEW, action=RevisionAction.REBUILD, reason="", job="job")
    store.revisions.decide("one", RevisionPlan(to=None, tables=(anew,)), {"job": fence})
    assert states(store) == {n1: CheckpointState.PUBLISHED, n2: CheckpointState.ABORTED}
