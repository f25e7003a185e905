"""Rows of a DataFrame held on the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.spark.evaluate import dataframe_of_plan
from tautochrone.spark.packages import packages_of

__all__ = ["computed", "held", "held_if_few", "local_relation"]

_NOT_STREAMING = False


def local_relation(
    *frames: DataFrame, identify: Callable[[JavaObject], JavaObject] = lambda output: output
) -> tuple[JavaObject, int]:
    """A local relation of the rows of DataFrames, computed now, and how many there are.

    What is done with it row by row, Spark's optimiser computes on the driver.

    Args:
        frames: with the same types, column by column.
        identify: may give the attributes of the first frame's output other ids.
    """
    jvm = packages_of(frames[0].sparkSession._jvm)  # noqa: SLF001
    executions = [frame._jdf.queryExecution() for frame in frames]  # noqa: SLF001
    data, count = None, 0
    for execution in executions:
        rows = execution.executedPlan().executeCollect()
        count += len(rows)
        part = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(rows)
        data = part if data is None else data.concat(part)
    output = identify(_nullable_as_any([execution.analyzed().output() for execution in executions]))
    relation = jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(
        output, data, _NOT_STREAMING, jvm.scala.Option.empty()
    )
    return relation, count


def _nullable_as_any(outputs: Sequence[JavaObject]) -> JavaObject:
    """The first of several lists of attributes, nullable where one of the others is."""
    first, *others = outputs
    for place in range(first.size() if others else 0):
        attribute = first.apply(place)
        if not attribute.nullable() and any(other.apply(place).nullable() for other in others):
            first = first.updated(place, attribute.withNullability(True))
    return first


def computed(frame: DataFrame) -> tuple[DataFrame, int]:
    """A DataFrame's rows, computed now and kept by Spark where they are, and how many there are."""
    found = frame.localCheckpoint(eager=True)
    return found, int(found.count())


def held(frame: DataFrame, fits: Callable[[int], bool], *, here: bool) -> tuple[DataFrame, int]:
    """A DataFrame's rows, computed now, and how many there are: on the driver when so many fit there, else
    kept by Spark where they are.

    Args:
        frame: any.
        fits: whether so many rows do.
        here: it is known that they do, which saves a job.
    """
    found = frame
    if not here:
        found, rows = computed(frame)
        if not fits(rows):
            return found, rows
    relation, rows = local_relation(found)
    return dataframe_of_plan(frame.sparkSession, relation), rows


def held_if_few(frame: DataFrame, most: int) -> tuple[DataFrame, int]:
    """A DataFrame and its number of rows: its rows held when there are at most `most`, else itself.

    Rows that are many are not kept anywhere: whoever reads them computes them again.
    """
    found, rows = computed(frame)
    if rows > most:
        return frame, rows
    return dataframe_of_plan(frame.sparkSession, local_relation(found)[0]), rows
