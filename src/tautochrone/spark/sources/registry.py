"""The source class of a plan's leaf. A new source is a file of its own and a line in `_CLASSES`."""

from __future__ import annotations

from collections.abc import Iterator

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.model.source import RateLimits
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import items, kind
from tautochrone.spark.sources.files import FileSource
from tautochrone.spark.sources.kafka_source import KafkaSource
from tautochrone.spark.sources.other_sources import OtherSource, PythonSource
from tautochrone.spark.sources.spark_source import STREAM_LEAVES, SparkSource

__all__ = ["is_stream_leaf", "rate_limits_by_label", "source_of", "sources_of"]

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


def rate_limits_by_label() -> dict[str, RateLimits]:
    """The limits of each kind of source whose batches can be limited."""
    return {
        source_class.label: source_class.limits
        for source_class in _CLASSES
        if isinstance(source_class.limits, RateLimits)
    }
