"""What a stream reads from outside the lake, as text by which two reads of one thing are recognised."""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.jvm.catalyst import kind, walk_with_subqueries
from tautochrone.spark.sources.kafka import kafka_sources

__all__ = ["outside_sources"]

_FILES = "FileSource["


def outside_sources(frame: DataFrame) -> frozenset[str]:
    """Kafka topics with their brokers, and folders of files, that a stream reads. Other sources (rate,
    sockets) give each reader rows of its own."""
    found = {
        f"topic {topic} of {_brokers(source.brokers)}"
        for source in kafka_sources(frame)
        for topic in source.topics or {f"pattern {source.options.get('subscribePattern', '')}"}
    }
    found |= {folder for node in walk_with_subqueries(analyzed_plan(frame)) if (folder := _folder(node))}
    return frozenset(found)


def _brokers(text: str) -> str:
    return ",".join(sorted(part.strip() for part in text.split(",")))


def _folder(node: JavaObject) -> str | None:
    if kind(node) != "StreamingRelation":
        return None
    name = str(node.sourceName())
    if not name.startswith(_FILES):
        return None
    return "files in " + name.removeprefix(_FILES).removesuffix("]").removeprefix("file:").rstrip("/")
