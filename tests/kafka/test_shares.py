"""Tasks of a batch: a partition with most of the records is read by all cores, a small batch is one file, and
whatever reads them, each record is in the table once."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.cluster import StandaloneCluster, executor_writes
from tests.support.crash import Taut
from tests.support.harness import Happened, Pipeline
from tests.support.kafka import KafkaBroker, KafkaTopics, Record

from tautochrone.errors import TautochroneError
from tautochrone.model import limits
from tautochrone.model.effects import Step
from tautochrone.runtime.loop.run import Run

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

TWO_TOPICS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf

def records(topic):
    reader = SparkSession.active().readStream.format("kafka").option("subscribe", topic)
    reader = reader.option("kafka.bootstrap.servers", "{bootstrap}").option("startingOffsets", "earliest")
    records = reader.option("kafka.isolation.level", "read_committed").load()
    return records.select("topic", "partition", "offset", sf.col("value").cast("string").alias("v"))

@dp.table
def events():
    return records("{first}").union(records("{second}"))
"""
HOT = 3
PARTITIONS = 8


@pytest.fixture(autouse=True)
def few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MIN_TASK_RECORDS", 50)


@pytest.fixture
def topic(topics: KafkaTopics) -> Topic:
    new_topic = Topic(topics, f"t-{uuid.uuid4().hex[:8]}", PARTITIONS)
    topics.create(new_topic.name, new_topic.partitions)
    return new_topic


