"""The source class of a plan's leaf. A new source is a file of its own and a line in `_CLASSES`.

Here are the classes of sources about which nothing beyond Spark's contract is known: Python data sources, and
all others.

Limits on the batches of a stream are set in the analyzed plan instead of in the user's code: Spark limits a
batch by options of its sources, which are in the leaves of the plan. A copy of the plan with other options in
its leaves is the same query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.run_report import SourceKind
from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.catalyst import items, kind
from tautochrone.spark.sources.files import FileSource
from tautochrone.spark.sources.kafka import KafkaSource
from tautochrone.spark.sources.spark_source import STREAM_LEAVES, SparkSource

__all__ = [
    "LimitedStream",
    "OtherSource",
    "PythonSource",
    "external_sources",
    "is_stream_leaf",
    "kind_and_name",
    "limited",
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
    # Reads every leaf, so it must stay last: the fallback.
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


def kind_and_name(source: str) -> tuple[SourceKind, str]:
    """What an entry of `external_sources` is.

    >>> kind_and_name("topic orders of kafka:9092")
    (<SourceKind.TOPIC: 'topic'>, 'orders of kafka:9092')
    """
    for prefix, source_kind in (("topic ", SourceKind.TOPIC), ("files in ", SourceKind.FILES)):
        if source.startswith(prefix):
            return source_kind, source.removeprefix(prefix)
    return SourceKind.OTHER, source


def prepared_stream(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same stream, each of its sources prepared (`SparkSource.prepared`), so that none skips data
    silently."""
    if all(source.prepared(session) is source.leaf for source in sources_of(frame)):
        return frame

    def leaf(node: JavaObject) -> JavaObject:
        return source_of(node).prepared(session) if is_stream_leaf(node) else node

    return dataframe_of_plan(session, replace_leaves(session, analyzed_plan(frame), leaf))


@dataclass(frozen=True, slots=True)
class LimitedStream:
    """A stream with limits on its batches.

    Attributes:
        rows: the stream.
        sources: the names of its sources.
        applied: the limits that at least one source supports.
    """

    rows: DataFrame
    sources: tuple[str, ...]
    applied: frozenset[str]


def limited(session: SparkSession, frame: DataFrame, limits: Mapping[str, int]) -> LimitedStream:
    """A stream whose sources read at most `limits` in one batch.

    Each source gets the limits that it supports, in place of all its own limits: Spark refuses a file source
    that is limited by files and by bytes.

    Args:
        session: the session of the new stream.
        frame: a streaming query.
        limits: value by option, such as `{"maxFilesPerTrigger": 100}`.
    """
    names: dict[str, None] = {}
    applied: set[str] = set()

    def leaf(node: JavaObject) -> JavaObject:
        if not is_stream_leaf(node):
            return node
        source = source_of(node)
        names[source.name] = None
        supported = source.supported_limits()
        if isinstance(supported, Unsupported):
            return node
        options = {option: str(limits[option]) for option in supported.options if option in limits}
        applied.update(options)
        return source.with_options(session, options, supported.options) if options else node

    plan = replace_leaves(session, analyzed_plan(frame), leaf)
    return LimitedStream(dataframe_of_plan(session, plan), tuple(names), frozenset(applied))
