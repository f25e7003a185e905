"""How fast a capture is, from the history of its log table."""

from __future__ import annotations

import pytest

from tautochrone.app.captures import CommitRates, commit_rates
from tautochrone.model.lake import CommitMetadata, TableVersion
from tautochrone.model.names import Fence, Version
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
