"""Which source a leaf of a plan is. A new source is a file of its own and a line in `_KINDS`."""

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

_KINDS: tuple[type[SparkSource], ...] = (
    KafkaSource,
    FileSource,
    PythonSource,
    # Takes every leaf, so it comes last.
    OtherSource,
)


def is_stream_leaf(leaf: JavaObject) -> bool:
    """Whether a leaf stands for a streaming source."""
    return kind(leaf) in STREAM_LEAVES


def source_of(leaf: JavaObject, number: int = 0) -> SparkSource:
    """The source that a streaming leaf stands for."""
    return next(of_kind(leaf, number) for of_kind in _KINDS if of_kind.reads(leaf))


def sources_of(frame: DataFrame) -> list[SparkSource]:
    """The streams that a query reads, tables of the lake too, by their numbers in its offsets."""
    return list(_sources(frame))


def _sources(frame: DataFrame) -> Iterator[SparkSource]:
    leaves = [leaf for leaf in items(analyzed_plan(frame).collectLeaves()) if is_stream_leaf(leaf)]
    for number, leaf in enumerate(leaves):
        yield source_of(leaf, number)


def rate_limits_by_label() -> dict[str, RateLimits]:
    """The kinds of sources whose batches can be bounded, and how."""
    return {of_kind.label: of_kind.limits for of_kind in _KINDS if isinstance(of_kind.limits, RateLimits)}
