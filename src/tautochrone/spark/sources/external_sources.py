"""What a stream reads from outside the lake, as text: two reads of the same thing have the same text."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tautochrone.spark.sources.registry import sources_of

__all__ = ["external_sources"]


def external_sources(frame: DataFrame) -> frozenset[str]:
    """The topics, folders, … that a stream reads. Sources that give each reader rows of its own (rate,
    sockets) are left out."""
    return frozenset[str]().union(*(source.input_ids() for source in sources_of(frame)))
