"""The sources outside the lake that a stream reads, as texts. Equal sources have equal texts."""

from __future__ import annotations

from pyspark.sql import DataFrame

from tautochrone.spark.sources.registry import sources_of

__all__ = ["external_sources"]


def external_sources(frame: DataFrame) -> frozenset[str]:
    """The topics, folders and other sources that a stream reads. Sources that give each reader other rows,
    such as `rate` and sockets, are left out."""
    return frozenset[str]().union(*(source.input_ids() for source in sources_of(frame)))
