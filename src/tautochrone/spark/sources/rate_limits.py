"""Bounds on the batches of a stream, put into the analysed plan instead of into somebody's code.

Spark bounds a batch by options of its sources. They stand in the leaves of the plan; a copy of the plan with
other options in these is the same query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.jvm.catalyst import kind

__all__ = ["KNOWN_LIMITS", "bounds_files", "limited", "with_v1_options"]

KNOWN_LIMITS = {
    "kafka": ("maxOffsetsPerTrigger",),
    "files": ("maxFilesPerTrigger", "maxBytesPerTrigger"),
}
"""The options by which Spark's sources bound a batch, by kind of source. The others have none."""


def limited(
    session: SparkSession, frame: DataFrame, limits: Mapping[str, int]
) -> tuple[DataFrame, dict[str, str], frozenset[str]]:
    """A stream whose sources take no more than `limits` in one batch.

    Each source gets the limits that it knows, in place of its own of the same kind: Spark refuses a file
    source that is bounded by files and by bytes.

    Args:
        session: where the new stream lives.
        frame: a streaming query.
        limits: Spark's options.

    Returns:
        The stream, its sources (each a name for people and its kind: `kafka`, `files` or empty), and the
        limits that at least one of them has taken.
    """
    sources: dict[str, str] = {}
    taken: set[str] = set()

    def leaf(node: JavaObject) -> JavaObject:
        of_class = kind(node)
        if of_class not in ("StreamingRelation", "StreamingRelationV2"):
            return node
        name = str(node.sourceName())
        source = _kind(of_class, name)
        sources[name] = source
        known = KNOWN_LIMITS.get(source, ())
        wanted = {option: str(limits[option]) for option in known if option in limits}
        if not wanted:
            return node
        taken.update(wanted)
        dropped = {option.lower() for option in known}
        return (with_v1_options if of_class == "StreamingRelation" else _with_v2)(
            session, node, wanted, dropped
        )

    plan = replace_leaves(session, analyzed_plan(frame), leaf)
    return dataframe_of_plan(session, plan), sources, frozenset(taken)


def bounds_files(frame: DataFrame) -> bool:
    """Whether a file source of a streaming query may take a part of the files that are there."""
    convert = cached_packages(frame.sparkSession._jvm).scala.jdk.javaapi.CollectionConverters  # noqa: SLF001
    options = {
        str(option).lower()
        for leaf in convert.asJava(analyzed_plan(frame).collectLeaves())
        if kind(leaf) == "StreamingRelation"
        for option in convert.asJava(leaf.dataSource().options())
    }
    return any(option.lower() in options for option in KNOWN_LIMITS["files"])


def _kind(of_class: str, name: str) -> str:
    if of_class == "StreamingRelation":
        return "files" if name.startswith("FileSource[") else ""
    return "kafka" if name == "kafka" else ""


def _merged(old: Mapping[str, Any], wanted: Mapping[str, str], dropped: set[str]) -> dict[str, str]:
    kept = {str(key): str(old[key]) for key in old if str(key).lower() not in dropped}
    return kept | dict(wanted)


def with_v1_options(
    session: SparkSession, node: JavaObject, wanted: Mapping[str, str], dropped: set[str]
) -> JavaObject:
    """A copy of a `StreamingRelation` with the options `wanted`, without `dropped` (small letters)."""
    jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
    old = node.dataSource()
    options = _merged(jvm.scala.jdk.javaapi.CollectionConverters.asJava(old.options()), wanted, dropped)
    fields = [old.productElement(index) for index in range(old.productArity())]
    # By the class's own names: an argument more in another Spark must not shift the others silently.
    place = [old.productElementName(index) for index in range(old.productArity())].index("options")
    fields[place] = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(options)
    return node.copy(old.copy(*fields), node.sourceName(), node.output())


def _with_v2(
    session: SparkSession, node: JavaObject, wanted: Mapping[str, str], dropped: set[str]
) -> JavaObject:
    jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
    fields = [node.productElement(index) for index in range(node.productArity())]
    place = [node.productElementName(index) for index in range(node.productArity())].index("extraOptions")
    old = fields[place].asCaseSensitiveMap()
    fields[place] = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap(_merged(old, wanted, dropped))
    return node.copy(*fields)
