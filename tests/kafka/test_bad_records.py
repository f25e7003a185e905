"""Records on which a flow's query fails: named in the error, or quarantined in the same checkpoint."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Happened, Pipeline
from tests.support.kafka import KafkaBroker, KafkaTopics, Record

from tautochrone.cli.main import main
from tautochrone.errors import DefinitionError, SettingsError
from tautochrone.model import limits

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf

spark = SparkSession.active()

@sf.udf("bigint")
def checked(amount):
    if amount == 13:
        raise ValueError("thirteen brings bad luck")
    return amount

@dp.table
def events():
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", "{bootstrap}")
        .option("subscribePattern", "{prefix}.*")
        .option("startingOffsets", "earliest")
        .option("kafka.metadata.max.age.ms", "1000")
        .load()
    )
    row = sf.from_json(
        sf.col("value").cast("string"), "id BIGINT, amount STRING", {{"mode": "FAILFAST"}}
    )
    parsed = source.select("topic", "partition", "offset", row.alias("row"))
    number = sf.col("row.amount").cast("bigint")
    return parsed.where("row.id >= 0").select(
        "topic", "partition", "offset", "row.id", {amount}.alias("amount")
    )
"""
TOGETHER = """
CREATE MATERIALIZED VIEW together AS
  SELECT topic, partition, offset FROM events
  UNION ALL SELECT topic, partition, offset FROM events__quarantine;
"""
QUARANTINE = '[flows.events]\nbad_records = "quarantine"\n'


@dataclass
class Source:
    """Two topics of two partitions, and what was written: record → whether it is bad."""

    topics: KafkaTopics
    prefix: str
    written: dict[tuple[str, int, int], bool] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        self.names = [f"{self.prefix}-a", f"{self.prefix}-b"]
        for name in self.names:
            self.topics.create(name, 2)

    def good(self, count: int) -> None:
        for _ in range(count):
            self._send(json.dumps({"id": self.number, "amount": str(self.number % 10)}), bad=False)

    def bad(self, value: str) -> None:
        self._send(value, bad=True)

    def _send(self, value: str, *, bad: bool) -> None:
        topic, partition = self.names[self.number % 2], self.number // 2 % 2
        offset = sum(record[:2] == (topic, partition) for record in self.written)
        key, header = f"k{self.number}".encode(), ("n", b"1")
        self.topics.send(topic, [Record(value.encode(), key=key, partition=partition, headers=(header,))])
        self.written[topic, partition, offset] = bad
        self.number += 1

    def check(self, pipeline: Pipeline) -> None:
        """Good records are in the table, bad ones in the quarantine table, each once, at one checkpoint."""
        good = pipeline.query("SELECT topic, partition, offset FROM events")
        bad = pipeline.query("SELECT topic, partition, offset FROM events__quarantine")
        assert good == sorted(record for record, is_bad in self.written.items() if not is_bad)
        assert bad == sorted(record for record, is_bad in self.written.items() if is_bad)


@pytest.fixture
def source(topics: KafkaTopics) -> Source:
    return Source(topics, f"q{uuid.uuid4().hex[:8]}")


@pytest.fixture
def pipeline(tmp_path: Path, spark: SparkSession, broker: KafkaBroker, source: Source) -> Iterator[Pipeline]:
    new_pipeline = Pipeline(tmp_path, spark, settings=QUARANTINE)
    define(new_pipeline, broker, source)
    yield new_pipeline
    new_pipeline.close()


def define(pipeline: Pipeline, broker: KafkaBroker, source: Source, amount: str = "number") -> None:
    text = DEFINITIONS.format(bootstrap=broker.bootstrap, prefix=source.prefix, amount=amount)
    pipeline.write("definitions/events.py", text)


def good(happened: Happened) -> Happened:
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    return happened


