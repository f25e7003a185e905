"""How long a read point keeps the pin of its checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.names import TableName, Version
from tautochrone.rest_catalog.read_points import ReadPoints

TABLE = TableName("lake", ("shop",), "orders")
LEASE_MS = 10_000


class PublishedStore:
    """A store with one published checkpoint, and a clock that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.now_ms = 1_000_000
        self.meta = MetaStore.open(f"sqlite:///{folder}/meta.db", clock=lambda: self.now_ms)
        self.meta.jobs.start_run("shop", "shop", [DatasetEntry(TABLE, "streaming table", "o", is_root=True)])
        self.fence = self.meta.jobs.take_over("shop")
        self.meta.roots.report("shop", self.fence, {TABLE: Version("v1")})
        self.number = self.meta.checkpoints.open("shop", self.fence, NewCheckpoint({}, self.now_ms)).number
        self.meta.checkpoints.begin_next("shop", self.fence)
        self.meta.checkpoints.publish("shop", self.fence, self.number, self.now_ms)

    def lease_ends_ms(self) -> list[int]:
        return [pin.expires_at_ms for pin in self.meta.pins.live()]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PublishedStore]:
    published = PublishedStore(tmp_path)
    yield published
    published.meta.close()


def test_pin_is_renewed_again_after_the_store_was_unreachable(
    store: PublishedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_points = ReadPoints(store.meta, lease_ms=LEASE_MS)
    read_point = read_points.resolve("strong")

    def unreachable(*_args: object, **_kwargs: object) -> None:
        raise MetaError("META_SERVICE_UNREACHABLE", "no answer", retryable=True)

    store.now_ms += 6_000
    with monkeypatch.context() as patched:
        patched.setattr(store.meta.pins, "renew", unreachable)
        assert read_points.versions(read_point)(TABLE) == "v1"
    assert store.lease_ends_ms() == [store.now_ms + 4_000]
    store.now_ms += 1_000
    assert read_points.versions(read_point)(TABLE) == "v1"
    assert store.lease_ends_ms() == [store.now_ms + LEASE_MS]


def test_store_that_refuses_a_renewal_fails_the_read(
    store: PublishedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_points = ReadPoints(store.meta, lease_ms=LEASE_MS)
    read_point = read_points.resolve("strong")

    def refused(*_args: object, **_kwargs: object) -> None:
        raise MetaError("META_SERVICE_REFUSED", "no access")

    monkeypatch.setattr(store.meta.pins, "renew", refused)
    with pytest.raises(MetaError, match="META_SERVICE_REFUSED"):
        read_points.versions(read_point)


def test_ended_lease_is_not_renewed_again(store: PublishedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    read_points = ReadPoints(store.meta, lease_ms=LEASE_MS)
    read_point = read_points.resolve("strong")
    store.now_ms += LEASE_MS + 1
    assert read_points.versions(read_point)(TABLE) == "v1"
    monkeypatch.setattr(store.meta.pins, "renew", lambda *_args, **_kwargs: pytest.fail("renewed"))
    assert read_points.versions(read_point)(TABLE) == "v1"
    assert store.lease_ends_ms() == []
