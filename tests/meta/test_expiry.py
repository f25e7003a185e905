"""What maintenance asks of the store, and what it trims there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tautochrone.errors import CheckpointUnavailableError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.expiry import Standing
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.refresh import Refresh, RefreshMode
from tautochrone.testing.stores import Backing

ROOT, VIEW = TableName("lake", ("db",), "orders"), TableName("lake", ("db",), "totals")
DONE = Refresh(mode=RefreshMode.FULL, reason=unclassified(""))


@pytest.fixture
def store(backing: Backing) -> Iterator[MetaStore]:
    """Ten published checkpoints, one a second; each has its own version of both tables."""
    with backing.open() as opened:
        opened.start_run(
            "shop",
            "job",
            [DatasetEntry(ROOT, "streaming table", "a"), DatasetEntry(VIEW, "materialized view", "b")],
        )
        fence = opened.take_over("job")
        for second in range(1, 11):
            opened.report("job", fence, {ROOT: Version(f"r{second}")})
            number = opened.open_checkpoint("job", fence, {ROOT: Version(f"r{second}")}, second * 1000).number
            opened.record_version("job", fence, number, VIEW, Version(f"v{second}"), DONE)
            opened.publish("job", fence, number, second * 1000 + 500)
        yield opened


def test_standing(store: MetaStore) -> None:
    store.expire(1)
    store.revoke("job", store.fence("job"), 2)
    found = store.standing("job")
    assert found[0] == Standing(CheckpointNumber(2), 2500)
    assert [checkpoint.number for checkpoint in found] == list(range(2, 11))
    assert store.standing("another") == ()


def test_what_would_be_retained(store: MetaStore) -> None:
    gone = [CheckpointNumber(number) for number in range(1, 9)]
    expected = store.retained_versions(gone)
    assert expected == {ROOT: {"r9", "r10"}, VIEW: {"v9", "v10"}}
    assert len(store.retained_versions()[VIEW]) == 10
    for number in gone:
        store.expire(number)
    assert store.retained_versions() == expected


def test_long_expired_checkpoints_are_forgotten(store: MetaStore) -> None:
    for number in range(1, 6):
        store.expire(number)
    assert store.forget_expired("job", kept=2) == 3
    assert store.forget_expired("job", kept=2) == 0
    assert [int(checkpoint.number) for checkpoint in store.checkpoints(100)] == list(range(10, 3, -1))
    with pytest.raises(CheckpointUnavailableError, match=r"CHECKPOINT_NOT_FOUND.*expired long ago"):
        store.resolve(checkpoint=3)
    with pytest.raises(CheckpointUnavailableError, match="CHECKPOINT_EXPIRED"):
        store.resolve(checkpoint=4)
    assert store.versions_at(6) == {ROOT: "r6", VIEW: "v6"}
