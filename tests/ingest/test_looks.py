"""What counts as having taken in all that a source held."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tautochrone.ingest import source_observations as looks
from tautochrone.ingest.source_observations import Looks

FILES = "FileStreamSource[file:/in]"
KAFKA = "KafkaV2[Subscribe[orders]]"


def trigger(start: str, end: str, latest: str = "None", source: str = FILES, **more: Any) -> dict[str, Any]:
    told = {"description": source, "startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"durationMs": {"latestOffset": 3}, "sources": [told], **more}


@pytest.mark.parametrize(
    ("progress", "limited", "took"),
    [
        (trigger("0", "1"), False, True),
        (trigger("0", "1"), True, False),
        (trigger("1", "1"), True, True),
        (trigger("None", "None"), True, False),
        (trigger("None", "0", durationMs={"addBatch": 9}), False, False),
        (trigger("0", "1", source="RateStream"), False, False),
        (trigger("1", "1", source="RateStream"), False, True),
        (trigger("7", "9", "9", KAFKA), False, True),
        (trigger("7", "8", "9", KAFKA), False, False),
        # `minOffsetsPerTrigger` lets records wait while nothing is done.
        (trigger("7", "7", "9", KAFKA), False, False),
    ],
    ids=[
        "all files", "a part of the files", "no new files", "no file yet, or not told", "planned earlier",
        "a source that may take a part", "nothing new", "all records", "a part of the records", "held back",
    ],
)  # fmt: skip
def test_what_a_trigger_took(progress: dict[str, Any], limited: bool, took: bool) -> None:
    assert looks.took_all(progress, limited=limited) is took
    both = {**progress, "sources": [*progress["sources"], *trigger("0", "1")["sources"]]}
    assert looks.took_all(both, limited=limited) is (took and not limited)


def test_a_trigger_counts_for_what_was_asked_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is 5 s ahead of the store's."""
    found = Looks()

    def ask(store_ms: int) -> None:
        monkeypatch.setattr(looks.time, "time_ns", lambda: (store_ms + 5_000) * 1_000_000)
        found.ask(store_ms)

    def ended(begun_ms: int, *, took: bool = True) -> int | None:
        began = datetime.fromtimestamp(begun_ms / 1000, UTC).isoformat()
        found.progressed(trigger("0", "0" if took else "1", timestamp=began), limited=True)
        return found.seen_ms

    for store_ms in (1_000, 2_000, 3_000):
        ask(store_ms)
    assert ended(6_000) is None
    assert ended(7_001, took=False) is None
    assert ended(7_001) == 2_000
    assert ended(8_000) == 2_000
    assert ended(8_001) == 3_000


def test_what_was_asked_during_a_long_batch_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Looks()
    for ms in range(100_000):
        monkeypatch.setattr(looks.time, "time_ns", lambda at=ms: at * 1_000_000)
        found.ask(ms)
    assert len(found._asked) <= 1_024
    found.took(100_001)
    assert found.seen_ms == 99_999
