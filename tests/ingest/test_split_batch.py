"""A batch that fails, over rows that stand for Kafka's records."""

from __future__ import annotations

from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.errors import IngestError
from tautochrone.ingest import bad_records
from tautochrone.ingest.bad_records import BatchSplitter
from tautochrone.model.lake import LakeTable, Staged
from tautochrone.model.source import BadRecords

pytestmark = pytest.mark.spark

RECORDS = 16


class Replay:
    """Gives one partition of a topic, whatever is asked, and a query over it that sums up what it reads."""

    def __init__(self, session: SparkSession, query: DataFrame) -> None:
        self._session = session

    def records(self, starts: object, ends: object) -> DataFrame:
        return self._session.range(RECORDS, numPartitions=1).select(
            sf.lit("t").alias("topic"), sf.lit(0).alias("partition"), sf.col("id").alias("offset")
        )

    def query(self, records: DataFrame) -> DataFrame:
        total = 0

        # A type hint would be looked at for what only pandas' functions have.
        @sf.udf("bigint", useArrow=False)
        def running(offset):  # type: ignore[no-untyped-def]
            nonlocal total
            total += offset
            if total > 100:
                raise OverflowError("more than 100 in all")
            return total

        return records.select(running("offset").alias("total"))


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Replay:
    monkeypatch.setattr(bad_records, "flow_replay", Replay)
    return Replay(spark, spark.range(0))


def test_batch_that_fails_only_as_a_whole_is_not_split(replay: Replay, spark: SparkSession) -> None:
    """0 + 1 + … + 15 is 120, each half is less: no record is to blame."""
    query = replay.query(replay.records({}, {}))
    with pytest.raises(Exception, match="more than 100 in all") as first:
        query.write.format("noop").mode("append").save()
    staged: list[DataFrame] = []

    def stage(rows: DataFrame) -> Staged:
        staged.append(rows)
        return cast(Any, None)

    flow = BatchSplitter("f", BadRecords.QUARANTINE, cast(LakeTable, object()), lambda rows: rows)
    with pytest.raises(IngestError, match=r"Flow f failed: .*more than 100 in all") as caught:
        flow.split(cast(Exception, first.value), spark, query, stage, 7, lambda: ("{}", "{}"))
    assert caught.value.__cause__ is first.value
    assert staged == []
