"""The expectations of a table that AUTO CDC flows write: events are checked before they are merged.

An event that would write a row is checked; deletions and truncations write none. So what the table holds
follows from the events that are merged, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tautochrone.ingest.expectations import require_met
from tautochrone.model.auto_cdc import DELETE_COLUMN, SEQUENCE_COLUMN, TRUNCATE_COLUMN
from tautochrone.model.definitions import Expectation
from tautochrone.model.names import TableName
from tautochrone.spark.execute.expectations import violations, without_flags

__all__ = ["CheckedEvents", "checked_events"]


@dataclass(frozen=True, slots=True)
class CheckedEvents:
    """The events that are merged, and the violations of each expectation since the last full refresh."""

    parts: Sequence[DataFrame]
    violations: Mapping[str, int]


def checked_events(
    flagged: Sequence[DataFrame],
    table: TableName,
    expectations: Sequence[Expectation],
    before: Mapping[str, int],
) -> CheckedEvents:
    """Count the violations of new events, and leave out what is dropped.

    Args:
        flagged: the events of each flow, as `with_flags` gives them.
        before: the violations of the events that are merged.

    Raises:
        ExpectationError: an event violates an expectation that fails.
    """
    if not expectations:
        return CheckedEvents(flagged, {})
    counted = {expectation.name: before.get(expectation.name, 0) for expectation in expectations}
    parts = []
    for events in flagged:
        violated = violations(events, expectations)
        # People know the columns of their table.
        rows = events.drop(SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
        require_met(table, rows, expectations, violated)
        counted = {name: count + violated[name] for name, count in counted.items()}
        parts.append(without_flags(events, expectations))
    return CheckedEvents(parts, counted)
