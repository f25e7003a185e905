"""Limits on the batches of a stream, set in the analyzed plan instead of in the user's code.

Spark limits a batch by options of its sources, which are in the leaves of the plan. A copy of the plan with
other options in its leaves is the same query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.model.source import Unsupported
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.sources.registry import is_stream_leaf, source_of

__all__ = ["LimitedStream", "limited"]


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