def produce_skewed(topic: Topic, count: int) -> None:
    """Four fifths into one partition."""
    partitions = topic.partitions
    topic.produce(count // 5)
    topic.partitions = 1
    first = len(topic.written)
    records = []
    for number in range(first, first + count - count // 5):
        kind, amount = f"k{number % 5}", number * 7 % 100
        records.append((HOT, f'{{"id": {number}, "kind": "{kind}", "amount": {amount}}}'))
        topic.written[number] = (kind, amount)
    topic.topics.produce(topic.name, records)
    topic.partitions = partitions


def good(happened: Happened) -> Happened:
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    return happened


def new_files(pipeline: Pipeline) -> list[int]:
    """The numbers of rows in the files of the newest version."""
    newest = "(SELECT max_by(snapshot_id, committed_at) FROM lake.default.events.snapshots)"
    files = pipeline.session.sql(
        f"SELECT data_file.record_count FROM lake.default.events.entries WHERE snapshot_id = {newest}"
    )
    return sorted(row[0] for row in files.collect())


def test_a_hot_partition_is_shared_and_few_records_are_one_file(pipeline: Pipeline, topic: Topic) -> None:
    text = (pipeline.folder / "definitions/events.py").read_text()
    by_kind = text.split("@dp.materialized_view")[0].replace("def events", "def by_kind")
    pipeline.write(
        "definitions/by_kind.py", by_kind.replace("@dp.table", '@dp.table(partition_cols=["kind"])')
    )
    produce_skewed(topic, 400)
    good(pipeline.run())
    assert new_files(pipeline) == [200, 200]
    # One for each of the table's partitions.
    files = pipeline.session.sql("SELECT record_count FROM lake.default.by_kind.files")
    assert [row[0] for row in files.collect()] == [80] * 5
    (pipeline.folder / "definitions/by_kind.py").unlink()
    files = pipeline.session.sql(
        "SELECT partition, max(offset) - min(offset) + 1 - count(*) FROM lake.default.events "
        "GROUP BY partition, _file"
    ).collect()
    # The hot partition is in both, and each has offsets in a row.
    assert sum(row[0] == HOT for row in files) == 2
    assert all(row[1] == 0 for row in files)

    topic.partitions = 11
    topic.topics.add_partitions(topic.name, 11)
    topic.produce(40)
    good(pipeline.run())
    assert new_files(pipeline) == [40]
    topic.check(pipeline)

    # What the user says of tasks counts.
    option = '.option("subscribe"'
    pipeline.write("definitions/events.py", text.replace(option, f'.option("minPartitions", "1"){option}'))
    topic.produce(44)
    good(pipeline.run())
    assert new_files(pipeline) == [4] * 11
    topic.check(pipeline)


@pytest.mark.parametrize(
    ("step", "when"),
    [
        (Step.INGEST_SOURCE_FILES, "before"),
        pytest.param(Step.LAKE_PREPARE, "after", marks=pytest.mark.slow),
        pytest.param(Step.LAKE_COMMIT, "after", marks=pytest.mark.slow),
    ],
)
def test_a_batch_that_is_read_again_by_other_tasks(
    pipeline: Pipeline, topic: Topic, step: Step, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that was planned before a crash has other shares, and the same records."""
    produce_skewed(topic, 200)
    good(pipeline.run())
    produce_skewed(topic, 200)
    effects = StrikingEffects(Strike(step, when, "crash", on="events"))
    with pipeline.opened(effects) as (job, _):
        run = Run(job)
        try:
            run.once()
        except (Crash, TautochroneError):
            pass
        finally:
            run._streams.stop()
    assert effects.struck
    monkeypatch.setattr(limits, "MAX_TASK_RECORDS", 30)
    monkeypatch.setattr(limits, "MAX_TASK_RANGES", 3)
    topic.partitions = 11
    topic.topics.add_partitions(topic.name, 11)
    topic.produce(22)
    good(pipeline.run())
    topic.check(pipeline)
    if step is Step.INGEST_SOURCE_FILES:
        shutil.rmtree(Path(pipeline.settings.storage) / "_checkpoints")
    good(pipeline.run())
    topic.check(pipeline)


@pytest.fixture
def two_topics(topics: KafkaTopics) -> list[str]:
    names = [f"u-{uuid.uuid4().hex[:8]}-{side}" for side in "ab"]
    for name in names:
        topics.create(name, 2)
    return names


def test_offsets_without_records(
    tmp_path: Path,
    spark: SparkSession,
    broker: KafkaBroker,
    topics: KafkaTopics,
    two_topics: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Transactions leave markers and aborted records, so some tasks have none. Two sources are shared."""
    monkeypatch.setattr(limits, "MAX_TASK_RECORDS", 20)
    pipeline = Pipeline(tmp_path, spark)
    first, second = two_topics
    pipeline.write(
        "definitions/events.py", TWO_TOPICS.format(bootstrap=broker.bootstrap, first=first, second=second)
    )
    # More offsets in a row than a share has are without records.
    committed = [number for number in range(40) if number % 4 != 1 and not 20 < number < 36]
    with topics.transactions() as transactions:
        for number in range(40):
            for topic in two_topics:
                records = [Record(f"{topic}-{number}-{n}".encode(), partition=n % 2) for n in range(5)]
                transactions.send(topic, records, commit=number in committed)
    good(pipeline.run())
    expected = sorted(
        f"{topic}-{number}-{n}" for topic in two_topics for number in committed for n in range(5)
    )
    assert [row[0] for row in pipeline.query("SELECT v FROM events")] == expected
    offsets = 40 * 2 * (5 + 2)
    assert offsets / 40 < len(new_files(pipeline)) < offsets / 20
    pipeline.close()


@pytest.mark.slow
def test_executors_share_a_hot_partition_though_each_is_killed_once(
    pipeline: Pipeline, topic: Topic, tmp_path: Path, spark: SparkSession, broker: KafkaBroker
) -> None:
    """An executor that dies gives no answer: its share is read again by another."""
    count, logs = 300_000, tmp_path / "events"
    logs.mkdir()
    values = spark.range(count).selectExpr(
        "to_json(struct(id, concat('k', id % 5) AS kind, id % 100 AS amount)) AS value",
        f"CAST(IF(id % 10 < 8, {HOT}, id % {PARTITIONS}) AS INT) AS partition",
    )
    writer = values.write.format("kafka").option("kafka.bootstrap.servers", broker.bootstrap)
    writer.option("topic", topic.name).save()
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "640m",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.locality.wait": "0s",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.eventLog.compress": "false",
    }
    with StandaloneCluster(tmp_path / "cluster", workers=1, cores=2, memory="2g") as cluster:
        options = ["--master", cluster.master]
        options += [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
        with Taut(pipeline.folder, tmp_path).start(*options) as running:
            for killed in range(2):
                # A file that is written: the task has begun.
                data = Path(pipeline.settings.storage) / "warehouse/default/events/data"
                while len(list(data.glob("*.parquet"))) <= 2 * killed:
                    assert running.lives_for(0.02), running.wait().describe()
                executors(cluster)[0].kill()
            ended = running.wait()
    ended.require_ok()
    # Others took the place of those that died.
    assert len(executor_writes(logs)) > 2
    assert new_files(pipeline) == [count // 2] * 2
    stored = "SELECT count(*), count(DISTINCT partition, offset), count(DISTINCT id), sum(id) FROM events"
    assert pipeline.query(stored) == [(count, count, count, count * (count - 1) // 2)]


def executors(cluster: StandaloneCluster) -> list[psutil.Process]:
    """Those that live, the oldest first."""
    alive = []
    for started in cluster.processes:
        for process in psutil.Process(started.pid).children(recursive=True):
            # One that was killed has no command line any more.
            with contextlib.suppress(psutil.NoSuchProcess):
                if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                    alive.append((process.create_time(), process))
    return [process for _, process in sorted(alive, key=lambda each: each[0])]
