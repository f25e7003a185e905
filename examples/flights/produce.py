"""Replay 2013 into a broker: `python -m examples.flights.produce --bootstrap HOST:PORT`.

Reports go as JSON into `flight-reports`, keyed by flight; the weather as Avro into `weather`, keyed by
airport. A few reports are cut off in the middle, on purpose. The last line is what was sent, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from examples.flights.avro import encode
from examples.flights.replay import Drop, drops
from tests.support.kafka import KafkaTopics, LineProducer, Record, java_gateway

__all__ = ["REPORTS", "WEATHER", "broken", "observations", "reports"]

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "observation.avsc").read_text())
REPORTS, WEATHER = "flight-reports", "weather"
PARTITIONS = 3
BROKEN_EVERY = 25
"""Every file with this number has one broken report."""


def reports(rows: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Key and JSON of each report."""
    lines = rows.to_json(orient="records", lines=True, double_precision=5).splitlines()
    yield from zip(rows["carrier"] + rows["flight"].astype(str), lines, strict=True)


def broken(rows: pd.DataFrame) -> tuple[str, str]:
    """A report without its end."""
    flight, line = next(reports(rows))
    return flight, line[: len(line) // 2]


def observations(rows: pd.DataFrame) -> Iterator[Record]:
    """Avro records of the weather."""
    for line in rows.to_json(orient="records", lines=True, double_precision=5).splitlines():
        row: dict[str, Any] = json.loads(line)
        row["observed_at"] = int(pd.Timestamp(row["observed_at"]).timestamp() * 1000)
        yield Record(encode(SCHEMA, row), key=row["origin"].encode())


def produce(bootstrap: str, files: Iterator[Drop], speed: float) -> dict[str, int]:
    """Send at `speed` simulated seconds per second (0: no waiting); how much was sent of what."""
    sent = {REPORTS: 0, WEATHER: 0, "broken": 0}
    begin: pd.Timestamp | None = None
    started = time.monotonic()
    with java_gateway() as gateway, LineProducer(bootstrap, REPORTS) as lines:
        topics = KafkaTopics(gateway, bootstrap)
        for number, drop in enumerate(files):
            begin = begin or drop.complete_at
            if speed > 0:
                due = started + (drop.complete_at - begin).total_seconds() / speed
                time.sleep(max(0.0, due - time.monotonic()))
            if drop.path.startswith("weather"):
                topics.send(WEATHER, observations(drop.rows))
                sent[WEATHER] += len(drop.rows)
                continue
            lines.send(reports(drop.rows))
            sent[REPORTS] += len(drop.rows)
            if number % BROKEN_EVERY == 1:
                lines.send([broken(drop.rows)])
                sent["broken"] += 1
        topics.close()
    return sent


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.flights.produce", description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="the broker")
    parser.add_argument("--speed", type=float, default=0.0,
                        help="simulated seconds per second; 0 (default) does not wait")  # fmt: skip
    parser.add_argument("--days", type=int, help="only the first days of 2013")
    given = parser.parse_args(arguments)
    print(json.dumps(produce(given.bootstrap, drops(given.days), given.speed)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
