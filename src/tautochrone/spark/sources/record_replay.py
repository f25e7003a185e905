"""A streaming flow's query over given records of its source, as a batch.

Spark passes on a batch of a stream as a whole: when its query fails, the error does not say on which record.
Here the same analyzed plan runs over records that are read again by their offsets.
"""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.source import Unsupported
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, determinism
from tautochrone.spark.jvm.catalyst import kind, walk_with_subqueries
from tautochrone.spark.sources.registry import sources_of
from tautochrone.spark.sources.spark_source import STREAM_LEAVES, RecordReader
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = ["RecordReplay", "record_replay"]

_ROW_BY_ROW = frozenset(
    {"Project", "Filter", "Generate", "SubqueryAlias", "View", "EventTimeWatermark", *STREAM_LEAVES}
)


def record_replay(session: SparkSession, frame: DataFrame) -> RecordReplay | Unsupported:
    """The replay of a streaming query's records, or the reason why they cannot be replayed.

    Args:
        session: the session in which the query was evaluated.
        frame: the streaming query.
    """
    plan = analyzed_plan(frame)
    if plan.subqueriesAll().size() > 0:
        return Unsupported("it has a subquery")
    for node in walk_with_subqueries(plan):
        if kind(node) not in _ROW_BY_ROW:
            return Unsupported(f"it is not row by row over one source: {kind(node)}")
    sources = sources_of(frame)
    if len(sources) != 1:
        return Unsupported("it does not read from one source")
    reader = sources[0].record_reader(session)
    if isinstance(reader, Unsupported):
        return reader
    deterministic, function = determinism(plan)
    if not deterministic:
        return Unsupported(f"{function} returns other values each time")
    return RecordReplay(session, plan, reader)


class RecordReplay:
    """The replay of one flow, returned by `record_replay`.

    Args:
        session: the session in which the flow's query was evaluated.
        plan: the plan of the streaming query.
        reader: reads records of its source.
    """

    def __init__(self, session: SparkSession, plan: JavaObject, reader: RecordReader) -> None:
        self._session = session
        self._plan = plan
        self._reader = reader

    def records(self, starts: str, ends: str) -> DataFrame:
        """See `RecordReader.read`."""
        return self._reader.read(starts, ends)

    def query(self, records: DataFrame) -> DataFrame:
        """The flow's query over some or all of the records that `records` returned."""
        return stream_as_batch(self._session, self._plan, records)
