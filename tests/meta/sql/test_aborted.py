"""An aborted checkpoint: the versions that it ended continue, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan

ROOT, VIEW, EXTERNAL = (TableName("lake", ("db",), name) for name in ("orders", "totals", "rates"))
DONE = Refresh(mode=RefreshMode.APPEND, reason=unclassified(""))
TOPOLOGY = (
    DatasetEntry(ROOT, "streaming table", "a", is_root=True),
    DatasetEntry(VIEW, "materialized view", "b", frozenset({ROOT, EXTERNAL})),
)


@pytest.fixture
def store(backing: Backing) -> Iterator[Store]:
    with backing.open() as opened:
        opened.jobs.start_run("shop", "job", TOPOLOGY)
        yield opened


def checkpoint(
    store: Store,
    fence: Fence,
    version: int,
    *,
    external: str | None = None,
    fails: tuple[TableName, ...] = (),
    others: tuple[TableName, ...] = (),
    is_aborted: bool = False,
) -> CheckpointNumber:
    roots = {ROOT: Version(f"r{version}")}
    store.roots.report("job", fence, roots)
    if external is not None:
        roots[EXTERNAL] = Version(external)
    number = store.checkpoints.open("job", fence, NewCheckpoint(roots, version)).number
    for table in (VIEW, *others):
        if table in fails:
            store.checkpoints.record_failure("job", fence, number, table, unclassified("it fails"))
        else:
            store.checkpoints.record_version("job", fence, number, table, Version(f"v{version}"), DONE)
    if is_aborted:
        store.checkpoints.abort("job", fence, number)
    else:
        store.checkpoints.publish("job", fence, number, version)
    return number


def revise(store: Store, to: CheckpointNumber) -> Fence:
    fence = store.jobs.take_over("job")
    table = RevisedTable(
        table=VIEW, action=RevisionAction.ROLL_BACK, reason="", job="job", version=Version("v1")
    )
    store.revisions.decide("first", RevisionPlan(to=to, tables=(table,)), {"job": fence})
    store.revisions.complete("first")
    return fence


@pytest.mark.parametrize("fails", [(), (VIEW,)])
def test_abort_lets_go_on_what_it_ended(store: Store, fails: tuple[TableName, ...]) -> None:
    fence = store.jobs.take_over("job")
    checkpoint(store, fence, 1, external="e1")
    checkpoint(store, fence, 2, external="e2", fails=fails, is_aborted=True)
    assert store.reads.newest_versions() == {ROOT: "r2", VIEW: "v1", EXTERNAL: "e1"}
    number = checkpoint(store, fence, 3, external="e1")
    assert store.checkpoints.versions_at(number) == {ROOT: "r3", VIEW: "v3", EXTERNAL: "e1"}


def test_abort_leaves_what_a_revision_ended(store: Store) -> None:
    fence = store.jobs.take_over("job")
    first, *_ = [checkpoint(store, fence, version) for version in (1, 2, 3)]
    fence = revise(store, first)
    checkpoint(store, fence, 4, is_aborted=True)
    assert store.reads.newest_versions()[VIEW] == "v1"
    failed = checkpoint(store, fence, 5, fails=(VIEW,))
    assert VIEW not in store.checkpoints.versions_at(failed)
    assert store.reads.newest_versions()[VIEW] == "v1"


def test_abort_leaves_an_external_table_that_became_one_of_the_job(store: Store) -> None:
    fence = store.jobs.take_over("job")
    checkpoint(store, fence, 1, external="e1")
    view = DatasetEntry(EXTERNAL, "materialized view", "c", frozenset({ROOT}))
    store.jobs.start_run("shop", "job", [*TOPOLOGY, view])
    fence = store.jobs.take_over("job")
    checkpoint(store, fence, 2, others=(EXTERNAL,), is_aborted=True)
    checkpoint(store, fence, 3, others=(EXTERNAL,))
    failed = checkpoint(store, fence, 4, others=(EXTERNAL,), fails=(EXTERNAL,))
    assert EXTERNAL not in store.checkpoints.versions_at(failed)
