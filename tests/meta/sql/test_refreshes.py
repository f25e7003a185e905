"""What the store keeps of refreshes: estimates and actuals, of old stores too, and not for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.support.stores import Backing

from tautochrone.meta import DatasetEntry, RefreshTotals, Store
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import CheckpointState, NodeRefresh, Refresh, RefreshMode
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.reason import unclassified

VIEW = TableName("lake", ("db",), "totals")
FULL = Refresh(mode=RefreshMode.FULL, reason=unclassified("first build"))


@pytest.fixture
def store(backing: Backing) -> Iterator[Store]:
    with backing.open() as opened:
        opened.jobs.start_run("shop", "job", [DatasetEntry(VIEW, "materialized view", "v")])
        yield opened


def run(store: Store, fence: Fence, *, version: str | None) -> int:
    """One whole checkpoint; None means that the view failed."""
    number = store.checkpoints.open("job", fence, NewCheckpoint({}, 1)).number
    if version is None:
        store.checkpoints.record_failure("job", fence, number, VIEW, unclassified("it broke"))
    else:
        store.checkpoints.record_version("job", fence, number, VIEW, Version(version), FULL)
    store.checkpoints.publish("job", fence, number, 2)
    return number


def test_estimate_and_actual_are_kept(store: Store) -> None:
    fence = store.jobs.take_over("job")
    number = store.checkpoints.open("job", fence, NewCheckpoint({}, 1)).number
    node = NodeRefresh(node="join", mode=RefreshMode.INCREMENTAL, reason=unclassified("telescoping"))
    refresh = Refresh(
        mode=RefreshMode.INCREMENTAL,
        reason=unclassified("0.3 % of orders changed"),
        duration_ms=512,
        nodes=(node,),
        estimate_ms=400,
        delta_rows=30,
    )
    store.checkpoints.record_version("job", fence, number, VIEW, Version("a"), refresh)
    assert store.history.refreshes(VIEW)[0].refresh == refresh


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("tautochrone.meta.queries.refresh_records.KEPT_PER_DATASET", 3)
    return 3


def test_the_oldest_refreshes_are_forgotten(store: Store, kept: int) -> None:
    fence = store.jobs.take_over("job")
    numbers = [run(store, fence, version=f"a{n}") for n in range(6)]
    assert [record.checkpoint for record in store.history.refreshes(VIEW)] == numbers[:2:-1]
    assert all(VIEW in store.checkpoints.versions_at(number) for number in numbers)


def test_the_oldest_failures_are_forgotten(store: Store, kept: int) -> None:
    """Those that are left end a repair where they should, those that are gone still have no version."""
    fence = store.jobs.take_over("job")
    numbers = [run(store, fence, version=None) for _ in range(6)]
    assert [bool(store.checkpoints.failures_at(number)) for number in numbers] == [False] * 3 + [True] * 3
    store.checkpoints.record_version("job", fence, numbers[4], VIEW, Version("a"), FULL)
    assert [VIEW in store.checkpoints.versions_at(number) for number in numbers] == [False] * 4 + [
        True,
        False,
    ]


def test_totals_of_refreshes(store: Store, kept: int) -> None:
    fence = store.jobs.take_over("job")
    modes = (RefreshMode.FULL, RefreshMode.INCREMENTAL, RefreshMode.NO_DATA, None)
    for at_ms, mode in enumerate(modes, 1):
        number = store.checkpoints.open("job", fence, NewCheckpoint({}, at_ms)).number
        if mode is None:
            error = unclassified("it broke")
            store.checkpoints.record_failure("job", fence, number, VIEW, error, finished_at_ms=at_ms)
        else:
            refresh = Refresh(
                mode=mode, reason=unclassified("x"), rows_inserted=3, rows_deleted=1, duration_ms=10 * at_ms,
                cpu_ms=7 if at_ms == 1 else None,
            )  # fmt: skip
            version = Version(str(min(at_ms, 2)))
            store.checkpoints.record_version(
                "job", fence, number, VIEW, version, refresh, finished_at_ms=at_ms
            )
        store.checkpoints.publish("job", fence, number, at_ms)
    expected = RefreshTotals(
        dataset=VIEW,
        refreshes={RefreshMode.FULL: 1, RefreshMode.INCREMENTAL: 1},
        failed=1,
        duration_ms=30,
        cpu_ms=7,
        rows_inserted=6,
        rows_deleted=2,
        since_ms=1,
        is_cut=False,
        measured=1,
    )
    assert store.history.totals(0) == (expected,)
    (later,) = store.history.totals(2)
    assert (later.refreshes, later.failed, later.cpu_ms) == ({RefreshMode.INCREMENTAL: 1}, 1, None)
    assert store.history.totals(5) == ()
    (newest,) = store.history.newest_refreshes()
    assert (newest.checkpoint, newest.error) == (4, "it broke")
    store.jobs.start_run("shop", "job", [])
    assert store.history.totals(0) == store.history.newest_refreshes() == ()


def test_totals_by_day_in_utc(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fence, midnight = store.jobs.take_over("job"), 20_000 * 24 * 3_600_000
    monkeypatch.setattr("tautochrone.meta.sql.datasets.KEPT_PER_DATASET", 4)
    for cpu_ms, at_ms in ((5, midnight - 1), (7, midnight), (None, midnight + 1)):
        number = store.checkpoints.open("job", fence, NewCheckpoint({}, at_ms)).number
        refresh = replace(FULL, cpu_ms=cpu_ms, rows_inserted=2)
        version = Version(str(at_ms))
        store.checkpoints.record_version("job", fence, number, VIEW, version, refresh, finished_at_ms=at_ms)
        store.checkpoints.publish("job", fence, number, at_ms)
    number = store.checkpoints.open("job", fence, NewCheckpoint({}, midnight)).number
    store.checkpoints.record_failure(
        "job", fence, number, VIEW, unclassified("it broke"), RefreshMode.FULL, finished_at_ms=midnight + 2
    )
    days = store.history.totals(0, by_day=True)
    shown = [
        (
            day.day,
            day.since_ms,
            day.refreshes,
            day.failed,
            day.measured,
            day.cpu_ms,
            day.rows_inserted,
            day.is_cut,
        )
        for day in days
    ]
    assert shown == [
        ("2024-10-03", midnight - 1, {RefreshMode.FULL: 1}, 0, 1, 5, 2, True),
        ("2024-10-04", midnight, {RefreshMode.FULL: 2}, 1, 1, 7, 4, False),
    ]
    (whole,) = store.history.totals(0)
    assert (whole.day, whole.refreshes, whole.failed, whole.is_cut) == (None, {RefreshMode.FULL: 3}, 1, True)


def test_full_history_is_said_to_be_cut(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fence = store.jobs.take_over("job")
    monkeypatch.setattr("tautochrone.meta.sql.datasets.KEPT_PER_DATASET", 2)
    run(store, fence, version="a")
    assert not store.history.totals(0)[0].is_cut
    run(store, fence, version="b")
    assert store.history.totals(0)[0].is_cut


def test_neighbours_of_a_checkpoint(store: Store) -> None:
    fence = store.jobs.take_over("job")
    first, second, third = (run(store, fence, version=version) for version in "abc")
    numbers = {number: store.checkpoints.neighbours(number) for number in (first, second, third, third + 5)}
    assert numbers == {
        first: (None, second),
        second: (first, third),
        third: (second, None),
        third + 5: (third, None),
    }


def test_what_is_readable_and_refreshed_before_a_checkpoint(store: Store) -> None:
    fence = store.jobs.take_over("job")
    numbers = [run(store, fence, version=version) for version in ("a", "b", None, "c")]
    store.checkpoints.revoke("job", fence, numbers[1])
    published = CheckpointState.PUBLISHED
    assert store.checkpoints.readable_before(numbers[3], 9) == (
        (numbers[2], published),
        (numbers[0], published),
    )
    assert store.checkpoints.readable_before(numbers[3], 1) == ((numbers[2], published),)
    # A failure gives no version.
    assert store.history.refreshed_between(numbers[0], numbers[3]) == {VIEW: numbers[1]}
    assert store.history.refreshed_between(numbers[1], numbers[3]) == {}
