"""Replay 2013 into a folder, at a chosen speed: `python -m examples.flights.replay --into DIR`.

Files appear whole: each is written under a name that Spark ignores and renamed. Names and contents
depend only on the arguments, so a replay that was killed continues when it is started again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from examples.flights import source
from examples.flights.reports import reports_of

__all__ = ["Drop", "drops", "replay", "write_reference"]


@dataclass(frozen=True, slots=True)
class Drop:
    """One file: when it is complete in simulated time, its path below the folder, its rows."""

    complete_at: pd.Timestamp
    path: str
    rows: pd.DataFrame


def write_reference(into: Path) -> None:
    """Airlines, airports and planes as CSV, and the empty folders that streams need."""
    for folder in ("events", "weather"):
        (into / folder).mkdir(parents=True, exist_ok=True)
    for name in ("airlines", "airports", "planes"):
        target = into / name / f"{name}.csv"
        if not target.exists():
            _write(target, getattr(source, name)().to_csv(index=False))


def drops(days: int | None = None, every_minutes: int = 180) -> Iterator[Drop]:
    """The files of the first `days` days (all of 2013 by default), one kind each per interval.

    A file holds what was delivered in its interval. Reports that are delivered after the last day,
    because a flight landed then or the report was held back, are part of it.
    """
    interval = pd.Timedelta(minutes=every_minutes)
    flights = source.flights()
    weather = source.weather()
    if days is not None:
        end = flights["flight_date"].min() + pd.Timedelta(days=days)
        flights = flights[flights["flight_date"] < end]
        weather = weather[weather["observed_at"] < end.tz_localize("America/New_York")]
    reports = reports_of(flights)
    weather = weather.assign(delivered_at=weather["observed_at"])
    weather["observed_at"] = weather["observed_at"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    origin = min(reports["delivered_at"].min(), weather["delivered_at"].min()).floor("D")
    all_drops: list[Drop] = []
    for name, table in (("events", reports), ("weather", weather)):
        number = (table["delivered_at"] - origin) // interval
        rows = table.drop(columns="delivered_at")
        all_drops.extend(
            Drop(origin + (int(index) + 1) * interval, f"{name}/{name}-{int(index):06d}.json", part)
            for index, part in rows.groupby(number.to_numpy(), sort=True)
        )
    # Weather comes before the flights of the same hours: at equal times, names sort in reverse.
    yield from sorted(
        sorted(all_drops, key=lambda drop: drop.path, reverse=True), key=lambda d: d.complete_at
    )


def replay(
    into: Path,
    *,
    speed: float = 0.0,
    days: int | None = None,
    every_minutes: int = 180,
    limit: int | None = None,
) -> tuple[int, int]:
    """Write the files, at most `limit`, at `speed` simulated seconds per second (0: no waiting).

    Returns:
        How many files and how many rows are there now (reference data not counted).
    """
    write_reference(into)
    files = rows = 0
    begin: pd.Timestamp | None = None
    started = time.monotonic()
    for drop in drops(days, every_minutes):
        if limit is not None and files >= limit:
            break
        begin = begin or drop.complete_at
        if speed > 0:
            due = started + (drop.complete_at - begin).total_seconds() / speed
            time.sleep(max(0.0, due - time.monotonic()))
        target = into / drop.path
        if not target.exists():
            _write(target, drop.rows.to_json(orient="records", lines=True, double_precision=5))
        files, rows = files + 1, rows + len(drop.rows)
    return files, rows


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.tmp")
    hidden.write_text(text)
    hidden.replace(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights.replay", description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="the folder, made when missing")
    parser.add_argument("--speed", type=float, default=0.0,
                        help="simulated seconds per second; 0 (default) does not wait")  # fmt: skip
    parser.add_argument("--days", type=int, help="only the first days of 2013")
    parser.add_argument("--every", type=int, default=180, metavar="MINUTES",
                        help="simulated minutes in one file (default 180)")  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="FILES", help="stop after so many files")
    given = parser.parse_args(arguments)
    started = time.monotonic()
    files, rows = replay(given.into, speed=given.speed, days=given.days,
                         every_minutes=given.every, limit=given.limit)  # fmt: skip
    print(f"{files} files, {rows} rows in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
