"""Whose a job is: its lake, its pipeline, and what becomes of both when people copy or rename."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.refresh import Refresh, RefreshMode
from tautochrone.testing.stores import Backing

ORDERS, SALES = (TableName("lake", ("default",), name) for name in ("orders", "sales"))
STREAM, VIEW = DatasetKind.STREAMING_TABLE.value, DatasetKind.MATERIALIZED_VIEW.value
DATASETS = [
    DatasetEntry(ORDERS, STREAM, "1", is_root=True),
    DatasetEntry(SALES, VIEW, "2", frozenset({ORDERS})),
]


@pytest.fixture
def store(backing: Backing) -> Iterator[MetaStore]:
    with backing.open() as found:
        yield found


def publish(store: MetaStore, job: str, fence: Fence, version: str) -> int:
    store.report(job, fence, {ORDERS: Version(version)})
    target = store.open_checkpoint(job, fence, {ORDERS: Version(version)}, 1_000)
    refresh = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))
    store.record_version(job, fence, target.number, SALES, Version(version), refresh)
    store.publish(job, fence, target.number, 2_000)
    return int(target.number)


def error_class(of: pytest.ExceptionInfo[MetaError]) -> str:
    return of.value.error_class


def test_a_job_belongs_to_the_lake_that_it_first_ran_over(store: MetaStore) -> None:
    store.start_run("shop", "shop", DATASETS)
    store.start_run("shop", "shop", DATASETS, lake="storage 1")
    store.start_run("shop", "shop", DATASETS, lake="storage 1")
    store.start_run("shop", "shop", DATASETS)
    fence = store.take_over("shop")
    with pytest.raises(MetaError) as raised:
        store.start_run("shop", "shop", DATASETS, lake="storage 2")
    assert error_class(raised) == "JOB_OF_ANOTHER_LAKE"
    assert store.fence("shop") == fence
    assert store.move_lake("shop", "storage 2") == 1
    store.start_run("shop", "shop", DATASETS, lake="storage 2")


def test_a_copied_store_is_another_one_in_which_nothing_runs(store: MetaStore) -> None:
    store.start_run("shop", "shop", DATASETS, lake="storage 1")
    fence = store.take_over("shop")
    number = publish(store, "shop", fence, "1")
    before = store.incarnation
    assert store.become_copy("storage 2") != before
    store.start_run("shop", "shop", DATASETS, lake="storage 2")
    assert not store.job_states()[0].alive
    assert store.versions_at(number) == {ORDERS: "1", SALES: "1"}


def test_a_renamed_pipeline_keeps_its_history_and_fences_its_old_name(store: MetaStore) -> None:
    store.start_run("shop", "shop", DATASETS)
    fence = store.take_over("shop")
    number = publish(store, "shop", fence, "1")
    with pytest.raises(MetaError) as raised:
        store.rename_pipeline("shop", "store")
    assert error_class(raised) == "JOB_RUNNING"
    store.end_run("shop", fence)
    assert store.rename_pipeline("shop", "store") == 1
    assert store.rename_pipeline("shop", "store") == 0
    (status,) = store.job_states()
    assert (status.name, status.pipeline, status.newest_done) == ("store", "store", number)
    assert store.reported("store") == {ORDERS: "1"}
    with pytest.raises(FencedError):
        store.report("store", fence, {ORDERS: Version("2")})
    store.start_run("store", "store", DATASETS)
    newest = store.take_over("store")
    assert newest > fence
    assert publish(store, "store", newest, "2") > number


def test_jobs_with_names_of_their_own_keep_them(store: MetaStore) -> None:
    store.start_run("shop", "nightly", DATASETS)
    assert store.rename_pipeline("shop", "store") == 1
    (status,) = store.job_states()
    assert (status.name, status.pipeline) == ("nightly", "store")


def test_a_name_that_somebody_has_is_refused(store: MetaStore) -> None:
    store.start_run("shop", "shop", DATASETS)
    store.start_run("other", "store", [])
    with pytest.raises(MetaError) as raised:
        store.rename_pipeline("shop", "store")
    assert error_class(raised) == "JOB_NAME_TAKEN"
    assert {status.name for status in store.job_states()} == {"shop", "store"}
