"""Preparing a stream, so that none of its sources skips data silently."""

from __future__ import annotations

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.sources.registry import is_stream_leaf, source_of, sources_of

__all__ = ["prepared_stream"]


def prepared_stream(session: SparkSession, frame: DataFrame) -> DataFrame:
    """The same stream, each of its sources prepared (`SparkSource.prepared`)."""
    if all(source.prepared(session) is source.leaf for source in sources_of(frame)):
        return frame

    def leaf(node: JavaObject) -> JavaObject:
        return source_of(node).prepared(session) if is_stream_leaf(node) else node

    return dataframe_of_plan(session, replace_leaves(session, analyzed_plan(frame), leaf))
