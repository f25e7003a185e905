"""Flights as the reports that a live system would have sent: scheduled, departed, arrived.

A report has the time of its event and a later time of delivery. Most
come within minutes, some are delayed for hours: reports overtake one another, as in reality. The
delay is drawn with a fixed seed, so the same flights always give the same reports.
"""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pandas as pd

__all__ = ["ANNOUNCED_BEFORE", "COLUMNS", "MAX_DELIVERY_DELAY", "reports_of"]

ANNOUNCED_BEFORE = timedelta(hours=3)
MAX_DELIVERY_DELAY = timedelta(hours=3)
_MEAN_DELAY_SECONDS = 120
_SHARE_HELD_BACK = 0.02
_SEED = 2013

COLUMNS = [
    "kind", "event_time", "flight_date", "carrier", "flight", "origin", "dest",
    "scheduled_departure", "scheduled_hour", "tailnum", "distance_miles", "delay_minutes",
    "air_minutes",
]  # fmt: skip


def reports_of(flights: pd.DataFrame) -> pd.DataFrame:
    """All reports in the order of delivery: `COLUMNS` as JSON has them, and `delivered_at`.

    A cancelled flight is only scheduled; one that never reported a landing only departed.
    """
    key = pd.DataFrame(
        {
            "flight_date": flights["flight_date"].dt.strftime("%Y-%m-%d"),
            "carrier": flights["carrier"],
            "flight": flights["flight"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "scheduled_departure": _iso(flights["scheduled_at"]),
            "scheduled_hour": flights["hour"],
        }
    )
    kinds = [
        _kind("scheduled", key, flights["scheduled_at"] - ANNOUNCED_BEFORE,
              tailnum=flights["tailnum"], distance_miles=flights["distance"]),
        _kind("departed", key, flights["departed_at"], delay_minutes=flights["dep_delay"]),
        _kind("arrived", key, flights["arrived_at"], delay_minutes=flights["arr_delay"],
              air_minutes=flights["air_time"]),
    ]  # fmt: skip
    reports = pd.concat(kinds, ignore_index=True)
    integers = dict.fromkeys(["distance_miles", "delay_minutes", "air_minutes"], "Int64")
    reports = reports.astype(integers)
    reports["delivered_at"] = reports["happened_at"] + _delivery_delays(len(reports))
    reports["event_time"] = _iso(reports["happened_at"])
    reports = reports.sort_values("delivered_at", kind="stable", ignore_index=True)
    return reports[[*COLUMNS, "delivered_at"]]


def _kind(kind: str, key: pd.DataFrame, happened_at: pd.Series, **values: pd.Series) -> pd.DataFrame:
    known = happened_at.notna()
    return key.assign(kind=kind, happened_at=happened_at, **values)[known]


def _iso(instants: pd.Series) -> np.ndarray:
    # Twenty times faster than strftime, which matters for a million reports.
    naive = instants.dt.tz_localize(None).to_numpy("datetime64[s]")
    return np.char.add(np.datetime_as_string(naive), "Z").astype(object)


def _delivery_delays(count: int) -> pd.TimedeltaIndex:
    random = np.random.default_rng(_SEED)
    seconds = random.exponential(_MEAN_DELAY_SECONDS, count)
    held_back = random.random(count) < _SHARE_HELD_BACK
    limit = MAX_DELIVERY_DELAY.total_seconds()
    seconds[held_back] = random.uniform(0, limit, int(held_back.sum()))
    return pd.to_timedelta(np.minimum(seconds, limit).round(), unit="s")
