"""The store as the owner of a job, or of the deliveries to a sink, writes to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tautochrone.errors import FencedError, MetaError, SinkFencedError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import Checkpoints, NewCheckpoint, Roots
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.meta.protocols.marks import durable_step_of
from tautochrone.meta.protocols.store import parts
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.sink import SinkDeclaration
from tautochrone.runtime.job.effects import CountingEffects
from tautochrone.runtime.job.journal import DeliveryJournal, Journal

ORDERS = TableName("lake", ("db",), "orders")
MARKED = [
    method
    for protocol in parts().values()
    for method in vars(protocol).values()
    if durable_step_of(method) is not None
]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as store:
        store.jobs.start_run("shop", "job", [DatasetEntry(ORDERS, "streaming table", "a", is_root=True)])
        yield Journal(store, "job", CountingEffects(), store.jobs.take_over("job"))


def steps(journal: Journal) -> dict[tuple[Step, str], int]:
    assert isinstance(journal.effects, CountingEffects)
    return dict(journal.effects.by_subject)


@pytest.mark.parametrize("method", MARKED, ids=lambda method: method.__qualname__)
def test_marks_name_an_argument_after_job_and_fence(method: object) -> None:
    write = durable_step_of(method)
    assert write is not None
    assert callable(method)
    names = list(inspect.signature(method).parameters)
    assert names[1:3] == ["job", "fence"]
    assert write.subject.split(".")[0] in names


def test_each_write_is_a_step_with_its_subject(journal: Journal) -> None:
    journal.record(Roots.report, {ORDERS: Version("1")})
    number = journal.open(NewCheckpoint({ORDERS: Version("1")}, 1)).number
    journal.record(Checkpoints.publish, number, 2, cpu_ms=5)
    assert journal.store.checkpoints.latest_published("job") is not None
    assert steps(journal) == {
        (Step.META_REPORT, str(ORDERS)): 1,
        (Step.META_OPEN, "job"): 1,
        (Step.META_PUBLISH, "job"): 1,
    }


def test_deliveries_carry_the_fence_of_the_sink(journal: Journal) -> None:
    older, newer = DeliveryJournal(journal, "out"), DeliveryJournal(journal, "out")
    for delivery in (older, newer):
        delivery.claim(SinkDeclaration(name="out", format="toy", tables=(ORDERS,), location=""), Fence(0))
    newer.record(Deliveries.end_intent)
    with pytest.raises(SinkFencedError):
        older.record(Deliveries.end_intent)
    assert steps(journal) == {(Step.META_DELIVERY_CLAIM, "out"): 2, (Step.META_DELIVERY_ABORT, "out"): 1}


def test_older_owner_is_refused(journal: Journal) -> None:
    journal.store.jobs.take_over("job")
    with pytest.raises(FencedError, match="JOB_FENCED"):
        journal.record(Roots.report, {ORDERS: Version("1")})


def test_store_that_lost_numbers_is_refused(journal: Journal) -> None:
    journal.highest_number = 7
    with pytest.raises(MetaError, match="META_STORE_REPLACED"):
        journal.open(NewCheckpoint({ORDERS: Version("1")}, 1))


def test_write_without_a_step_is_refused(journal: Journal) -> None:
    with pytest.raises(TypeError, match="is marked with no durable step"):
        journal.record(Checkpoints.revoke, 1)
