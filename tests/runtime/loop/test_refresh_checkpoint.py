"""Each dataset is refreshed after its inputs, and skipped where an input failed."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, unclassified
from tautochrone.runtime.loop.refresh_checkpoint import refresh_in_order, upstream_of

ROOT, A, B, C, D = (TableName("lake", ("db",), table) for table in ("root", "a", "b", "c", "d"))
DIAMOND: Mapping[TableName, frozenset[TableName]] = {
    D: frozenset({B, C}),
    B: frozenset({A}),
    C: frozenset({A}),
    A: frozenset({ROOT}),
}


def test_datasets_follow_inputs_and_run_in_parallel() -> None:
    order: list[TableName] = []
    both_run = threading.Barrier(2, timeout=10)

    def refresh(table: TableName) -> None:
        if table in (B, C):
            both_run.wait()
        order.append(table)

    failures: dict[TableName, Reason] = {}
    refresh_in_order(DIAMOND, failures, refresh, lambda *_: unclassified(""), parallelism=2)
    assert (order[0], set(order[1:3]), order[3]) == (A, {B, C}, D)
    assert failures == {}


def test_what_reads_a_failed_input_is_skipped_and_the_rest_goes_on() -> None:
    refreshed: list[TableName] = []

    def refresh(table: TableName) -> Reason | None:
        refreshed.append(table)
        return unclassified("no such column") if table == B else None

    failures: dict[TableName, Reason] = {}
    skip = lambda table, failed: unclassified(f"{table.table} waits for {failed.table}")  # noqa: E731
    refresh_in_order(DIAMOND, failures, refresh, skip, parallelism=1)
    assert sorted(refreshed) == [A, B, C]
    assert failures == {B: unclassified("no such column"), D: unclassified("d waits for b")}


def test_a_root_that_cannot_be_read_skips_everything_over_it() -> None:
    failures = {ROOT: unclassified("it is gone")}
    refresh_in_order(
        DIAMOND, failures, lambda _table: None, lambda *_: unclassified("skipped"), parallelism=1
    )
    skipped = dict.fromkeys(DIAMOND, unclassified("skipped"))
    assert failures == {ROOT: unclassified("it is gone")} | skipped


def test_upstream_goes_through_datasets_of_the_job_only() -> None:
    assert upstream_of(D, DIAMOND) == {A, B, C, ROOT}
    assert upstream_of(ROOT, DIAMOND) == frozenset()
