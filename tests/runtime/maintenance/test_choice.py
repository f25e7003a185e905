"""What may go, as pure functions: checkpoints by age and distance, versions by who needs them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tautochrone.iceberg.maintenance.table_maintenance import expirable
from tautochrone.meta.protocols.checkpoints import UnexpiredCheckpoint
from tautochrone.model.lake import Retention
from tautochrone.model.names import CheckpointNumber, Version
from tautochrone.project.settings import MaintenanceRules
from tautochrone.runtime.maintenance.retention import expirable_checkpoints

RULES = MaintenanceRules(
    enabled=True, keep_ms=100_000, keep_last=3, spacing_ms=10_000, history_ms=0,
    every_ms=0, budget_ms=0, min_versions=1, min_files=0, max_files=1,
    orphans_ms=0, orphans_every_ms=0,
)  # fmt: skip


def at(*seconds: int) -> list[UnexpiredCheckpoint]:
    return [UnexpiredCheckpoint(CheckpointNumber(n), s * 1000) for n, s in enumerate(seconds, 1)]


@pytest.mark.parametrize(
    ("seconds", "now", "expected"),
    [
        ((), 1000, []),
        ((1, 2, 3), 1000, []),
        ((0, 10, 20, 30), 1000, [1]),
        ((900, 910, 920, 930, 940), 1000, []),
        ((900, 905, 910, 970, 980, 990), 1000, [2]),
        ((900, 909, 918, 970, 980, 990), 1000, [2]),
        ((899, 900, 918, 970, 980, 990), 1000, [1]),
    ],
)
def test_checkpoints(seconds: tuple[int, ...], now: int, expected: list[int]) -> None:
    assert expirable_checkpoints(at(*seconds), now * 1000, RULES) == expected


@given(st.lists(st.integers(1, 30), min_size=1, max_size=200))
def test_a_stream_of_checkpoints_is_thinned_and_stays_so(gaps: list[int]) -> None:
    """What one maintenance kept for its distance, the next ones keep until it is too old."""
    published: list[UnexpiredCheckpoint] = []
    now = 0
    for number, gap in enumerate(gaps, 1):
        now += gap * 1000
        published.append(UnexpiredCheckpoint(CheckpointNumber(number), now))
        outlived_numbers = set(expirable_checkpoints(published, now, RULES))
        remaining = [c for c in published if c.number not in outlived_numbers]
        assert remaining[-3:] == published[-3:]
        older = remaining[:-3]
        assert all(now - c.at_ms <= RULES.keep_ms for c in older)
        assert all(b.at_ms - a.at_ms >= RULES.spacing_ms for a, b in pairwise(older))
        before = [c for c in published[:-3] if now - c.at_ms <= RULES.keep_ms]
        if before:
            # Never thinner than asked: within twice the distance of each there is one that stays.
            assert all(any(abs(c.at_ms - k.at_ms) < RULES.spacing_ms for k in older) for c in before)
        published = remaining


def table(*parents: int | None, main: int, refs: dict[str, int] | None = None) -> dict[str, Any]:
    """Snapshots 1, 2, 3, … with these parents, one a second."""
    return {
        "current-snapshot-id": main,
        "refs": {name: {"snapshot-id": n} for name, n in {"main": main, **(refs or {})}.items()},
        "snapshots": [
            {"snapshot-id": n, "parent-snapshot-id": p, "timestamp-ms": n * 1000, "sequence-number": n}
            for n, p in enumerate(parents, 1)
        ],
    }


LINE = table(None, 1, 2, 3, 4, 5, main=6)
NEVER = 10**15


def retention(readable: str = "", followed: str = "", after_ms: int = NEVER) -> Retention:
    return Retention(
        readable=frozenset(map(Version, readable.split())),
        followed=frozenset(map(Version, followed.split())),
        after_ms=after_ms,
    )


@pytest.mark.parametrize(
    ("metadata", "needed", "expired"),
    [
        (LINE, retention(), [1, 2, 3, 4, 5]),
        (LINE, retention("2"), [1, 3, 4, 5]),
        (LINE, retention(followed="4"), [1, 2, 3]),
        (LINE, retention(followed="5 3"), [1, 2]),
        (LINE, retention("1", "5"), [2, 3, 4]),
        (LINE, retention(followed="99 -1"), [1, 2, 3, 4, 5]),
        (LINE, retention(after_ms=3000), [1, 2]),
        (LINE, retention(after_ms=0), []),
        (table(None, 1, 2, 3, main=4, refs={"mine": 2}), retention(), [1, 3]),
        # A batch that is prepared beside main, and what a roll-back left behind.
        (table(None, 1, 2, 3, 4, main=4, refs={"prepared": 5}), retention(), [1, 2, 3]),
        (table(None, 1, 2, 2, main=4), retention(followed="2"), [1, 3]),
        (table(None, 1, 2, 2, main=4), retention(followed="3"), [1, 2, 3]),
        # The chain is broken already: 2 is gone.
        (table(None, 7, 2, 3, main=4), retention(followed="1 3"), [1, 2]),
        ({"current-snapshot-id": -1, "snapshots": [], "refs": {}}, retention(), []),
        ({}, retention(), []),
    ],
)
def test_versions(metadata: dict[str, Any], needed: Retention, expired: list[int]) -> None:
    assert expirable(metadata, needed) == expired
