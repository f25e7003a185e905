"""Charts: whatever the values, every bar is inside the axis, and labels do not stand in each other."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tautochrone.metaservice.pages.charts import duration_chart, rows_chart
from tautochrone.model.checkpoint import Refresh, RefreshMode, RefreshRecord
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import unclassified

rows = st.integers(0, 9) | st.integers(0, 3_000) | st.integers(0, 10**12)


def record(added: int, removed: int, duration_ms: int = 1) -> RefreshRecord:
    refresh = Refresh(
        mode=RefreshMode.FULL, reason=unclassified("x"), rows_inserted=added, rows_deleted=removed,
        duration_ms=duration_ms,
    )  # fmt: skip
    table = TableName("lake", ("db",), "t")
    return RefreshRecord(
        checkpoint=CheckpointNumber(1), dataset=table, version=Version("v"), refresh=refresh, error=None,
        finished_at_ms=1,
    )  # fmt: skip


@given(st.lists(st.tuples(rows, rows), min_size=1, max_size=30))
def test_bars_are_whole_and_labels_apart(changes: list[tuple[int, int]]) -> None:
    chart = rows_chart([record(added, removed) for added, removed in changes])
    assert chart is not None
    assert all(bar.y >= 0 and bar.y + bar.height <= chart.height - 20 for bar in chart.bars)
    heights = sorted(tick.y for tick in chart.ticks)
    assert all(below - above >= 10 for above, below in pairwise(heights)), chart.ticks
    assert len(chart.ticks) >= 2
    assert all(len(tick.label) <= 6 for tick in chart.ticks), chart.ticks


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_durations_are_ordered_as_bars(durations: list[int]) -> None:
    chart = duration_chart([record(1, 0, took) for took in durations])
    assert chart is not None
    bars = [bar.height for bar in chart.bars]
    for (took, height), (other_took, other_height) in pairwise(zip(reversed(durations), bars, strict=True)):
        assert height == other_height or (height < other_height) is (took < other_took)


def test_outlier_flattens_nothing() -> None:
    chart = rows_chart([record(500, 300)] * 20 + [record(40_000, 0)])
    assert chart is not None
    assert chart.title.endswith("(logarithmic)")
    assert min(bar.height for bar in chart.bars if bar.css_class == "in") > 15
