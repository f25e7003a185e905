"""Computing the rows of a DataFrame once: few rows are kept on the driver, many on the executors."""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.names import quoted
from tautochrone.model.reason import ReasonCode
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan, scala_seq
from tautochrone.spark.execute.driver_scan import collect, note_job
from tautochrone.spark.jvm.catalyst import Catalyst

__all__ = [
    "computed_on_executors",
    "few_rows",
    "first_row",
    "fits_on_driver",
    "local_relation",
    "local_rows_at",
    "local_rows_by_value",
    "materialize",
    "materialize_few",
    "materialize_if_small",
    "materialize_up_to",
    "rows_up_to",
    "unpersist",
]


def fits_on_driver(rows: int) -> bool:
    """Whether this many rows are kept on the driver."""
    return rows <= limits.MAX_DRIVER_ROWS


def first_row(rows: DataFrame) -> Row | None:
    """A row to show to people, or None if there is none. Dates and times are texts: those of Spark begin
    before the year 1 and go beyond 9999, Python's do not."""
    numbered = rows.toDF(*(f"c{number}" for number in range(len(rows.columns))))
    shown = [
        sf.col(name).cast("string") if kind.startswith(("date", "timestamp")) else sf.col(name)
        for name, kind in numbered.dtypes
    ]
    return next(iter(numbered.select(*shown).limit(1).collect()), None)


def local_relation(
    *frames: DataFrame, with_ids: Callable[[JavaObject], JavaObject] = lambda output: output
) -> tuple[JavaObject, int]:
    """A local relation of the rows of DataFrames, computed now, and the number of rows.

    Row-by-row operators over a local relation are computed on the driver, by Spark's optimizer.

    Args:
        frames: DataFrames with the same types, column by column.
        with_ids: returns the attributes of the first frame's output, with other ids if needed.
    """
    catalyst = Catalyst(frames[0].sparkSession)
    executions = [frame._jdf.queryExecution() for frame in frames]  # noqa: SLF001
    data, count = None, 0
    for frame in frames:
        rows = collect(frame)
        count += len(rows)
        part = catalyst.jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(rows)
        data = part if data is None else data.concat(part)
    output = with_ids(_with_common_nullability([execution.analyzed().output() for execution in executions]))
    return catalyst.local_relation(output, data), count


def local_rows_by_value(frame: DataFrame, column: str) -> dict[Any, tuple[DataFrame, int]]:
    """The rows of a DataFrame, and their number, by the values of a column, computed now and kept on the
    driver.

    Args:
        frame: sorted by the column: equal values follow each other.
    """
    session = frame.sparkSession
    catalyst = Catalyst(session)
    relation, _ = local_relation(frame)
    values = [value for (value,) in dataframe_of_plan(session, relation).select(quoted(column)).collect()]
    groups: dict[Any, tuple[DataFrame, int]] = {}
    start = 0
    for value, equal in groupby(values):
        count = sum(1 for _ in equal)
        rows = catalyst.local_relation(relation.output(), relation.data().slice(start, start + count))
        groups[value] = dataframe_of_plan(session, rows), count
        start += count
    return groups


def local_rows_at(frame: DataFrame, indexes: Sequence[int]) -> DataFrame:
    """Some rows of a DataFrame over a local relation, by their numbers."""
    session = frame.sparkSession
    catalyst = Catalyst(session)
    jvm = catalyst.jvm
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    relation = analyzed_plan(frame)
    sent = array.array("i", indexes)
    sent.byteswap()
    numbers = gateway.new_array(gateway.jvm.int, len(indexes))
    jvm.java.nio.ByteBuffer.wrap(sent.tobytes()).asIntBuffer().get(numbers)
    boxed = jvm.java.util.stream.IntStream.of(numbers).boxed().toList()
    # A Scala sequence is a function from numbers to its elements.
    data = scala_seq(session, boxed).map(relation.data())
    return dataframe_of_plan(session, catalyst.local_relation(relation.output(), data))


