"""Rows of a DataFrame held on the driver."""

from __future__ import annotations

from collections.abc import Callable

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.spark.evaluate import dataframe_of_plan
from tautochrone.spark.packages import packages_of

__all__ = ["computed", "held_if_few", "local_relation"]

_NOT_STREAMING = False


def local_relation(
    frame: DataFrame, identify: Callable[[JavaObject], JavaObject] = lambda output: output
) -> tuple[JavaObject, int]:
    """A local relation of a DataFrame's rows, computed now, and how many there are.

    What is done with it row by row, Spark's optimiser computes on the driver.

    Args:
        identify: may give the attributes of the frame's output other ids.
    """
    jvm = packages_of(frame.sparkSession._jvm)  # noqa: SLF001
    execution = frame._jdf.queryExecution()  # noqa: SLF001
    rows = execution.executedPlan().executeCollect()
    data = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(rows)
    relation = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
        identify(execution.analyzed().output()), data, _NOT_STREAMING, jvm.scala.Option.empty()
    )
    return relation, len(rows)


def computed(frame: DataFrame) -> tuple[DataFrame, int]:
    """A DataFrame's rows, computed now and kept by Spark where they are, and how many there are."""
    found = frame.localCheckpoint(eager=True)
    return found, int(found.count())


def held_if_few(frame: DataFrame, most: int) -> tuple[DataFrame, int]:
    """A DataFrame and its number of rows: its rows held when there are at most `most`, else itself.

    Rows that are many are not kept anywhere: whoever reads them computes them again.
    """
    found, rows = computed(frame)
    if rows > most:
        return frame, rows
    return dataframe_of_plan(frame.sparkSession, local_relation(found)[0]), rows
