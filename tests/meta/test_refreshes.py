"""What the store keeps of refreshes: estimates and actuals, of old stores too, and not for ever."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode

VIEW = TableName("lake", ("db",), "totals")
FULL = Refresh(mode=RefreshMode.FULL, reason="first build")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetaStore]:
    with MetaStore.open(f"sqlite:///{tmp_path}/meta.db") as opened:
        opened.start_run("shop", "job", [DatasetEntry(VIEW, "materialized view", "v")])
        yield opened


def run(store: MetaStore, fence: Fence, *, version: str | None) -> int:
    """One whole checkpoint; None means that the view failed."""
    number = store.open_checkpoint("job", fence, {}, 1).number
    if version is None:
        store.record_failure("job", fence, number, VIEW, "it broke")
    else:
        store.record_version("job", fence, number, VIEW, Version(version), FULL)
    store.publish("job", fence, number, 2)
    return number


def test_an_existing_store_is_migrated_and_keeps_its_history(tmp_path: Path) -> None:
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine

    file = tmp_path / "meta.db"
    config = Config()
    config.set_main_option("script_location", "tautochrone.meta:migrations")
    config.set_main_option("path_separator", "os")
    with create_engine(f"sqlite:///{file}").begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    with sqlite3.connect(file) as raw:
        raw.execute(
            "INSERT INTO refreshes (checkpoint, dataset, version, mode, reason, rows_inserted, rows_deleted,"
            " duration_ms, nodes, finished_at_ms) VALUES (1, ?, 'x', 'diff', 'join', 2, 1, 70, '[]', 9)",
            (str(VIEW),),
        )
    with MetaStore.open(f"sqlite:///{file}") as opened:
        (record,) = opened.history(VIEW)
    assert record.refresh == Refresh(
        mode=RefreshMode.DIFF, reason="join", rows_inserted=2, rows_deleted=1, duration_ms=70
    )


def test_estimate_and_actual_are_kept(store: MetaStore) -> None:
    fence = store.take_over("job")
    number = store.open_checkpoint("job", fence, {}, 1).number
    node = NodeRefresh(node="join", mode=RefreshMode.INCREMENTAL, reason="telescoping")
    refresh = Refresh(
        mode=RefreshMode.INCREMENTAL,
        reason="0.3 % of orders changed",
        duration_ms=512,
        nodes=(node,),
        estimate_ms=400,
        delta_rows=30,
    )
    store.record_version("job", fence, number, VIEW, Version("a"), refresh)
    assert store.history(VIEW)[0].refresh == refresh


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("tautochrone.meta.history.KEPT_PER_DATASET", 3)
    return 3


def test_the_oldest_refreshes_are_forgotten(store: MetaStore, kept: int) -> None:
    fence = store.take_over("job")
    numbers = [run(store, fence, version=f"a{n}") for n in range(6)]
    assert [record.checkpoint for record in store.history(VIEW)] == numbers[:2:-1]
    assert all(VIEW in store.versions_at(number) for number in numbers)


def test_the_oldest_failures_are_forgotten(store: MetaStore, kept: int) -> None:
    """Those that are left end a repair where they should, those that are gone still have no version."""
    fence = store.take_over("job")
    numbers = [run(store, fence, version=None) for _ in range(6)]
    assert [bool(store.failures_at(number)) for number in numbers] == [False] * 3 + [True] * 3
    store.record_version("job", fence, numbers[4], VIEW, Version("a"), FULL)
    assert [VIEW in store.versions_at(number) for number in numbers] == [False] * 4 + [True, False]
