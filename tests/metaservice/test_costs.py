"""What refreshes cost, summed by dataset and day; without Spark."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tautochrone.metaservice.costs import DayCost, costs_by_day, summed_by_day
from tautochrone.model.checkpoint import Refresh, RefreshMode, RefreshRecord
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

ORDERS, TOTALS = TableName.parse("lake.db.orders"), TableName.parse("lake.db.totals")


def refresh(dataset: TableName, at: str, cpu_ms: int | None, *, rows: int = 1) -> RefreshRecord:
    done = Refresh(
        mode=RefreshMode.APPEND,
        reason=Reason.of(ReasonCode.INPUTS_APPENDED),
        rows_inserted=rows,
        rows_deleted=rows,
        duration_ms=10,
        cpu_ms=cpu_ms,
    )
    return _record(dataset, at, done)


def _record(dataset: TableName, at: str, done: Refresh | None) -> RefreshRecord:
    return RefreshRecord(
        checkpoint=CheckpointNumber(1),
        dataset=dataset,
        version=Version("1"),
        refresh=done,
        error=None if done else "it failed",
        finished_at_ms=int(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() * 1000),
    )


def test_days_are_those_of_utc_and_the_dearest_comes_first() -> None:
    records = [
        refresh(ORDERS, "2026-11-29T23:59:59.999", 5),
        refresh(ORDERS, "2026-11-30T00:00:00", 7),
        refresh(TOTALS, "2026-11-30T00:00:00", 9, rows=2),
        refresh(ORDERS, "2026-11-30T12:00:00", None),
        _record(ORDERS, "2026-11-30T12:00:01", None),
    ]
    midnight = records[1].finished_at_ms
    assert summed_by_day(records) == [
        DayCost(
            dataset=TOTALS, day="2026-11-30", first_ms=midnight, refreshes=1, measured=1, cpu_ms=9,
            duration_ms=10, rows=4,
        ),
        DayCost(
            dataset=ORDERS, day="2026-11-30", first_ms=midnight, refreshes=2, failed=1, measured=1, cpu_ms=7,
            duration_ms=20, rows=4,
        ),
        DayCost(
            dataset=ORDERS, day="2026-11-29", first_ms=midnight - 1, refreshes=1, measured=1, cpu_ms=5,
            duration_ms=10, rows=2,
        ),
    ]  # fmt: skip


@given(st.integers(0, 2_500))
def test_the_whole_history_is_read(count: int) -> None:
    record = refresh(ORDERS, "2026-11-30T00:00:00", 1)

    def refreshes_after(last: int, limit: int) -> list[tuple[int, RefreshRecord]]:
        # Ids of a history that was shortened do not begin at 1, and leave gaps.
        return [(3 * n, record) for n in range(1, count + 1) if 3 * n > last][:limit]

    store: Any = SimpleNamespace(history=SimpleNamespace(refreshes_after=refreshes_after))
    assert sum(cost.refreshes for cost in costs_by_day(store)) == count
