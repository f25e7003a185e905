"""Columns of DataFrames that are built later: `BASE["id"]` while a definition file is imported.

Such a column is an attribute with the id of its DataFrame's plan, as on Spark Connect. The plan gets this id
when it is built, and Spark's analyzer finds the attribute in it: `BASE["id"]` stays a column of `BASE` where
another DataFrame has a column of the same name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn

from tautochrone.spark.jvm.cached_packages import cached_packages

__all__ = ["column_of_plan", "column_text", "next_plan_id", "with_plan_id"]

# Py4J sends only numbers that are too large for an Int as Long, which the ids are. No shorter number in the
# text of a column is an id.
_plan_ids = itertools.count(1 << 40)
_PLAN_ID = re.compile(r"Some\((\d{13})\)")
_ORIGIN = re.compile(r",Origin\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
"""Line numbers and addresses, which are others in each process."""


def next_plan_id() -> int:
    return next(_plan_ids)


def column_of_plan(session: SparkSession, name: str, plan_id: int, *, is_metadata: bool = False) -> Column:
    """The column `name`, or all columns for `*`, of the plan that has or gets `plan_id`."""
    jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
    nodes = jvm.org.apache.spark.sql.internal
    origin = jvm.org.apache.spark.sql.catalyst.trees.CurrentOrigin.get()
    plan = jvm.scala.Option.apply(plan_id)
    if name == "*":
        node = nodes.UnresolvedStar(jvm.scala.Option.empty(), plan, origin)
    else:
        node = nodes.UnresolvedAttribute.apply(name, plan, is_metadata, origin)
    return ClassicColumn(jvm.org.apache.spark.sql.Column(node))


def with_plan_id(frame: DataFrame, plan_id: int) -> DataFrame:
    """The DataFrame, with a plan that has the id."""
    jvm: Any = cached_packages(frame.sparkSession._jvm)  # noqa: SLF001
    logical_plan = getattr(jvm.org.apache.spark.sql.catalyst.plans.logical, "LogicalPlan$")
    tag = getattr(logical_plan, "MODULE$").PLAN_ID_TAG()
    plan = frame._jdf.logicalPlan()  # noqa: SLF001
    other_id = plan.getTagValue(tag)
    if other_id.isDefined() and other_id.get() != plan_id:
        # Some methods return the plan that they got, such as `drop` of a column that is not there.
        frame = frame.select("*")
        plan = frame._jdf.logicalPlan()  # noqa: SLF001
    plan.setTagValue(tag, plan_id)
    return frame


def column_text(column: Column, frame_text: Callable[[int], str]) -> str:
    """A text that is the same in every process; `frame_text` gives that of the DataFrame with a plan id."""
    node: Any = column._jc  # noqa: SLF001
    nodes = node.node().toString()
    frames = dict.fromkeys(_PLAN_ID.findall(nodes))
    text = _ORIGIN.sub("", repr(column))
    for number, plan_id in enumerate(frames):
        text = text.replace(plan_id, str(number))
    return " of ".join([text, *(frame_text(int(plan_id)) for plan_id in frames)])
