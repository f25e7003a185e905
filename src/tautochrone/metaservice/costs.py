"""What refreshes cost: by dataset and day, from the history that the store keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tautochrone.meta import Store
from tautochrone.model.checkpoint import RefreshRecord
from tautochrone.model.names import TableName

__all__ = ["DayCost", "costs_by_day", "summed_by_day"]

_BATCH = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCost:
    """What the refreshes of one dataset cost on one day.

    Attributes:
        day: in UTC, `2026-11-30`.
        first_ms: when the first of them ended, in epoch milliseconds. Earlier ones of that day may have
            left the history, which keeps so many of each dataset.
        refreshes: those that changed something; `failed` are those that gave no version.
        measured: the refreshes whose CPU time is known.
        cpu_ms: CPU time of Spark's tasks on all executors, in milliseconds. That of the driver is not in it.
        duration_ms: wall time of the refreshes, in milliseconds; several run at once.
        rows: rows that they inserted and deleted.
    """

    dataset: TableName
    day: str
    first_ms: int
    refreshes: int = 0
    failed: int = 0
    measured: int = 0
    cpu_ms: int = 0
    duration_ms: int = 0
    rows: int = 0


def costs_by_day(store: Store) -> list[DayCost]:
    """Of all datasets, as far as the history goes back, the newest day first.

    >>> costs_by_day(store)[0]                                                          # doctest: +SKIP
    DayCost(dataset=TableName(…, 'totals'), day='2026-11-30', refreshes=12, …)
    """
    records: list[RefreshRecord] = []
    last = 0
    while batch := store.history.refreshes_after(last, _BATCH):
        records += [record for _, record in batch]
        last = batch[-1][0]
    return summed_by_day(records)


def summed_by_day(records: Iterable[RefreshRecord]) -> list[DayCost]:
    """The sums, the newest day first, and of a day what took most CPU time first."""
    sums: dict[tuple[str, TableName], DayCost] = {}
    for record in records:
        day = datetime.fromtimestamp(record.finished_at_ms / 1000, UTC).date().isoformat()
        cost = sums.get((day, record.dataset)) or DayCost(
            dataset=record.dataset, day=day, first_ms=record.finished_at_ms
        )
        sums[day, record.dataset] = _with(cost, record)
    by_cost = sorted(sums.values(), key=lambda cost: (-cost.cpu_ms, -cost.duration_ms, str(cost.dataset)))
    return sorted(by_cost, key=lambda cost: cost.day, reverse=True)


def _with(cost: DayCost, record: RefreshRecord) -> DayCost:
    refresh, cost = record.refresh, replace(cost, first_ms=min(cost.first_ms, record.finished_at_ms))
    if refresh is None:
        return replace(cost, failed=cost.failed + 1)
    return replace(
        cost,
        refreshes=cost.refreshes + 1,
        measured=cost.measured + (refresh.cpu_ms is not None),
        cpu_ms=cost.cpu_ms + (refresh.cpu_ms or 0),
        duration_ms=cost.duration_ms + refresh.duration_ms,
        rows=cost.rows + refresh.rows_inserted + refresh.rows_deleted,
    )
