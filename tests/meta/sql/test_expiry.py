"""What maintenance asks of the store, and what it trims there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint, UnexpiredCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import unclassified

ROOT, VIEW = TableName("lake", ("db",), "orders"), TableName("lake", ("db",), "totals")
DONE = Refresh(mode=RefreshMode.FULL, reason=unclassified(""))


@pytest.fixture
def store(backing: Backing) -> Iterator[Store]:
    """Ten published checkpoints, one a second; each has its own version of both tables."""
    with backing.open() as opened:
        opened.jobs.start_run(
            "shop",
            "job",
            [DatasetEntry(ROOT, "streaming table", "a"), DatasetEntry(VIEW, "materialized view", "b")],
        )
        fence = opened.jobs.take_over("job")
        for second in range(1, 11):
            opened.roots.report("job", fence, {ROOT: Version(f"r{second}")})
            number = opened.checkpoints.open(
                "job", fence, NewCheckpoint({ROOT: Version(f"r{second}")}, second * 1000)
            ).number
            opened.checkpoints.record_version("job", fence, number, VIEW, Version(f"v{second}"), DONE)
            opened.checkpoints.publish("job", fence, number, second * 1000 + 500)
        yield opened


def test_standing(store: Store) -> None:
    store.checkpoints.expire(1)
    store.checkpoints.revoke("job", store.jobs.newest_fence("job"), 2)
    unexpired = store.checkpoints.unexpired("job")
    assert unexpired[0] == UnexpiredCheckpoint(CheckpointNumber(2), 2500)
    assert [checkpoint.number for checkpoint in unexpired] == list(range(2, 11))
    assert store.checkpoints.unexpired("another") == ()


def test_versions_retained_after_expiry(store: Store) -> None:
    expired = [CheckpointNumber(number) for number in range(1, 9)]
    expected = store.pins.retained_versions(expired)
    assert expected == {ROOT: {"r9", "r10"}, VIEW: {"v9", "v10"}}
    assert len(store.pins.retained_versions()[VIEW]) == 10
    for number in expired:
        store.checkpoints.expire(number)
    assert store.pins.retained_versions() == expected


def test_long_expired_checkpoints_are_forgotten(store: Store) -> None:
    for number in range(1, 6):
        store.checkpoints.expire(number)
    assert store.checkpoints.forget_expired("job", kept=2) == 3
    assert store.checkpoints.forget_expired("job", kept=2) == 0
    assert [int(checkpoint.number) for checkpoint in store.checkpoints.newest(100)] == list(range(10, 3, -1))
    with pytest.raises(CheckpointUnavailableError, match=r"CHECKPOINT_NOT_FOUND.*expired long ago"):
        store.reads.resolve(checkpoint=3)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_EXPIRED"):
        store.reads.resolve(checkpoint=4)
    assert store.checkpoints.versions_at(6) == {ROOT: "r6", VIEW: "v6"}
