"""An external table that cannot be read has no version from then on, until it can be."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import Refresh, RefreshMode
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified

VIEW, RATES, PRICES = (TableName("lake", ("db",), name) for name in ("totals", "rates", "prices"))
DONE = Refresh(mode=RefreshMode.APPEND, reason=unclassified(""))


@pytest.fixture
def store(backing: Backing) -> Iterator[Store]:
    with backing.open() as opened:
        view = DatasetEntry(VIEW, "materialized view", "a", frozenset({RATES, PRICES}))
        opened.jobs.start_run("shop", "job", [view])
        yield opened


def checkpoint(store: Store, fence: Fence, *, missing: frozenset[TableName], abort: bool = False) -> None:
    roots = {}
    for table in {RATES, PRICES} - missing:
        before = store.roots.external_versions().get(table)
        roots[table] = store.roots.observe_external_table("job", fence, table, before, Version("1"))
    number = store.checkpoints.open("job", fence, NewCheckpoint(roots, 1, missing=missing)).number
    if missing:
        store.checkpoints.record_failure("job", fence, number, VIEW, unclassified("rates is gone"))
    else:
        store.checkpoints.record_version("job", fence, number, VIEW, Version("v1"), DONE)
    if abort:
        store.checkpoints.abort("job", fence, number)
    else:
        store.checkpoints.publish("job", fence, number, 1)


def last(store: Store) -> dict[TableName, Version]:
    done = store.checkpoints.last_done("job")
    assert done is not None
    return dict(done.versions)


def test_a_missing_table_is_news_once(store: Store) -> None:
    fence = store.jobs.take_over("job")
    complete = {VIEW: "v1", RATES: "1", PRICES: "1"}
    checkpoint(store, fence, missing=frozenset())
    checkpoint(store, fence, missing=frozenset({RATES}), abort=True)
    assert last(store) == complete
    checkpoint(store, fence, missing=frozenset({RATES}))
    assert last(store) == {PRICES: "1"}
    checkpoint(store, fence, missing=frozenset())
    assert last(store) == complete