def status(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> dict[str, int | None]:
    """What `taut status` counts."""
    capsys.readouterr()
    assert main(["status", "--json", "--spec", str(pipeline.folder / "spark-pipeline.yml")]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    datasets = [line for line in lines if "dataset" in line]
    return {line["dataset"].rpartition(".")[2]: line["quarantined"] for line in datasets}


def test_quarantine(
    pipeline: Pipeline, source: Source, topics: KafkaTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline.write("definitions/together.sql", TOGETHER)
    source.good(8)
    assert good(pipeline.run()).of("quarantined") == []
    source.good(2)
    source.bad("{broken")
    source.good(3)
    source.bad('{"id": 7, "amount": "many"}')
    source.good(1)
    happened = good(pipeline.run())
    (event,) = happened.of("quarantined")
    assert event["records"] == 2
    assert event["beside"] == "lake.default.events__quarantine"
    assert len(happened.checkpoints) == 1
    source.check(pipeline)
    rows = pipeline.query(
        "SELECT error_class, reason, flow, batch, decode(key, 'utf-8'), decode(value, 'utf-8'), "
        "headers[0].key, timestamp IS NOT NULL FROM events__quarantine"
    )
    assert [row[0] for row in rows] == [
        "CAST_INVALID_INPUT",
        "MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION",
    ]
    assert "many" in rows[0][1]
    assert [row[2:] for row in rows] == [
        ("events", 1, "k14", '{"id": 7, "amount": "many"}', "n", True),
        ("events", 1, "k10", "{broken", "n", True),
    ]
    assert status(pipeline, capsys) == {"events": 2, "events__quarantine": None, "together": None}
    # The next batch has nothing but a bad record, in a topic that the pattern meets now. The folder is lost.
    late_topic(source, topics)
    shutil.rmtree(Path(pipeline.settings.storage) / "_checkpoints")
    assert good(pipeline.run()).of("quarantined")[0]["records"] == 1
    source.check(pipeline)
    pipeline.verify()


def late_topic(source: Source, topics: KafkaTopics) -> None:
    """Another topic, with a bad record."""
    source.names.append(f"{source.prefix}-late")
    topics.create(source.names[-1], 2)
    topics.send(source.names[-1], [Record(b'{"id": 5, "amount": "x"}', partition=1)])
    source.written[source.names[-1], 1, 0] = True


@pytest.mark.slow
def test_a_first_batch_a_user_function_and_a_late_topic(
    pipeline: Pipeline, source: Source, topics: KafkaTopics, broker: KafkaBroker
) -> None:
    define(pipeline, broker, source, amount="checked(number)")
    # Nothing is known of the flow yet, and nothing in the batch is good.
    source.bad('{"id": 1, "amount": "13"}')
    assert good(pipeline.run()).of("quarantined")[0]["records"] == 1
    source.check(pipeline)
    reasons = pipeline.query("SELECT reason FROM events__quarantine")
    assert "thirteen brings bad luck" in str(reasons)
    # A topic that the pattern meets in the batch that fails; and the folder is lost. Each probe of a function
    # costs a process of Python.
    define(pipeline, broker, source)
    shutil.rmtree(Path(pipeline.settings.storage) / "_checkpoints")
    late_topic(source, topics)
    source.good(2)
    assert good(pipeline.run()).of("quarantined")[0]["records"] == 1
    source.check(pipeline)
    # Taken in anew, both tables: nothing twice, and the first record is good without the function.
    source.written[source.names[0], 0, 0] = False
    assert good(pipeline.run(full=["events"])).of("quarantined")
    source.check(pipeline)


def test_the_record_is_named_without_quarantine_and_with_too_many(
    pipeline: Pipeline, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.write("tautochrone.toml", "")
    pipeline.reload()
    source.good(2)
    source.bad("{broken")
    source.good(2)
    happened = pipeline.run()
    assert happened.state == "FAILED"
    (record,) = [record for record, bad in source.written.items() if bad]
    error = happened.failure("events")
    assert error.startswith("[MALFORMED_RECORD_IN_PARSING"), error
    assert "topic {}, partition {}, offset {}".format(*record) in error
    assert 'bad_records = "quarantine"' in happened.of("flow_failed")[0]["hint"]
    # With the setting, and too few probes for this batch.
    pipeline.write("tautochrone.toml", QUARANTINE)
    pipeline.reload()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "MAX_BAD_RECORD_PROBES", 2)
        happened = pipeline.run()
    assert happened.state == "FAILED"
    assert happened.failure("events").startswith("[TOO_MANY_BAD_RECORDS]")
    # Nothing was taken, nothing is lost: the flow continues at the batch that failed.
    good(pipeline.run())
    source.check(pipeline)
    # Taken in anew, both tables: nothing twice.
    assert good(pipeline.run(full=["events"])).of("quarantined")
    source.check(pipeline)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ('source.dropDuplicates(["key"]).select("topic")', "Deduplicate"),
        ('source.union(source).select("topic")', "Union"),
        ('source.select("topic", sf.rand().alias("r"))', "rand()"),
        ('spark.readStream.format("rate").load().select("value")', "records of rate cannot be read again"),
    ],
)
def test_what_cannot_quarantine_is_refused(
    pipeline: Pipeline, broker: KafkaBroker, source: Source, query: str, why: str
) -> None:
    text = DEFINITIONS.format(bootstrap=broker.bootstrap, prefix=source.prefix, amount="number")
    begin = text.index("    row =")
    pipeline.write("definitions/events.py", text[:begin] + f"    return {query}\n")
    with pytest.raises(SettingsError, match="QUARANTINE_NOT_SUPPORTED") as caught:
        pipeline.run()
    assert why in caught.value.message
    assert caught.value.location == "tautochrone.toml:2"


def test_quarantine_name_that_is_taken_is_refused(pipeline: Pipeline) -> None:
    pipeline.write(
        "definitions/more.sql", "CREATE MATERIALIZED VIEW events__quarantine AS SELECT 1 AS n FROM range(1);"
    )
    with pytest.raises(DefinitionError, match="QUARANTINE_NAME_TAKEN"):
        pipeline.run()
