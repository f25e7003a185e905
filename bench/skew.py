"""Ingestion of a Kafka topic that has most of its records in one partition, and of one that is even.

Three sides take the same records in the same commits: a flow; the same flow with the tasks that Spark plans
by itself, one for each partition; and plain Spark, which reads ranges of offsets and appends them. The time
of a commit is the time since the commit before it, from the history of the tables. CPU time is of all that
runs meanwhile in this process and its JVM, checkpoints included.
"""

from __future__ import annotations

import json
import shutil
import statistics
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker, KafkaTopics

from bench.ingest import PLAIN, ROW, SETTINGS
from bench.running import cpu_s, cpu_since

__all__ = ["measure"]

_PARTITIONS = 8
_SKEWED = (0.8, *[0.2 / (_PARTITIONS - 1)] * (_PARTITIONS - 1))
_EVEN = (1 / _PARTITIONS,) * _PARTITIONS
_FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf


@dp.table
def events():
    reader = SparkSession.active().readStream.format("kafka").option("subscribe", "{topic}")
    reader = reader.option("kafka.bootstrap.servers", "{bootstrap}").option("startingOffsets", "earliest")
    source = reader.option("maxOffsetsPerTrigger", "{rows}"){options}.load()
    row = sf.from_json(sf.col("value").cast("string"), "id BIGINT, kind STRING, amount BIGINT, note STRING")
    return source.select("partition", "offset", row.alias("row")).select("partition", "offset", "row.*")
"""
_SPARKS_TASKS = '.option("minPartitions", "1")'
# 61 bytes.
_VALUE = (
    "to_json(struct(1000000 + id AS id, concat('kind ', 10 + id % 90) AS kind, 100 + id * 7 % 900 AS amount, "
    "left(md5(CAST(id AS STRING)), 7) AS note))"
)


@dataclass(kw_only=True)
class _Side:
    """Who takes the records. `options` are of the flow's reader; None: plain Spark does."""

    pipeline: Pipeline
    topic: _Topic
    options: str | None
    cpu: list[float] = field(default_factory=list)

    def prepare(self) -> None:
        flow = _FLOW.format(
            topic=self.topic.name,
            bootstrap=self.topic.bootstrap,
            # Spark rounds the part of each partition down: what is left would be a commit of its own.
            rows=sum(self.topic.rows) + _PARTITIONS,
            options=self.options,
        )
        if self.options is not None:
            self.pipeline.write("definitions/events.py", flow)
        else:
            self.pipeline.session.sql("CREATE NAMESPACE lake.plain")
            self.pipeline.session.sql(PLAIN)

    @property
    def table(self) -> str:
        return "lake.plain.events" if self.options is None else "lake.default.events"

    def take(self, commits: range) -> None:
        session = self.pipeline.session
        before = cpu_s(session)
        if self.options is None:
            for number in commits:
                self._append(number)
        else:
            happened = self.pipeline.run()
            if happened.state != "COMPLETED":
                raise RuntimeError("; ".join(event["error"] for event in happened if "error" in event))
        self.cpu.append(sum(cpu_since(session, before).values()) / len(commits))

    def _append(self, number: int) -> None:
        reader = self.pipeline.session.read.format("kafka").option("subscribe", self.topic.name)
        reader = reader.option("kafka.bootstrap.servers", self.topic.bootstrap)
        reader = reader.option("startingOffsets", self.topic.offsets(number))
        rows = reader.option("endingOffsets", self.topic.offsets(number + 1)).load()
        rows = rows.selectExpr("partition", "offset", ROW).select("partition", "offset", "row.*")
        rows.writeTo(self.table).append()

    def summary(self, commits: int) -> dict[str, Any]:
        """Medians over the commits that have another one before them in their round."""
        snapshots = self.pipeline.session.sql(
            "SELECT unix_millis(committed_at), CAST(summary['added-data-files'] AS INT) "
            f"FROM {self.table}.snapshots WHERE summary['added-records'] > 0 ORDER BY committed_at"
        ).collect()
        rounds = [snapshots[first : first + commits] for first in range(commits, len(snapshots), commits)]
        times = [after[0] - before[0] for round_ in rounds for before, after in pairwise(round_)]
        files = [row[1] for round_ in rounds for row in round_]
        ms = statistics.median(times)
        return {
            "commits_ms": times,
            "median_ms": ms,
            "rows_per_s": round(sum(self.topic.rows) / ms * 1000),
            "cpu_s": statistics.median(self.cpu[1:]),
            "files": statistics.median(files),
        }

    def content(self) -> Any:
        query = "SELECT count(*), count(DISTINCT partition, offset), bit_xor(xxhash64(*)) FROM "
        return self.pipeline.session.sql(query + self.table).first()


