"""The project's definitions as plain batch Spark, against pandas over the source itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from examples.flights import source
from examples.flights.checks import TIE_OUT, tie_out
from examples.flights.replay import replay

pytestmark = pytest.mark.spark
# They have every kind of weather; the first ten were clear.
DAYS = 20
END = pd.Timestamp("2013-01-01") + pd.Timedelta(days=DAYS)


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    table = source.flights()
    table = table[table["flight_date"] < END].copy()
    table["day"] = table["flight_date"].dt.date
    table["departed"] = table["dep_time"].notna().astype(int)
    table["arrived"] = table["arr_time"].notna().astype(int)
    return table


@pytest.fixture(scope="module")
def whole(load: Callable[[Path], Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("flights")
    replay(folder, days=DAYS)
    spark = load(folder)
    # Most views read them.
    cached = spark.table("flights").cache()
    yield spark
    cached.unpersist()


def answers(spark: Any, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.sql(query).collect())


def totals(table: pd.DataFrame, keys: list[str]) -> list[tuple[Any, ...]]:
    grouped = table.groupby(keys).agg(
        scheduled=("flight", "size"),
        departed=("departed", "sum"),
        arrived=("arrived", "sum"),
        departure=("dep_delay", "sum"),
        arrival=("arr_delay", "sum"),
    )
    return sorted(grouped.astype(int).reset_index().itertuples(index=False, name=None))


def test_reference_data(whole: Any) -> None:
    counts = {name: whole.table(name).count() for name in ("airlines", "airports", "planes")}
    assert counts == {"airlines": 16, "airports": 1458, "planes": 3322}
    assert whole.table("planes").where("seats IS NULL OR tailnum IS NULL").count() == 0
    assert whole.table("airports").where("lat IS NULL OR tz IS NULL").count() == 0


def test_totals_tie_out_with_the_source(whole: Any, flights: pd.DataFrame) -> None:
    answer = tie_out(row.asDict() for row in whole.sql(TIE_OUT).collect())
    assert answer.holds
    expected = len(flights) + flights["departed"].sum() + flights["arrived"].sum()
    delays = (int(flights["dep_delay"].sum()), int(flights["arr_delay"].sum()))
    assert answer.totals["events"] == (expected, *delays)


def test_delay_by_carrier_hour(whole: Any, flights: pd.DataFrame) -> None:
    result = answers(
        whole,
        "SELECT flight_date, scheduled_hour, carrier, scheduled, departed, arrived, "
        "departure_delay_minutes, arrival_delay_minutes FROM delay_by_carrier_hour",
    )
    assert result == totals(flights, ["day", "hour", "carrier"])
    assert whole.sql("SELECT * FROM delay_by_carrier_hour WHERE airline IS NULL").isEmpty()


def test_daily_totals(whole: Any, flights: pd.DataFrame) -> None:
    result = answers(
        whole,
        "SELECT flight_date, origin, scheduled, departed, arrived, departure_delay_minutes, "
        "arrival_delay_minutes FROM daily_totals",
    )
    assert result == totals(flights, ["day", "origin"])


def test_delay_by_weather(whole: Any, flights: pd.DataFrame) -> None:
    weather = source.weather()
    weather = weather[weather["observed_at"] < END.tz_localize("America/New_York")]
    weather = weather.drop_duplicates(["origin", "observed_at"])
    hour = flights["scheduled_at"].dt.floor("h")
    flights_with_weather = flights.assign(observed_at=hour).merge(
        weather, how="left", on=["origin", "observed_at"], indicator="found"
    )
    wet = flights_with_weather["precip"] > 0
    flights_with_weather["conditions"] = np.select(
        [
            flights_with_weather["found"] == "left_only",
            wet & (flights_with_weather["temp"] <= 32),
            wet,
            flights_with_weather["visib"] < 3,
            flights_with_weather["wind_speed"].between(25, 200),
        ],
        ["no report", "snow or ice", "rain", "fog", "strong wind"],
        "fair",
    )
    result = answers(
        whole,
        "SELECT origin, conditions, scheduled, departed, arrived, departure_delay_minutes, "
        "arrival_delay_minutes FROM delay_by_weather",
    )
    assert result == totals(flights_with_weather, ["origin", "conditions"])
    assert len({row[1] for row in result}) == 6


def test_worst_routes(whole: Any, flights: pd.DataFrame) -> None:
    routes = flights.groupby(["origin", "dest"])["arr_delay"].agg(["count", "sum"]).reset_index()
    routes = routes[routes["count"] >= 10]
    cent = Decimal("0.01")
    expected = []
    for origin, group in routes.groupby("origin"):
        means = [
            (-(Decimal(int(r["sum"])) / r["count"]).quantize(cent, ROUND_HALF_UP), r["dest"])
            for _, r in group.iterrows()
        ]
        ranked = enumerate(sorted(means)[:10], start=1)
        expected.extend((origin, rank, dest, -mean) for rank, (mean, dest) in ranked)
    query = "SELECT origin, place, dest, mean_arrival_delay FROM worst_routes"
    assert answers(whole, query) == expected


def test_late_aircraft(whole: Any, flights: pd.DataFrame) -> None:
    flown = flights[flights["departed"] == 1].dropna(subset=["tailnum"])
    order = ["tailnum", "scheduled_at", "flight_date", "carrier", "flight", "origin"]
    flown = flown.sort_values(order)
    before = flown.groupby("tailnum")[["scheduled_at", "arr_delay"]].shift()
    late = flown[
        (before["arr_delay"] >= 15)
        & (flown["dep_delay"] >= 15)
        & (flown["scheduled_at"] - before["scheduled_at"] <= pd.Timedelta(hours=24))
    ].assign(inherited=np.minimum(before["arr_delay"], flown["dep_delay"]))
    grouped = late.groupby("tailnum").agg(
        knock_ons=("flight", "size"), inherited=("inherited", "sum"), worst=("dep_delay", "max")
    )
    expected = sorted(grouped.astype(int).reset_index().itertuples(index=False, name=None))
    columns = "tailnum, knock_ons, inherited_minutes, worst_departure_delay"
    assert answers(whole, f"SELECT {columns} FROM late_aircraft") == expected
    assert len(expected) > 50


@pytest.mark.parametrize("files", [8, *(pytest.param(files, marks=pytest.mark.slow) for files in (1, 21))])
def test_totals_tie_out_at_any_time(load: Callable[[Path], Any], tmp_path: Path, files: int) -> None:
    # Some flights have landed by then without a schedule: their reports arrived earlier than it.
    replay(tmp_path, days=3, limit=files)
    spark = load(tmp_path)
    answer = tie_out(row.asDict() for row in spark.sql(TIE_OUT).collect())
    assert answer.holds, str(answer)


def test_a_difference_is_noticed(whole: Any) -> None:
    rows = [row.asDict() for row in whole.sql(TIE_OUT).collect()]
    rows[2]["reports"] += 1
    assert not tie_out(rows).holds
    assert not tie_out(rows[:2]).holds
    assert "DOES NOT TIE OUT" in str(tie_out(rows))
