"""A store of another lake is refused before anything is written; a table that was dropped is no obstacle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.lake import CommitMetadata, Fork
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.reconcile_store import reconcile_store, record_table_ids

A, B = (TableName("lake", ("db",), table) for table in ("a", "b"))


@dataclass
class Table:
    """What a store is held against: a table's id and its newest commit metadata."""

    name: TableName
    id: str
    store: str
    fence: int = 1

    def identity(self) -> str:
        return self.id

    def fork(self) -> Fork:
        commit_metadata = CommitMetadata(
            pipeline="shop", job="job", fence=Fence(self.fence), store=self.store
        )
        return Fork(
            table=self.name,
            version=Version("1"),
            fence=commit_metadata.fence,
            commit_metadata=commit_metadata,
            handle=None,
        )

    def versions(self) -> list[Any]:
        return [("1", self.fork().commit_metadata, 1)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as opened:
        opened.jobs.start_run(
            "shop", "job", [DatasetEntry(n, "streaming table", "", is_root=True) for n in (A, B)]
        )
        fence = opened.jobs.take_over("job")
        number = opened.checkpoints.open(
            "job", fence, NewCheckpoint({A: Version("1"), B: Version("1")}, 1)
        ).number
        opened.checkpoints.publish("job", fence, number, 1)
        opened.datasets.record_table_ids("job", fence, {A: "id-a", B: "id-b"})
        yield opened


def job_of(store: Store, *tables: Table) -> Any:
    """As much of a job as the check asks."""
    return SimpleNamespace(
        name="job",
        store=store,
        definitions=SimpleNamespace(datasets={}),
        settings=SimpleNamespace(parallelism=2),
        graph=SimpleNamespace(order=[A, B]),
        topology=SimpleNamespace(sibling_tables=frozenset()),
        tables={table.name: table for table in tables},
        effects=SimpleNamespace(perform=lambda _step, _subject, act: act()),
        emit=lambda _event: None,
    )


def check(store: Store, *tables: Table, full: frozenset[TableName] = frozenset()) -> None:
    job = job_of(store, *tables)
    reconcile_store(job, job.tables, full)


def identify(store: Store, *tables: Table) -> None:
    journal = Journal(store, "job", DirectEffects(), store.jobs.newest_fence("job"))
    record_table_ids(journal, {table.name: table for table in tables}, parallelism=2)  # type: ignore[misc]


def refused(store: Store, *tables: Table) -> str:
    before = store.checkpoints.highest_used_number(), store.jobs.newest_fence("job"), store.incarnation
    with pytest.raises(MetaError) as error:
        check(store, *tables)
    assert (
        store.checkpoints.highest_used_number(),
        store.jobs.newest_fence("job"),
        store.incarnation,
    ) == before
    return error.value.error_class


def test_tables_of_another_lake_are_refused(store: Store) -> None:
    own = store.incarnation
    assert refused(store, Table(A, "other", "x"), Table(B, "other", "x")) == "META_STORE_OF_ANOTHER_LAKE"
    assert refused(store, Table(A, "id-a", own), Table(B, "other", own)) == "META_STORE_OF_ANOTHER_LAKE"


def test_a_lake_without_any_of_the_known_tables_is_refused(store: Store) -> None:
    assert refused(store) == "META_STORE_OF_ANOTHER_LAKE"


def test_what_is_built_anew_need_not_be_what_it_was(store: Store) -> None:
    check(store, full=frozenset({A, B}))
    own = store.incarnation
    check(store, Table(A, "id-a", own), Table(B, "other", own), full=frozenset({B}))


def test_a_dropped_table_is_no_obstacle_also_when_the_next_run_dies(store: Store) -> None:
    own = store.incarnation
    check(store, Table(A, "id-a", own))
    identify(store, Table(A, "id-a", own))
    # It is made again, and the process dies before it says so.
    check(store, Table(A, "id-a", own), Table(B, "new", own))
    identify(store, Table(A, "id-a", own), Table(B, "new", own))
    assert refused(store, Table(A, "id-a", own), Table(B, "id-b", own)) == "META_STORE_OF_ANOTHER_LAKE"


def test_only_a_differing_store_is_reconciled(store: Store) -> None:
    own, number = store.incarnation, store.checkpoints.highest_used_number()
    check(store, Table(A, "id-a", own), Table(B, "id-b", own))
    assert store.checkpoints.highest_used_number() == number
    check(store, Table(A, "id-a", "x", fence=9), Table(B, "id-b", "x", fence=9))
    assert store.checkpoints.highest_used_number() > number + 900
    assert store.jobs.newest_fence("job") > 900
