"""When a flow has taken in all that its source held."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tautochrone.ingest import source_observations
from tautochrone.ingest.source_observations import SourceObservations, took_all

FILES = "FileStreamSource[file:/in]"
KAFKA = "KafkaV2[Subscribe[orders]]"


def trigger(start: str, end: str, latest: str = "None", source: str = FILES, **more: Any) -> dict[str, Any]:
    source_progress = {"description": source, "startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"durationMs": {"latestOffset": 3}, "sources": [source_progress], **more}


class OtherSource:
    """Promises nothing."""

    def takes_all_listed(self, description: str) -> bool | None:
        del description
        return None


class Files(OtherSource):
    """Takes all files that it lists, unless it is limited."""

    def __init__(self, limited: bool) -> None:
        self._limited = limited

    def takes_all_listed(self, description: str) -> bool | None:
        return not self._limited if description == FILES else None


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
        "all files", "a part of the files", "no new files", "no file yet, or not known", "planned earlier",
        "a source that may take a part", "nothing new", "all records", "a part of the records", "held back",
    ],
)  # fmt: skip
def test_took_all(progress: dict[str, Any], limited: bool, took: bool) -> None:
    sources = [Files(limited), OtherSource()]
    assert took_all(progress, sources) is took
    both = {**progress, "sources": [*progress["sources"], *trigger("0", "1")["sources"]]}
    assert took_all(both, sources) is (took and not limited)


def test_trigger_counts_for_times_before_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's clock is 5 s ahead of the store's."""
    observations = SourceObservations()

    def ask(store_ms: int) -> None:
        monkeypatch.setattr(source_observations, "now_ms", lambda: store_ms + 5_000)
        observations.store_time_is(store_ms)

    def ended(begun_ms: int, *, took: bool = True) -> int | None:
        began = datetime.fromtimestamp(begun_ms / 1000, UTC).isoformat()
        observations.note_trigger(trigger("0", "0" if took else "1", timestamp=began), [Files(limited=True)])
        return observations.committed_up_to_ms

    for store_ms in (1_000, 2_000, 3_000):
        ask(store_ms)
    assert ended(6_000) is None
    assert ended(7_001, took=False) is None
    assert ended(7_001) == 2_000
    assert ended(8_000) == 2_000
    assert ended(8_001) == 3_000


def test_times_during_a_long_batch_stay_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    observations = SourceObservations()
    for ms in range(100_000):
        monkeypatch.setattr(source_observations, "now_ms", lambda now_ms=ms: now_ms)
        observations.store_time_is(ms)
    assert len(observations._times) <= 1_024
    observations.took_all_since(100_001)
    assert observations.committed_up_to_ms == 99_999
