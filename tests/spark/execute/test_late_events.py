"""A table that forgets deletions has the rows that all events give which were not refused, in whatever order
they come."""

from __future__ import annotations

import random
from collections import Counter
from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql.types import DateType, StructField, StructType
from tests.spark.execute.test_merge_events import (
    CHECKS,
    MODES,
    QUERY,
    TRUNCATION,
    Event,
    Table,
    current_rows,
    histories,
)

from tautochrone.spark.analysis.session_context import tuned_session
from tautochrone.spark.execute.merge_events import Horizon, event_merge, horizon_of

pytestmark = pytest.mark.spark

DAYS = 3
DATED = StructType([StructField(f.name, DateType()) if "sequence" in f.name else f for f in QUERY.fields])


def dated(event: Event) -> tuple[Any, ...]:
    key, a, b, _, *flags = event.row()
    return key, a, b, date(2026, 1, 1) + timedelta(event.sequence), *flags


class ForgettingTable(Table):
    """Every merge folds the state's runs."""

    forgotten = 0
    newest: int | None = None

    def take_and_forget(self, events: list[Event]) -> list[Event]:
        """Returns the events that are not refused."""
        frame = self.spark.createDataFrame(list(map(dated, events)), DATED)
        horizon = self.horizon()
        if horizon is not None:
            assert self.newest is not None
            late = [event for event in events if event.sequence < self.newest - DAYS]
            assert frame.where(horizon.is_late()).count() == len(late)
            frame = frame.where(~horizon.is_late())
            events = [event for event in events if event not in late]
        if not events:
            return []
        self.take_rows(frame)
        self.newest = max([event.sequence for event in events] + [self.newest or 0])
        if horizon is not None:
            width = len(self.merge.state_keys)
            for row in self.stored().where(horizon.forgets).collect():
                del self.state[tuple(row[:width])]
                self.forgotten += 1
        return events

    def horizon(self) -> Horizon | None:
        return horizon_of(self.merge, self.stored(), DAYS * 86_400_000)

    def stored(self) -> Any:
        schema = StructType(self.merge.state_schema("run").fields[:-1])
        return self.spark.createDataFrame(list(self.state.values()), schema)


@pytest.mark.parametrize(
    "mode", [pytest.param("newest-without-truncation", marks=pytest.mark.slow), "newest-ignoring-null"]
)
def test_rows_are_those_of_the_events_that_are_not_refused(spark: SparkSession, mode: str) -> None:
    auto_cdc = MODES[mode]
    truncating = auto_cdc.truncate is not None
    forgotten = refused = 0

    @seed(1)
    @settings(CHECKS, max_examples=2)
    @given(histories(40, truncating=truncating), st.randoms(use_true_random=False))
    def run(events: list[Event], choice: random.Random) -> None:
        nonlocal forgotten, refused
        columns = auto_cdc.merge_columns(DATED.names, "test")
        table = ForgettingTable(spark, event_merge(auto_cdc, columns, DATED, truncates=truncating))
        # About in order, some much later, and a fifth of them twice.
        sent = [*events, *choice.sample(events, k=len(events) // 5)]
        sent.sort(key=lambda event: event.sequence + choice.choice((0, 0, 1, 2, 12)))
        taken: list[Event] = []
        size = max(1, len(sent) // 3)
        with tuned_session(spark, delta_rows=len(sent), input_rows=len(sent)):
            for start in range(0, len(sent), size):
                batch = sent[start : start + size]
                accepted = table.take_and_forget(batch)
                refused += len(batch) - len(accepted)
                taken += accepted
        expected: Counter[tuple[Any, ...]] = Counter()
        truncations = [event for event in taken if event.id == TRUNCATION]
        ignoring = "".join(table.merge.columns.null_ignoring)
        for key in {event.id for event in taken} - {TRUNCATION}:
            own = [event for event in taken if event.id == key]
            expected.update(current_rows([*own, *truncations], ignoring=ignoring))
        assert table.rows == expected
        forgotten += table.forgotten

    run()
    assert forgotten
    assert refused
