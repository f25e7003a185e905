"""Skipped source files in the store: replaced as a whole, except those that nobody can meet again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.stores import Backing

from tautochrone.errors import FencedError, MetaError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.model.names import Fence, TableName
from tautochrone.model.source import MAX_REPORTED_PATHS, SkippedFiles, SkipReason

TABLE = TableName("lake", ("db",), "orders")
OLD = SkippedFiles("left", SkipReason.TOO_OLD, 2, ("file:///in/a%20b", "file:///in/c"))
GONE = SkippedFiles("left", SkipReason.MISSING, 1, ("file:///in/d",))
OTHER = SkippedFiles("right", SkipReason.REPLACED, 30, tuple(f"f{n}" for n in range(MAX_REPORTED_PATHS)))


@pytest.fixture
def store(backing: Backing) -> Iterator[Store]:
    with backing.open() as opened:
        opened.jobs.start_run("shop", "job", [DatasetEntry(TABLE, "streaming table", "a")])
        opened.jobs.take_over("job")
        yield opened


def tell(store: Store, flow: str, *skipped: SkippedFiles) -> None:
    for _ in range(2):
        # A call whose answer was lost is repeated.
        store.datasets.record_skipped_files("job", Fence(1), TABLE, flow, skipped)


def test_each_flow_replaces_what_it_told(store: Store) -> None:
    assert store.datasets.skipped_files(TABLE) == ()
    tell(store, "left", OLD)
    tell(store, "right", OTHER)
    assert store.datasets.skipped_files(TABLE) == (OLD, OTHER)
    assert store.datasets.statuses()[0].skipped == (OLD, OTHER)
    tell(store, "left")
    assert store.datasets.skipped_files(TABLE) == (OTHER,)


def test_missing_files_stay(store: Store) -> None:
    tell(store, "left", GONE, OLD)
    tell(store, "left", OLD)
    assert store.datasets.skipped_files(TABLE) == (GONE, OLD)
    tell(store, "left", replace(GONE, paths=("file:///in/e",)))
    assert store.datasets.skipped_files(TABLE) == (
        replace(GONE, count=2, paths=("file:///in/e", "file:///in/d")),
    )


def test_only_the_owner_tells_of_its_own_tables(store: Store) -> None:
    with pytest.raises(MetaError) as caught:
        store.datasets.record_skipped_files("job", Fence(1), TableName("lake", ("db",), "other"), "left", ())
    assert caught.value.error_class == "DATASET_NOT_FOUND"
    store.jobs.take_over("job")
    with pytest.raises(FencedError):
        store.datasets.record_skipped_files("job", Fence(1), TABLE, "left", (OLD,))
