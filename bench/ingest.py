"""Exactly-once ingestion of a Kafka topic against plain Spark, which reads the same records and appends them.

Both commit the same numbers of rows. The time of a commit is the time since the commit before it, from the
history of the two tables.
"""

from __future__ import annotations

import json
import shutil
import statistics
import uuid
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker, KafkaTopics

__all__ = ["PLAIN", "ROW", "SETTINGS", "measure"]

_FLOW = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as sf


@dp.table
def events():
    source = (
        SparkSession.active().readStream.format("kafka")
        .option("kafka.bootstrap.servers", "{bootstrap}")
        .option("subscribe", "{topic}")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "{rows}")
        .load()
    )
    row = sf.from_json(sf.col("value").cast("string"), "id BIGINT, kind STRING, amount BIGINT, note STRING")
    return source.select("partition", "offset", row.alias("row")).select("partition", "offset", "row.*")
"""
PLAIN = """
CREATE TABLE lake.plain.events (
    partition INT, offset BIGINT, id BIGINT, kind STRING, amount BIGINT, note STRING
) USING iceberg TBLPROPERTIES ('format-version' = '3')
"""
# The times come from the tables' history, so nothing of it may expire.
SETTINGS = "[maintenance]\nenabled = false\n"
_VALUE = (
    "to_json(struct(id, concat('kind ', id % 100) AS kind, id * 7 % 1000 AS amount, "
    "md5(CAST(id AS STRING)) AS note))"
)
ROW = "from_json(CAST(value AS STRING), 'id BIGINT, kind STRING, amount BIGINT, note STRING') AS row"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """Both sides of the comparison over one topic."""

    pipeline: Pipeline
    bootstrap: str
    topic: str
    rows: int
    partitions: int

    def produce(self, commits: int) -> None:
        """Produce the records of `commits` commits, the same number into each partition."""
        values = self.pipeline.session.range(self.rows * commits).selectExpr(
            f"{_VALUE} AS value", f"CAST(id % {self.partitions} AS INT) AS partition"
        )
        writer = values.write.format("kafka").option("kafka.bootstrap.servers", self.bootstrap)
        writer.option("topic", self.topic).save()

    def ours(self) -> None:
        happened = self.pipeline.run()
        if happened.state != "COMPLETED":
            raise RuntimeError("; ".join(event["error"] for event in happened if "error" in event))

    def plain(self, commits: range) -> None:
        """The same records by batch reads, one append each."""
        for number in commits:
            reader = self.pipeline.session.read.format("kafka").option("subscribe", self.topic)
            reader = reader.option("kafka.bootstrap.servers", self.bootstrap)
            reader = reader.option("startingOffsets", self._offsets(number))
            rows = reader.option("endingOffsets", self._offsets(number + 1)).load()
            rows.selectExpr("partition", "offset", ROW).select("partition", "offset", "row.*").writeTo(
                "lake.plain.events"
            ).append()

    def _offsets(self, number: int) -> str:
        offset = number * self.rows // self.partitions
        return json.dumps({self.topic: {str(partition): offset for partition in range(self.partitions)}})

    def commits(self, table: str) -> list[int]:
        """Epoch milliseconds of the commits of `rows` rows, in order."""
        snapshots = self.pipeline.session.sql(
            f"SELECT unix_millis(committed_at) FROM {table}.snapshots "
            f"WHERE summary['added-records'] = '{self.rows}' ORDER BY committed_at"
        )
        return [int(row[0]) for row in snapshots.collect()]

    def require_equal(self) -> None:
        """Both tables must have the same rows."""
        summary = "count(*), count(DISTINCT partition, offset), bit_xor(xxhash64(*))"
        query = f"SELECT {summary} FROM {{}}".format
        ours, plain = (
            self.pipeline.session.sql(query(table)).collect()
            for table in ("lake.default.events", "lake.plain.events")
        )
        if ours != plain or ours[0][0] != ours[0][1]:
            raise RuntimeError(f"the tables differ: {ours} and {plain}")


def measure(
    spark: SparkSession,
    folder: Path,
    rows: int = 1_000_000,
    commits: int = 4,
    rounds: int = 3,
    partitions: int = 2,
) -> dict[str, Any]:
    """Time per commit in ms on both sides, and their ratio.

    Each round takes `commits` commits with one, then as many with the other, in turns. A round before
    them warms both up; of each round the first commit has none before it and is not counted.

    Args:
        spark: a warm session.
        folder: of the broker and the pipeline.
        rows: of one commit, a multiple of `partitions`.
        commits: of a round, two at least.
        rounds: that are measured.
        partitions: of the topic.
    """
    bench_folder = folder / "ingest"
    shutil.rmtree(bench_folder, ignore_errors=True)
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    with KafkaBroker(bench_folder / "kafka") as broker:
        topics = KafkaTopics(spark.sparkContext._gateway, broker.bootstrap)  # noqa: SLF001
        topics.create(topic, partitions)
        topics.close()
        (bench_folder / "project").mkdir()
        pipeline = Pipeline(bench_folder / "project", spark, settings=SETTINGS)
        try:
            flow = _FLOW.format(bootstrap=broker.bootstrap, topic=topic, rows=rows)
            pipeline.write("definitions/events.py", flow)
            pipeline.session.sql("CREATE NAMESPACE lake.plain")
            pipeline.session.sql(PLAIN)
            both = _Both(
                pipeline=pipeline, bootstrap=broker.bootstrap, topic=topic, rows=rows, partitions=partitions
            )
            return _measured(both, commits, rounds)
        finally:
            pipeline.close()


def _measured(both: _Both, commits: int, rounds: int) -> dict[str, Any]:
    for number in range(rounds + 1):
        both.produce(commits)
        plain = partial(both.plain, range(number * commits, (number + 1) * commits))
        for side in (both.ours, plain) if number % 2 else (plain, both.ours):
            side()
    both.require_equal()
    ours, plain_ = (
        _per_commit(both.commits(table), commits) for table in ("lake.default.events", "lake.plain.events")
    )
    ours_ms, plain_ms = statistics.median(ours), statistics.median(plain_)
    return {
        "rows": both.rows,
        "ours_ms": ours,
        "plain_ms": plain_,
        "median_ours_ms": ours_ms,
        "median_plain_ms": plain_ms,
        "ratio": ours_ms / plain_ms,
    }


def _per_commit(at_ms: list[int], commits: int) -> list[int]:
    """Times between the commits of each round, without the first round."""
    rounds = [at_ms[first : first + commits] for first in range(commits, len(at_ms), commits)]
    return [after - before for round_ in rounds for before, after in pairwise(round_)]
