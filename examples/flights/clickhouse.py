"""A chart of departures by ClickHouse's SQL, in its engine inside this process (`chdb`)."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

__all__ = ["BY_HOUR", "Chart", "Hour", "chart", "url_of"]

POINTER = "SELECT checkpoint FROM flights.taut_published ORDER BY fence DESC, publication DESC LIMIT 1"
# `bar` draws: a width of 32 characters stands for 40 minutes.
CHART = """
SELECT scheduled_hour AS hour, sum(departed) AS flights, sum(delay_minutes) AS minutes,
  bar(minutes / flights, 0, 40, 32) AS drawing
FROM flights.departures_at(checkpoint = {checkpoint})
GROUP BY hour HAVING flights > 0 ORDER BY hour
"""
# The same numbers in the lake, by another way: from the flights themselves.
BY_HOUR = """
SELECT scheduled_hour AS hour, sum(departed) AS flights, sum(departure_delay) AS minutes
FROM flights WHERE departed > 0 GROUP BY hour ORDER BY hour
"""


@dataclass(frozen=True, slots=True)
class Hour:
    """One bar of the chart; `numbers` are the hour, its departures, and their minutes of delay."""

    numbers: tuple[int, int, int]
    drawing: str

    def __str__(self) -> str:
        hour, flights, minutes = self.numbers
        return f"{hour:>2} h {minutes / flights:6.1f}  {self.drawing}"


@dataclass(frozen=True, slots=True)
class Chart:
    """All bars, at one checkpoint."""

    checkpoint: int
    hours: list[Hour]


def url_of(folder: Path) -> str:
    """The option `url` of a sink that writes into the embedded engine's folder."""
    return f"clickhouse://embedded/{quote(str(folder.absolute()))}"


def chart(folder: Path) -> Chart:
    """The departures at the checkpoint that the mirror shows. No other process may use the folder."""
    import chdb.session as embedded

    session: Any
    with closing(embedded.Session(str(folder))) as session:

        def rows(query: str) -> list[list[Any]]:
            text = session.query(query, "JSONCompactEachRow").bytes().decode()
            return [json.loads(line) for line in text.splitlines()]

        ((checkpoint,),) = rows(POINTER)
        hours = [
            Hour((int(hour), int(flights), int(minutes)), drawing)
            for hour, flights, minutes, drawing in rows(CHART.format(checkpoint=checkpoint))
        ]
    return Chart(int(checkpoint), hours)
