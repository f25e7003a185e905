"""Transactions of ClickHouse's embedded engine, against plain inserts of the same encoded rows.

Rows come as Arrow tables, as Spark gives them, but there is no Spark. A plain insert encodes and sends them.
CPU time is that of this process, which the engine is in. See `sink_mirror` for what is measured how.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.sink_mirror import ArrowRows, Cost, Mirror, generated, medians, ratios
from tautochrone.sinks.clickhouse.rows import Batch

__all__ = ["measure"]

_MINUTE_S = 60
_WAYS = ("encode", "hash", "plain", "append", "hashed", "keyed")
_HASHED_ROWS = 1_000_000
"""Of more rows only the plain insert and the transaction are compared."""


def measure(
    folder: Path,
    sizes: Sequence[int] = (1_000, 10_000, 100_000, 1_000_000, 10_000_000),
    rounds: int = 5,
    rates: Sequence[int] = (1_000, 10_000),
    intervals_s: Sequence[int] = (1, 5, 15, 60),
) -> dict[str, Any]:
    """Ratios of CPU and wall time by size, and costs by interval.

    Args:
        folder: of the engine.
        sizes: rows of one insert or transaction.
        rounds: that are measured, fewer of many rows; their medians count.
        rates: rows a second of the streams that are delivered at intervals.
        intervals_s: between two deliveries of them; each divides a minute.
    """
    engine_folder = folder / "sink_costs"
    shutil.rmtree(engine_folder, ignore_errors=True)
    engine_folder.mkdir(parents=True)
    # The engine stays open as long as one of its sinks is.
    mirror = Mirror.open(engine_folder, "bench")
    try:
        by_size = [_by_size(mirror, rows, max(1, min(rounds, 2_000_000 // rows))) for rows in sizes]
        intervals = [each for rate in rates for each in _intervals(mirror, rate, intervals_s)]
    finally:
        mirror.sink.close()
    return {"sizes": by_size, "intervals": intervals}


def _by_size(keeper: Mirror, rows: int, rounds: int) -> dict[str, Any]:
    """A round appends new rows in each way, and changes as many rows of the mirror.

    `hashed` is the transaction with the option compare = hash, in a database of its own.
    """
    mirror = keeper.beside(f"bench_{rows}")
    hashed = keeper.beside(f"bench_{rows}_hashed", compare="hash")
    mirror.engine.run("SYSTEM STOP MERGES")
    costs: dict[str, list[Cost]] = {way: [] for way in _WAYS}
    delivered = 0
    previous = generated(0, min(rows, _HASHED_ROWS))
    # The first transaction of a run hashes rows, and the first round warms up.
    mirror.deliver(previous)
    warm_up = 1 if rows <= _HASHED_ROWS else 0
    for round_ in range(1, rounds + 1 + warm_up):
        added = generated(round_ * rows, rows)
        encoded: list[Batch] = []
        ways: dict[str, Callable[[], object]] = {
            "encode": lambda added=added, encoded=encoded: encoded.extend(mirror.encoded(added)),
            "plain": lambda encoded=encoded: mirror.insert(encoded),
            "append": lambda added=added: mirror.deliver(added),
        }
        if rows <= _HASHED_ROWS:
            changed = generated((round_ - 1) * rows, rows, note="changed")
            ways["hash"] = lambda encoded=encoded: [batch.hashes for batch in encoded]
            ways["hashed"] = lambda added=added: hashed.deliver(added)
            ways["keyed"] = lambda new=changed, old=previous: mirror.deliver(new, old)
        others = [name for name in ways if name != "encode"]
        for name in ["encode", *(others if round_ % 2 else reversed(others))]:
            cost = mirror.cost(ways[name])
            if round_ > warm_up:
                costs[name].append(cost)
        previous = added
        delivered += rows
    counts = mirror.rows("plain"), mirror.rows("events")
    if counts != (delivered, delivered + min(rows, _HASHED_ROWS)):
        raise RuntimeError(f"rows of the plain and the mirrored table: {counts}")
    for each in (mirror, hashed):
        each.drop()
    plain = list(map(Cost.__add__, costs["encode"], costs["plain"]))
    measured = {name: medians(values) for name, values in costs.items() if values}
    result = {
        "rows": rows,
        "costs": measured,
        "append_to_plain": ratios(costs["append"], plain),
        "inserted_to_plain": ratios(
            list(map(Cost.__sub__, costs["append"], costs["encode"])), costs["plain"]
        ),
    }
    if rows <= _HASHED_ROWS:
        result["keyed_to_append"] = ratios(costs["keyed"], costs["append"])
    return result


def _intervals(mirror: Mirror, rate: int, intervals_s: Sequence[int]) -> list[dict[str, Any]]:
    """What a minute of a stream costs, delivered at intervals; nothing waits for its time to come."""
    measured = []
    first = 1_000_000_000
    for interval_s in intervals_s:
        count = rate * interval_s
        changes = [generated(first + index * count, count) for index in range(_MINUTE_S // interval_s)]
        first += rate * _MINUTE_S

        def plain(changes: list[ArrowRows] = changes) -> None:
            for change in changes:
                mirror.insert(mirror.encoded(change))

        def transactions(changes: list[ArrowRows] = changes) -> None:
            for change in changes:
                mirror.deliver(change)

        plain_cost, cost = mirror.cost(plain), mirror.cost(transactions)
        measured.append(
            {
                "rate": rate,
                "interval_s": interval_s,
                "transactions": len(changes),
                "plain_cpu_s": plain_cost.cpu_s,
                "plain_wall_s": plain_cost.wall_s,
                "cpu_s": cost.cpu_s,
                "wall_s": cost.wall_s,
            }
        )
    return measured
