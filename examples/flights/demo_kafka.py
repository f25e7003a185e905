"""The flights of 2013 through a real Kafka: `make demo-kafka`.

The same as `make demo`, but the reports come as JSON by one topic and the weather as Avro by another, from
a broker that is started for it. Some reports are broken on purpose: they go into quarantine, and are counted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from examples.flights.demo import PROJECT, SECONDS_PER_DAY, Demo, arguments_of
from examples.flights.produce import PARTITIONS, REPORTS, WEATHER
from tests.support.kafka import KafkaBroker, KafkaTopics, java_gateway

from tautochrone.app.remote import RemoteReader

__all__ = ["KafkaDemo", "main"]

WORK = PROJECT.parents[1] / ".work" / "demo-kafka"
SETTINGS = """
[flows.events]
bad_records = "quarantine"
"""
QUARANTINED = "SELECT count(*) AS records FROM events__quarantine"


@dataclass
class KafkaDemo(Demo):
    """The demonstration over a broker at `bootstrap`."""

    bootstrap: str = ""

    def prepare(self) -> None:
        super().prepare()
        for file in ("events.py", "weather_reports.py"):
            shutil.copy(PROJECT / "over_kafka" / file, self.spec.parent / "transformations" / file)
        shutil.copytree(PROJECT / "schemas", self.spec.parent / "schemas")
        with (self.spec.parent / "tautochrone.toml").open("a") as settings:
            settings.write(SETTINGS)
        os.environ["FLIGHTS_BROKER"] = self.bootstrap
        with java_gateway() as gateway:
            topics = KafkaTopics(gateway, self.bootstrap)
            topics.create(REPORTS, PARTITIONS)
            topics.create(WEATHER)
            topics.close()

    def start_replay(self) -> subprocess.Popen[bytes]:
        speed = self.days * SECONDS_PER_DAY / self.seconds
        command = [sys.executable, "-m", "examples.flights.produce", "--bootstrap", self.bootstrap]
        command += ["--days", str(self.days), "--speed", str(speed)]
        self.say(f"replay      {self.days} days of 2013 in {self.seconds} s to {self.bootstrap}")
        with (self.work / "sent.json").open("wb") as sent:
            return subprocess.Popen(command, cwd=PROJECT.parents[1], stdout=sent)

    def sent(self) -> int:
        return self._counts()[REPORTS]

    def ask_more(self, reader: RemoteReader) -> None:
        broken = self._counts()["broken"]
        (row,) = reader.sql(QUARANTINED).to_pylist()
        self.say(f"quarantine  {row['records']} records set aside, {broken} were broken on purpose")
        if row["records"] != broken:
            self.problem(f"{broken} reports were broken, {row['records']} are in quarantine")

    def _counts(self) -> dict[str, int]:
        text = (self.work / "sent.json").read_text()
        if not text:
            self.problem("the replay broke off: it does not say what it sent")
            return {REPORTS: 0, WEATHER: 0, "broken": 0}
        counts: dict[str, int] = json.loads(text)
        return counts


def main(arguments: list[str] | None = None) -> int:
    given = arguments_of("examples.flights.demo_kafka", __doc__, arguments)
    broker_folder = WORK.with_name("demo-kafka-broker")
    shutil.rmtree(broker_folder, ignore_errors=True)
    with KafkaBroker(broker_folder) as broker:
        return KafkaDemo(WORK, given.days, given.seconds, given.kill, bootstrap=broker.bootstrap).perform()


if __name__ == "__main__":
    raise SystemExit(main())
