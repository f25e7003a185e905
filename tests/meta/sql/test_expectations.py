"""The store knows how many rows violate each expectation of a dataset."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.definitions import ExpectationCount, ViolationAction
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

VIEW = TableName.parse("lake.default.totals")
FIRST = ExpectationCount("an id", ViolationAction.DROP, 2, 2)
SECOND = ExpectationCount("an id", ViolationAction.DROP, 5, 3)


@pytest.fixture
def store(backing: Backing) -> Iterator[Store]:
    with backing.open() as opened:
        opened.jobs.start_run("shop", "job", [DatasetEntry(VIEW, "materialized view", "a")])
        opened.jobs.take_over("job")
        yield opened


def known(store: Store) -> tuple[ExpectationCount, ...]:
    (status,) = store.datasets.statuses()
    return status.expectations


def test_counts_replace_older_ones(store: Store) -> None:
    assert known(store) == ()
    store.datasets.record_expectations("job", Fence(1), VIEW, [FIRST])
    for _ in range(2):
        # A call whose answer was lost is repeated.
        store.datasets.record_expectations("job", Fence(1), VIEW, [SECOND])
    assert known(store) == (SECOND,)


def test_counts_of_unknown_dataset_are_refused(store: Store) -> None:
    with pytest.raises(MetaError, match="DATASET_NOT_FOUND"):
        store.datasets.record_expectations("job", Fence(1), TableName.parse("lake.default.x"), [FIRST])


def test_refresh_keeps_its_counts(store: Store) -> None:
    refresh = Refresh(mode=RefreshMode.FULL, reason=Reason.of(ReasonCode.FIRST_BUILD), expectations=(FIRST,))
    number = store.checkpoints.open("job", Fence(1), NewCheckpoint({}, 0)).number
    store.checkpoints.record_version("job", Fence(1), number, VIEW, Version("1"), refresh)
    store.datasets.record_expectations("job", Fence(1), VIEW, [SECOND])
    (record,) = store.history.refreshes(VIEW, 9)
    assert record.refresh is not None
    assert record.refresh.expectations == (FIRST,)
    assert known(store) == (SECOND,)
