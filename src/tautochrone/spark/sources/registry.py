"""The source class of a plan's leaf. A new source is a file of its own and a line in `_CLASSES`.

Here are the classes of sources about which nothing beyond Spark's contract is known: Python data sources, and
all others.
"""

from __future__ import annotations

from collections.abc import Iterator

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import items, kind
from tautochrone.spark.sources.files import FileSource
from tautochrone.spark.sources.kafka_source import KafkaSource
from tautochrone.spark.sources.spark_source import STREAM_LEAVES, SparkSource

__all__ = [
    "OtherSource",
    "PythonSource",
    "external_sources",
    "is_stream_leaf",
    "prepared_stream",
    "rate_limits_by_label",
    "source_of",
    "sources_of",
]


class PythonSource(SparkSource):
    """A data source that is written in Python (`pyspark.sql.datasource`)."""

    label = "Python data sources"
    limits = Unsupported("a Python data source decides itself how much a batch takes")

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        if kind(leaf) != "StreamingRelationV2" or not leaf.source().isDefined():
            return False
        return kind(leaf.source().get()) == "PythonDataSourceV2"


class OtherSource(SparkSource):
    """Any other source, which can do nothing beyond Spark's contract."""

    label = "other sources"
    limits = Unsupported("no option is known that bounds its batches")

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        del leaf
        return True


_CLASSES: tuple[type[SparkSource], ...] = (
    KafkaSource,
    FileSource,
    PythonSource,
    # It reads every leaf, so it comes last.
    OtherSource,
)


def is_stream_leaf(leaf: JavaObject) -> bool:
    """Whether a leaf stands for a streaming source."""
    return kind(leaf) in STREAM_LEAVES


def source_of(leaf: JavaObject, number: int = 0) -> SparkSource:
    """The source that a streaming leaf stands for."""
    return next(source_class(leaf, number) for source_class in _CLASSES if source_class.reads(leaf))


def sources_of(frame: DataFrame) -> list[SparkSource]:
    """The streaming sources of a query, tables of the lake included, by their numbers in its offsets."""
    return list(_sources(frame))


def _sources(frame: DataFrame) -> Iterator[SparkSource]:
    leaves = [leaf for leaf in items(analyzed_plan(frame).collectLeaves()) if is_stream_leaf(leaf)]
    for number, leaf in enumerate(leaves):
        yield source_of(leaf, number)


def rate_limits_by_label() -> dict[str, RateLimitOptions]:
    """The limits of each kind of source whose batches can be limited."""
    return {
        source_class.label: source_class.limits
        for source_class in _CLASSES
        if isinstance(source_class.limits, RateLimitOptions)
    }


def external_sources(frame: DataFrame) -> frozenset[str]:
    """The topics, folders and other sources that a stream reads, as texts; equal sources have equal texts.
    Sources that give each reader other rows, such as `rate` and sockets, are left out."""
    return frozenset[str]().union(*(source.input_ids() for source in sources_of(frame)))


def prepared_stream(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same stream, each of its sources prepared (`SparkSource.prepared`), so that none skips data
    silently."""
    if all(source.prepared(session) is source.leaf for source in sources_of(frame)):
        return frame

    def leaf(node: JavaObject) -> JavaObject:
        return source_of(node).prepared(session) if is_stream_leaf(node) else node

    return dataframe_of_plan(session, replace_leaves(session, analyzed_plan(frame), leaf))