def _with_common_nullability(outputs: Sequence[JavaObject]) -> JavaObject:
    """The first of several lists of attributes, nullable where the attribute of any list is."""
    first, *rest = outputs
    for position in range(first.size() if rest else 0):
        attribute = first.apply(position)
        if not attribute.nullable() and any(output.apply(position).nullable() for output in rest):
            first = first.updated(position, attribute.withNullability(True))
    return first


def computed_on_executors(frame: DataFrame) -> tuple[DataFrame, int]:
    """A DataFrame whose rows are computed now and kept on the executors, and the number of rows."""
    note_job(ReasonCode.RESULT_NOT_COUNTED, limit=limits.MAX_DRIVER_ROWS)
    cached = frame.localCheckpoint(eager=True)
    # The RDD is counted because planning `count()` takes longer than counting.
    return cached, int(cached._jdf.queryExecution().toRdd().count())  # noqa: SLF001


def materialize(frame: DataFrame, *, max_rows: int) -> tuple[DataFrame, int]:
    """A DataFrame whose rows are computed now and kept, and the number of rows.

    Args:
        frame: any DataFrame.
        max_rows: a known upper bound of its rows. If that fits on the driver, no job counts the rows.
    """
    return (
        _on_driver(frame)
        if fits_on_driver(max_rows)
        else _on_driver_if_it_fits(*computed_on_executors(frame))
    )


def rows_up_to(frame: DataFrame, max_rows: int) -> DataFrame:
    """The rows of a DataFrame, or more than `max_rows` of them: each task stops by itself."""
    catalyst = Catalyst(frame.sparkSession)
    plan = analyzed_plan(frame)
    # A global limit would run one partition after another.
    limited = catalyst.logical("LocalLimit")(catalyst.literal(max_rows + 1), plan)
    return dataframe_of_plan(frame.sparkSession, limited)


def materialize_up_to(frame: DataFrame, max_rows: int) -> tuple[DataFrame, int] | None:
    """Like `materialize`; None when there are more than `max_rows` rows. Not all are computed then."""
    cached, rows = computed_on_executors(rows_up_to(frame, max_rows))
    if rows <= max_rows:
        return _on_driver_if_it_fits(cached, rows)
    unpersist(cached)
    return None


def materialize_few(frame: DataFrame, max_rows: int) -> DataFrame | None:
    """The rows computed now, by one job, and kept on the driver; None when there are more than `max_rows`."""
    relation = few_rows(frame, max_rows)
    return None if relation is None else dataframe_of_plan(frame.sparkSession, relation)


def few_rows(
    frame: DataFrame,
    max_rows: int,
    with_ids: Callable[[JavaObject], JavaObject] = lambda output: output,
) -> JavaObject | None:
    """The same as a local relation; for `with_ids` see `local_relation`."""
    relation, rows = local_relation(rows_up_to(frame, max_rows), with_ids=with_ids)
    return relation if rows <= max_rows else None


def materialize_if_small(frame: DataFrame, max_rows: int) -> tuple[DataFrame, int]:
    """A DataFrame and its number of rows. With at most `max_rows` rows these are kept; with more the
    DataFrame is returned as it is, and each reader computes the rows again."""
    cached, rows = computed_on_executors(frame)
    return _on_driver_if_it_fits(cached, rows) if rows <= max_rows else (frame, rows)


def _on_driver_if_it_fits(cached: DataFrame, rows: int) -> tuple[DataFrame, int]:
    if not fits_on_driver(rows):
        return cached, rows
    result = _on_driver(cached)
    unpersist(cached)
    return result


def unpersist(cached: DataFrame) -> None:
    """Drop the blocks of a `computed_on_executors` DataFrame that is not read again.

    Without this call Spark drops them only when the JVM collects the RDD as garbage.
    """
    cached._jdf.queryExecution().analyzed().rdd().unpersist(False)  # noqa: SLF001


def _on_driver(frame: DataFrame) -> tuple[DataFrame, int]:
    relation, rows = local_relation(frame)
    return dataframe_of_plan(frame.sparkSession, relation), rows
