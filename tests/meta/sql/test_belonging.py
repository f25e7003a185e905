"""Whose a job is: its lake, its pipeline, and what becomes of both when people copy or rename."""

from __future__ import annotations

import pytest

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.project_build import BuildState, ProjectBuild
from tautochrone.model.reason import unclassified
from tautochrone.model.revision import RevisedTable, RevisionAction, RevisionPlan
from tautochrone.model.sink import SinkDeclaration

ORDERS, SALES = (TableName("lake", ("default",), name) for name in ("orders", "sales"))
STREAM, VIEW = DatasetKind.STREAMING_TABLE.value, DatasetKind.MATERIALIZED_VIEW.value
DATASETS = [
    DatasetEntry(ORDERS, STREAM, "1", is_root=True),
    DatasetEntry(SALES, VIEW, "2", frozenset({ORDERS})),
]


def publish(store: Store, job: str, fence: Fence, version: str) -> int:
    store.roots.report(job, fence, {ORDERS: Version(version)})
    target = store.checkpoints.open(job, fence, NewCheckpoint({ORDERS: Version(version)}, 1_000))
    refresh = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
    store.checkpoints.record_version(job, fence, target.number, SALES, Version(version), refresh)
    store.checkpoints.publish(job, fence, target.number, 2_000)
    return int(target.number)


def error_class(raised: pytest.ExceptionInfo[MetaError]) -> str:
    return raised.value.error_class


def test_job_belongs_to_its_first_lake(store: Store) -> None:
    store.jobs.start_run("shop", "shop", DATASETS)
    store.jobs.start_run("shop", "shop", DATASETS, lake="storage 1")
    store.jobs.start_run("shop", "shop", DATASETS, lake="storage 1")
    store.jobs.start_run("shop", "shop", DATASETS)
    fence = store.jobs.take_over("shop")
    with pytest.raises(MetaError) as raised:
        store.jobs.start_run("shop", "shop", DATASETS, lake="storage 2")
    assert error_class(raised) == "JOB_OF_ANOTHER_LAKE"
    assert store.jobs.newest_fence("shop") == fence
    assert store.jobs.move_lake("shop", "storage 2") == 1
    store.jobs.start_run("shop", "shop", DATASETS, lake="storage 2")


def test_copied_store_has_a_new_incarnation_and_no_runs(store: Store) -> None:
    store.jobs.start_run("shop", "shop", DATASETS, lake="storage 1")
    fence = store.jobs.take_over("shop")
    number = publish(store, "shop", fence, "1")
    before = store.incarnation
    assert store.jobs.become_copy("storage 2") != before
    store.jobs.start_run("shop", "shop", DATASETS, lake="storage 2")
    assert not store.jobs.states()[0].alive
    assert store.checkpoints.versions_at(number) == {ORDERS: "1", SALES: "1"}


def test_renamed_pipeline_keeps_history_and_fences_old_name(store: Store) -> None:
    store.jobs.start_run("shop", "shop", DATASETS)
    fence = store.jobs.take_over("shop")
    number = publish(store, "shop", fence, "1")
    with pytest.raises(MetaError) as raised:
        store.jobs.rename_pipeline("shop", "store")
    assert error_class(raised) == "JOB_RUNNING"
    store.jobs.end_run("shop", fence)
    assert store.jobs.rename_pipeline("shop", "store") == 1
    assert store.jobs.rename_pipeline("shop", "store") == 0
    (status,) = store.jobs.states()
    assert (status.name, status.pipeline, status.newest_done) == ("store", "store", number)
    assert store.roots.reported("store") == {ORDERS: "1"}
    with pytest.raises(FencedError):
        store.roots.report("store", fence, {ORDERS: Version("2")})
    store.jobs.start_run("store", "store", DATASETS)
    newest = store.jobs.take_over("store")
    assert newest > fence
    assert publish(store, "store", newest, "2") > number


def revision(number: int) -> RevisionPlan:
    table = RevisedTable(
        table=SALES, action=RevisionAction.ROLL_BACK, reason="", job="shop", version=Version("1")
    )
    return RevisionPlan(to=CheckpointNumber(number), tables=(table,))


def test_what_is_decided_is_finished_before_a_rename(store: Store) -> None:
    store.jobs.start_run("shop", "shop", DATASETS)
    fence = store.jobs.take_over("shop")
    number = publish(store, "shop", fence, "1")
    store.revisions.decide("first", revision(number), {"shop": fence})
    for build in ("b0117000", "b0117001"):
        base = CheckpointNumber(number)
        store.builds.begin(ProjectBuild(id=build, job="shop", base=base, state=BuildState.BUILT))
    store.builds.decide("shop", fence, "b0117000")
    store.deliveries.claim(
        "shop", fence, SinkDeclaration(name="mirror", format="toy", tables=(SALES,)), Fence(0)
    )
    store.jobs.end_run("shop", fence)
    with pytest.raises(MetaError) as raised:
        store.jobs.rename_pipeline("shop", "store")
    assert error_class(raised) == "RENAME_NOT_POSSIBLE"
    assert [each.id for each in store.revisions.pending("shop")] == ["first"]
    store.revisions.complete("first")
    with pytest.raises(MetaError) as raised:
        store.jobs.rename_pipeline("shop", "store")
    assert error_class(raised) == "RENAME_NOT_POSSIBLE"
    store.builds.remove("shop", "b0117000")
    assert store.jobs.rename_pipeline("shop", "store") == 1
    assert store.revisions.get("first").plan.jobs == ("store",)
    assert [build.id for build in store.builds.of_job("store")] == ["b0117001"]
    assert [sink.job for sink in store.deliveries.sinks()] == ["store"]


def test_jobs_with_names_of_their_own_keep_them(store: Store) -> None:
    store.jobs.start_run("shop", "nightly", DATASETS)
    assert store.jobs.rename_pipeline("shop", "store") == 1
    (status,) = store.jobs.states()
    assert (status.name, status.pipeline) == ("nightly", "store")


def test_a_name_that_somebody_has_is_refused(store: Store) -> None:
    store.jobs.start_run("shop", "shop", DATASETS)
    store.jobs.start_run("other", "store", [])
    with pytest.raises(MetaError) as raised:
        store.jobs.rename_pipeline("shop", "store")
    assert error_class(raised) == "JOB_NAME_TAKEN"
    assert {status.name for status in store.jobs.states()} == {"shop", "store"}
