"""One query over five tables whose rows must be equal at every checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["TIE_OUT", "TieOut", "tie_out"]

# Each row computes the same numbers over another path of the graph: a reader who sees one table
# at a later checkpoint than another gets different rows.
TIE_OUT = """
SELECT 'events' AS dataset, count(*) AS reports,
  coalesce(sum(CASE WHEN kind = 'departed' THEN delay_minutes END), 0) AS departure_delay,
  coalesce(sum(CASE WHEN kind = 'arrived' THEN delay_minutes END), 0) AS arrival_delay
FROM events
UNION ALL
SELECT 'flights', coalesce(sum(scheduled + departed + arrived), 0),
  coalesce(sum(departure_delay), 0), coalesce(sum(arrival_delay), 0)
FROM flights
UNION ALL
SELECT 'daily_totals', coalesce(sum(events), 0),
  coalesce(sum(departure_delay_minutes), 0), coalesce(sum(arrival_delay_minutes), 0)
FROM daily_totals
UNION ALL
SELECT 'delay_by_carrier_hour', coalesce(sum(scheduled + departed + arrived), 0),
  coalesce(sum(departure_delay_minutes), 0), coalesce(sum(arrival_delay_minutes), 0)
FROM delay_by_carrier_hour
UNION ALL
SELECT 'delay_by_weather', coalesce(sum(scheduled + departed + arrived), 0),
  coalesce(sum(departure_delay_minutes), 0), coalesce(sum(arrival_delay_minutes), 0)
FROM delay_by_weather
"""

_TABLES = 5


@dataclass(frozen=True, slots=True)
class TieOut:
    """The result of `TIE_OUT`: (reports, minutes late at departure, at arrival) per table."""

    totals: Mapping[str, tuple[int, int, int]]

    @property
    def holds(self) -> bool:
        return len(self.totals) == _TABLES and len(set(self.totals.values())) == 1

    @property
    def reports(self) -> int:
        """The number of reports in `events`."""
        return self.totals["events"][0]

    def __str__(self) -> str:
        if self.holds:
            reports, departure, arrival = self.totals["events"]
            return (
                f"{reports:,} reports, {departure:,} minutes late at departure, {arrival:,} at "
                f"arrival: {_TABLES} tables agree"
            )
        return "DOES NOT TIE OUT " + ", ".join(f"{k} {v}" for k, v in self.totals.items())


def tie_out(rows: Iterable[Mapping[str, Any]]) -> TieOut:
    """The result from the rows of `TIE_OUT`."""
    return TieOut(
        {
            str(row["dataset"]): (
                int(row["reports"]),
                int(row["departure_delay"]),
                int(row["arrival_delay"]),
            )
            for row in rows
        }
    )
