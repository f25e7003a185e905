"""The replay: its files, their order, and that it can be interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from examples.flights import source
from examples.flights.child import describe
from examples.flights.replay import drops, main, replay
from examples.flights.reports import ANNOUNCED_BEFORE, MAX_DELIVERY_DELAY, reports_of


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return source.flights()


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_the_source_is_all_of_2013(flights: pd.DataFrame) -> None:
    assert len(flights) == 336_776
    assert not flights.duplicated(["flight_date", "carrier", "flight", "origin"]).any()


def test_landings_agree_with_the_time_in_the_air(flights: pd.DataFrame) -> None:
    minutes = (flights["arrived_at"] - flights["departed_at"]).dt.total_seconds() / 60
    taxi = (minutes - flights["air_time"]).dropna()
    assert taxi.min() > 0
    assert taxi.max() < 240


def test_a_cancelled_flight_is_only_scheduled(flights: pd.DataFrame) -> None:
    some = flights[flights["flight_date"] < "2013-01-08"]
    reports = reports_of(some)
    counts = reports["kind"].value_counts()
    assert counts["scheduled"] == len(some)
    assert counts["departed"] == some["dep_time"].notna().sum()
    assert counts["arrived"] == some["arr_time"].notna().sum()
    assert counts["scheduled"] > counts["departed"] > counts["arrived"]


def test_delivery_is_late_within_a_bound_and_out_of_order(flights: pd.DataFrame) -> None:
    reports = reports_of(flights[flights["flight_date"] < "2013-01-08"])
    happened = pd.to_datetime(reports["event_time"], utc=True)
    late = reports["delivered_at"] - happened
    assert late.min() >= pd.Timedelta(0)
    assert late.max() <= MAX_DELIVERY_DELAY
    assert reports["delivered_at"].is_monotonic_increasing
    assert not happened.is_monotonic_increasing
    scheduled = reports["kind"] == "scheduled"
    departure = pd.to_datetime(reports["scheduled_departure"], utc=True)
    assert (departure - happened)[scheduled].eq(ANNOUNCED_BEFORE).all()


def test_files_come_in_order_of_time() -> None:
    all_drops = list(drops(days=2))
    assert [drop.complete_at for drop in all_drops] == sorted(drop.complete_at for drop in all_drops)
    assert len({drop.path for drop in all_drops}) == len(all_drops)


def test_interrupted_replay_continues(tmp_path: Path) -> None:
    replay(tmp_path / "whole", days=2)
    replay(tmp_path / "parts", days=2, limit=7)
    partial = contents(tmp_path / "parts")
    # A kill between writing and renaming leaves this file.
    (tmp_path / "parts" / "events" / ".events-000009.json.tmp").write_text('{"kind":"sch')
    replay(tmp_path / "parts", days=2)
    whole = contents(tmp_path / "whole")
    assert contents(tmp_path / "parts") == whole
    assert partial.items() < whole.items()


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--into", str(tmp_path), "--days", "1", "--limit", "3", "--speed", "1e9"]) == 0
    assert capsys.readouterr().out.startswith("3 files, ")
    first = next((tmp_path / "events").glob("*.json")).read_text().splitlines()[0]
    assert json.loads(first)["kind"] == "scheduled"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "refresh", "dataset": "lake.default.flights", "mode": "no_data"}, None),
        (
            {"event": "refresh", "dataset": "lake.default.flights", "mode": "diff",
             "rows_inserted": 1200, "rows_deleted": None, "duration_ms": 1500, "reason": "first"},
            ["refresh", "flights", "diff", "+1,200", "-0", "1.5", "s", "first"],
        ),
        ({"event": "checkpoint", "checkpoint": 4}, ["checkpoint", "4"]),
        ({"event": "run", "state": "COMPLETED"}, ["run", "COMPLETED"]),
        ({"event": "something-new"}, None),
    ],
)  # fmt: skip
def test_events_as_lines(event: dict[str, Any], words: list[str] | None) -> None:
    line = describe(event)
    assert (line.split() if line else None) == words
