"""Rows of a DataFrame that are computed once and held: few on the driver, many where they were computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame

from tautochrone.model import limits
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.jvm.catalyst import Catalyst

__all__ = [
    "checkpointed",
    "fits_on_driver",
    "local_relation",
    "materialize",
    "materialize_if_small",
    "materialize_up_to",
    "unpersist",
]

_NOT_STREAMING = False


def fits_on_driver(rows: int) -> bool:
    """Whether so many rows are held on the driver."""
    return rows <= limits.MAX_DRIVER_ROWS


def local_relation(
    *frames: DataFrame, identify: Callable[[JavaObject], JavaObject] = lambda output: output
) -> tuple[JavaObject, int]:
    """A local relation of the rows of DataFrames, computed now, and how many there are.

    What is done with it row by row, Spark's optimiser computes on the driver.

    Args:
        frames: with the same types, column by column.
        identify: may give the attributes of the first frame's output other ids.
    """
    jvm = cached_packages(frames[0].sparkSession._jvm)  # noqa: SLF001
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


def checkpointed(frame: DataFrame) -> tuple[DataFrame, int]:
    """A DataFrame's rows, computed now and kept by Spark where they are, and how many there are."""
    found = frame.localCheckpoint(eager=True)
    # Counted without a plan: that would take longer than to count.
    return found, int(found._jdf.queryExecution().toRdd().count())  # noqa: SLF001


def materialize(frame: DataFrame, *, most: int) -> tuple[DataFrame, int]:
    """A DataFrame's rows, computed now and held, and how many there are.

    Args:
        frame: any.
        most: it is known that there are no more; when these fit, that saves a job.
    """
    return _here(frame) if fits_on_driver(most) else _where_it_fits(*checkpointed(frame))


def materialize_up_to(frame: DataFrame, most: int) -> tuple[DataFrame, int] | None:
    """The same; None when there are more than `most` rows, of which only some are computed then."""
    catalyst = Catalyst(frame.sparkSession)
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    # No task goes on beyond it. A limit for all of them would have one task look at one part after another.
    limited = catalyst.logical("LocalLimit")(catalyst.literal(most + 1), plan)
    found, rows = checkpointed(dataframe_of_plan(frame.sparkSession, limited))
    if rows <= most:
        return _where_it_fits(found, rows)
    unpersist(found)
    return None


def materialize_if_small(frame: DataFrame, most: int) -> tuple[DataFrame, int]:
    """A DataFrame and its number of rows: its rows held when there are at most `most`, else itself.

    Rows that are many are not kept anywhere: whoever reads them computes them again.
    """
    found, rows = checkpointed(frame)
    return _where_it_fits(found, rows) if rows <= most else (frame, rows)


def _where_it_fits(found: DataFrame, rows: int) -> tuple[DataFrame, int]:
    if not fits_on_driver(rows):
        return found, rows
    here = _here(found)
    unpersist(found)
    return here


def unpersist(found: DataFrame) -> None:
    """Drop the blocks of a `checkpointed` DataFrame, which nobody reads again.

    Without this call Spark drops them only when the JVM collects the RDD as garbage.
    """
    found._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001


def _here(frame: DataFrame) -> tuple[DataFrame, int]:
    relation, rows = local_relation(frame)
    return dataframe_of_plan(frame.sparkSession, relation), rows
