"""A store with two pipelines and a little history, and the application over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tautochrone.meta import DatasetEntry, MetaStore, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified

FULL = Refresh(
    mode=RefreshMode.FULL,
    reason=unclassified("first build"),
    rows_inserted=7,
    duration_ms=300,
    nodes=(NodeRefresh(node="Aggregate", mode=RefreshMode.FULL, reason=unclassified("no state")),),
)


def name(table: str) -> TableName:
    return TableName("lake", ("db",), table)


class Shop:
    """`orders` is a root, `totals` is made from it, `top` from `totals`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        store.jobs.start_run(
            "shop",
            "shop",
            [
                DatasetEntry(name("orders"), "streaming table", "a", is_root=True),
                DatasetEntry(name("totals"), "materialized view", "b", frozenset({name("orders")})),
                DatasetEntry(name("top"), "materialized view", "c", frozenset({name("totals")})),
            ],
        )
        self.fence: Fence = store.jobs.take_over("shop")

    def checkpoint(self, version: int, *, cut_at_ms: int = 1_000, fail: bool = False) -> int:
        n = self.store.checkpoints.open(
            "shop", self.fence, NewCheckpoint({name("orders"): Version(str(version))}, cut_at_ms)
        ).number
        view_version = Version(f"{version}0")
        self.store.checkpoints.record_version(
            "shop", self.fence, n, name("totals"), view_version, FULL, finished_at_ms=cut_at_ms + 400
        )
        if fail:
            self.store.checkpoints.record_failure(
                "shop", self.fence, n, name("top"), unclassified("division by zero")
            )
        else:
            self.store.checkpoints.record_version(
                "shop", self.fence, n, name("top"), view_version, FULL, finished_at_ms=cut_at_ms + 1_000
            )
        self.store.checkpoints.publish("shop", self.fence, n, cut_at_ms + 1_001)
        return n


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as opened:
        yield opened


@pytest.fixture
def shop(store: Store) -> Shop:
    new_shop = Shop(store)
    new_shop.checkpoint(1)
    return new_shop


@pytest.fixture
def client(shop: Shop) -> Iterator[TestClient]:
    app = create_app(access=Access(anonymous=Role.OPERATE), store=shop.store)
    with TestClient(app, raise_server_exceptions=False) as test_client:
        yield test_client


@pytest.fixture
def with_access(shop: Shop) -> Callable[[Access], TestClient]:
    return lambda access: TestClient(create_app(access=access, store=shop.store))
