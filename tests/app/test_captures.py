"""How fast a capture is, from the history of its log table."""

from __future__ import annotations

import pytest

from tautochrone.app.captures import CaptureStatus, CommitRates, commit_rates
from tautochrone.cli.sources import show_sources, source_line
from tautochrone.model.lake import CommitMetadata, TableVersion
from tautochrone.model.names import Fence, TableName, Version
from tautochrone.model.source import KeptLog
from tautochrone.model.source_position import LogPosition

HISTORY = [
    # committed at, point of the position, rows of the table
    (0, None, 0),
    (1_000, 5, 900),
    (100_000, None, 900),
    (101_000, 7, 1_000),
    (105_000, 7, 3_000),
    (110_000, 9, 3_050),
]


def history(count: int) -> list[TableVersion]:
    versions = []
    for number, (at_ms, point, _rows) in enumerate(HISTORY[:count]):
        positions = {} if point is None else {"log": LogPosition(log="db", point=point)}
        metadata = CommitMetadata(store="s", pipeline="p", job="j", fence=Fence(1), positions=positions)
        versions.append(TableVersion(Version(str(number)), metadata, at_ms))
    return versions


def rows_at(version: Version) -> int:
    return HISTORY[int(version)][2]


def test_rates_are_of_the_last_minute_of_commits() -> None:
    rates = commit_rates(history(6), "log", rows_at)
    assert rates.committed_ms == 110_000
    assert rates.rows_per_s == pytest.approx((100 + 2_000) / 10)
    assert rates.events_per_s == pytest.approx(50 / 10)


def test_rates_need_two_commits() -> None:
    assert commit_rates([], "log", rows_at) == CommitRates()
    assert commit_rates(history(1), "log", rows_at) == CommitRates(committed_ms=0)
    only_copied = commit_rates(history(2), "log", rows_at)
    assert (only_copied.rows_per_s, only_copied.events_per_s) == (900, 0)


def test_sources_show_progress_and_rates(capsys: pytest.CaptureFixture[str]) -> None:
    copying = CaptureStatus(
        source="PostgreSQL capture shop",
        table=TableName("lake", ("default",), "shop_log"),
        phase="copying",
        relations=3,
        waiting=["public.orders"],
        chunks_left=5,
        chunks_done=7,
        lag={"bytes": 4096},
        lag_ms=2_345,
        rates=CommitRates(events_per_s=12.34, rows_per_s=45_678.9, committed_ms=0),
    )
    line = source_line(copying)
    assert (line["chunks_done"], line["chunks_total"], line["lag_s"]) == (7, 12, 2.3)
    assert (line["rows_per_s"], line["events_per_s"]) == (45_678.9, 12.3)
    show_sources([line])
    shown = capsys.readouterr().out
    for text in ("copying", "4,096 bytes", "7 of 12", "45,678.9", "12.3", "2.3", "1970-01-01T00:00:00+00:00"):
        assert text in shown


def test_only_slots_of_other_lakes_are_offered_for_dropping(capsys: pytest.CaptureFixture[str]) -> None:
    """A lake that has not begun yet may have made one of them."""
    kept = [
        KeptLog(
            name=f"slot_{number}",
            is_own=is_own,
            distance_bytes=0,
            kept_bytes=None,
            is_lost=False,
            last_read=None,
            drop=f"DROP {number}",
        )
        for number, is_own in enumerate((True, False, None))
    ]
    status = CaptureStatus(
        source="PostgreSQL capture shop",
        table=TableName("lake", ("default",), "shop_log"),
        phase="not begun",
        relations=3,
        kept=kept,
    )
    show_sources([source_line(status)])
    assert [line for line in capsys.readouterr().out.splitlines() if "DROP" in line] == ["  DROP 1;"]
