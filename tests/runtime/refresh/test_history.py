"""A run knows the refreshes of its datasets as the store has them, and reads them once."""

from __future__ import annotations

import random
from pathlib import Path

from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.runtime.refresh.history import KEPT, RefreshHistory

ROOT, VIEW = (TableName("lake", ("db",), name) for name in ("root", "view"))
MODES = (RefreshMode.FULL, RefreshMode.DIFF, RefreshMode.NO_DATA, None)


def test_a_run_continues_what_the_store_has(tmp_path: Path) -> None:
    store, chance = MetaStore.open(f"sqlite:///{tmp_path}/meta.db"), random.Random(5)
    root = DatasetEntry(ROOT, "streaming table", "r", is_root=True)
    view = DatasetEntry(VIEW, "materialized view", "v", frozenset({ROOT}))
    store.jobs.start_run("shop", "job", [root, view])
    fence = store.jobs.take_over("job")
    history = RefreshHistory(store.history.refreshes)
    for cut in range(1, 40):
        number = store.checkpoints.open("job", fence, NewCheckpoint({ROOT: Version(str(cut))}, cut)).number
        mode = chance.choice(MODES)
        if mode is None:
            store.checkpoints.record_failure("job", fence, number, VIEW, unclassified("broke"))
        else:
            refresh = Refresh(mode=mode, reason=unclassified("x"), delta_rows=cut)
            store.checkpoints.record_version("job", fence, number, VIEW, Version(str(cut)), refresh)
            history.add(VIEW, refresh)
        store.checkpoints.publish("job", fence, number, cut)
        if cut > 10:
            stored = store.history.refreshes(VIEW, KEPT)
            assert list(history.newest(VIEW)) == [r.refresh for r in stored if r.refresh and not r.error]


def test_the_store_is_read_once() -> None:
    calls: list[TableName] = []

    def stored(dataset: TableName, limit: int) -> tuple[()]:
        calls.append(dataset)
        assert limit == KEPT
        return ()

    history = RefreshHistory(stored)
    for _ in range(KEPT + 10):
        history.newest(VIEW)
        history.add(VIEW, Refresh(mode=RefreshMode.FULL, reason=unclassified("x")))
    assert calls == [VIEW]
    assert len(history.newest(VIEW)) == KEPT