@dataclass(frozen=True, kw_only=True)
class _Topic:
    """`rows` are of one commit, by partition."""

    name: str
    bootstrap: str
    rows: Sequence[int]

    def produce(self, session: SparkSession, commits: int) -> None:
        of_partitions = [
            session.range(partition, count * commits * _PARTITIONS + partition, _PARTITIONS).selectExpr(
                f"{_VALUE} AS value", f"{partition} AS partition"
            )
            for partition, count in enumerate(self.rows)
        ]
        rows = reduce(DataFrame.union, of_partitions)
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        writer.option("topic", self.name).save()

    def offsets(self, number: int) -> str:
        return json.dumps({self.name: {str(p): count * number for p, count in enumerate(self.rows)}})


def measure(
    spark: SparkSession, folder: Path, rows: int = 1_000_000, commits: int = 3, rounds: int = 2
) -> dict[str, Any]:
    """What a commit takes on each side, and the ratios, for both topics.

    Args:
        spark: a warm session.
        folder: of the broker and the pipelines.
        rows: of one commit.
        commits: of a round, two at least; the first of each round is not counted.
        rounds: that are measured; one before them warms up.
    """
    bench_folder = folder / "skew"
    shutil.rmtree(bench_folder, ignore_errors=True)
    results: dict[str, Any] = {"rows": rows}
    with KafkaBroker(bench_folder / "kafka") as broker:
        topics = KafkaTopics(spark.sparkContext._gateway, broker.bootstrap)  # noqa: SLF001
        for layout, parts in {"even": _EVEN, "skewed": _SKEWED}.items():
            counts = [round(rows * part) for part in parts]
            topic = _Topic(name=f"{layout}-{uuid.uuid4().hex[:8]}", bootstrap=broker.bootstrap, rows=counts)
            topics.create(topic.name, _PARTITIONS)
            sides = {"ours": "", "sparks_tasks": _SPARKS_TASKS, "plain": None}
            results[layout] = _measured(spark, bench_folder / layout, topic, sides, commits, rounds)
        topics.close()
    return results


def _measured(
    spark: SparkSession,
    folder: Path,
    topic: _Topic,
    options: dict[str, str | None],
    commits: int,
    rounds: int,
) -> dict[str, Any]:
    sides = {}
    for name, of_side in options.items():
        (folder / name).mkdir(parents=True)
        pipeline = Pipeline(folder / name, spark, settings=SETTINGS)
        sides[name] = _Side(pipeline=pipeline, topic=topic, options=of_side)
        sides[name].prepare()
    try:
        for number in range(rounds + 1):
            topic.produce(spark, commits)
            # In turns, because what runs first of a round reads what nobody read before.
            order = list(sides.values())
            for side in order[number % len(order) :] + order[: number % len(order)]:
                side.take(range(number * commits, (number + 1) * commits))
        contents = {name: side.content() for name, side in sides.items()}
        if len(set(contents.values())) != 1 or contents["ours"][0] != contents["ours"][1]:
            raise RuntimeError(f"the tables differ: {contents}")
        results: dict[str, Any] = {name: side.summary(commits) for name, side in sides.items()}
    finally:
        for side in sides.values():
            side.pipeline.close()
    for name in ("sparks_tasks", "plain"):
        results[f"time_against_{name}"] = results["ours"]["median_ms"] / results[name]["median_ms"]
        results[f"cpu_against_{name}"] = results["ours"]["cpu_s"] / results[name]["cpu_s"]
    return results
