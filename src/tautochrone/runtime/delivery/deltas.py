"""What a sink lacks of one table: the consolidated delta from the delivered version to the published one.

After a revision the delivered version is no ancestor of the published one. Then the delta is what leads back
to their newest common ancestor, inverted, plus what leads from there to the published version. Where no
history leads from one to the other, all rows are sent.

Few changed rows are read from the data files and netted by this process; all others by Spark's jobs. Spark
groups by all columns in a job with a shuffle, asks twice whether a side is empty, and collects each side. Few
rows are collected at once, with their signs, and grouped by Arrow: one Spark job instead of six, or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema

from tautochrone.errors import HistoryLostError
from tautochrone.model import limits
from tautochrone.model.lake import CollectedChange, LakeTable, RowChange, Rows, VersionFiles
from tautochrone.model.names import TableName, Version, quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.spark.execute.multiset_diff import consolidated

__all__ = ["CollectedRows", "TableDelta", "delta_of", "net_rows", "with_columns"]

_SIGN = "__taut_sign"
_GROUPED = (
    spark.BooleanType,
    spark.ByteType,
    spark.ShortType,
    spark.IntegerType,
    spark.LongType,
    spark.FloatType,
    spark.DoubleType,
    spark.DecimalType,
    spark.BinaryType,
    spark.DateType,
    spark.TimestampType,
    spark.TimestampNTZType,
)
_Change = TypeVar("_Change")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelta:
    """What goes to the sink of one table: a consolidated `change`, or all `rows` for a `reason`; to a
    publication, the `files` of the version.

    Attributes:
        moves_rows: of `files`, see `model.sink.TakesFiles`.
        left_to_spark: why Spark's jobs read the changed rows; None: this process did, or there were none.
    """

    table: TableName
    change: RowChange | None = None
    rows: Rows | None = None
    reason: Reason | None = None
    left_to_spark: Reason | None = None
    files: VersionFiles | None = None
    moves_rows: bool = True

    @property
    def is_insert_only(self) -> bool:
        return self.change is not None and self.change.removed is None


def delta_of(table: LakeTable, session: Any, delivered: Version | None, published: Version) -> TableDelta:
    """The change from one version to the other, or all rows where it cannot be told.

    Args:
        delivered: what the sink shows; None when it has nothing of the table.
    """
    if delivered is None:
        reason = Reason.of(ReasonCode.SINK_HAS_NO_ROWS)
        return TableDelta(table=table.name, rows=table.read(session, published), reason=reason)
    lost = table.columns_lost(delivered, published)
    if lost:
        reason = Reason.of(ReasonCode.COLUMNS_CHANGED_SINCE, columns=", ".join(lost))
        return TableDelta(table=table.name, rows=table.read(session, published), reason=reason)
    try:
        collected = _collected_change(table, delivered, published)
        if not isinstance(collected, Reason):
            return TableDelta(table=table.name, change=_as_rows(collected, session))
        change = _by_way_of_ancestor(
            table,
            delivered,
            published,
            lambda old, new: table.changed_rows(session, old, new),
            _back_and_forth,
        )
    except HistoryLostError as error:
        reason = Reason.of(ReasonCode.CHANGES_UNKNOWN, error_class=error.error_class, text=error.message)
        return TableDelta(table=table.name, rows=table.read(session, published), reason=reason)
    return TableDelta(table=table.name, change=_net_change(change), left_to_spark=collected)


def with_columns(change: RowChange, names: Sequence[str]) -> RowChange:
    """The change with these columns only: one is read with those that the table has now.

    Args:
        names: of columns that the table has.
    """
    added, removed = (_only(rows, names) for rows in (change.added, change.removed))
    return replace(change, added=added, removed=removed)


def _only(rows: Any, names: Sequence[str]) -> Any:
    if rows is None or list(rows.columns) == list(names):
        return rows
    # PySpark takes a dot in a column's name for a field of a struct.
    return rows.select(*(names if isinstance(rows, CollectedRows) else map(quoted, names)))


def _by_way_of_ancestor(
    table: LakeTable,
    delivered: Version,
    published: Version,
    changed: Callable[[Version, Version], _Change],
    back_and_forth: Callable[[_Change, _Change], _Change],
) -> _Change:
    """The change, by way of the common ancestor where one version does not lead to the other.

    Args:
        changed: gives the change from a version to one of its successors.
        back_and_forth: of the changes from the ancestor to the one and to the other version.

    Raises:
        HistoryLostError: there is no such way.
    """
    try:
        return changed(delivered, published)
    except HistoryLostError:
        ancestor = table.common_ancestor(delivered, published)
        # An ancestor that is one of the two adds no other way.
        if ancestor is None or ancestor == delivered:
            raise
    return back_and_forth(changed(ancestor, delivered), changed(ancestor, published))


# -- by this process ------------------------------------------------------------------------------


def _collected_change(table: LakeTable, delivered: Version, published: Version) -> CollectedChange | Reason:
    """The net change; or why Spark must read it."""
    change = _by_way_of_ancestor(table, delivered, published, table.collected_change, _collected_both)
    if isinstance(change, Reason) or change.added is None or change.removed is None:
        return change
    net = _net_tables(change.added, change.removed)
    return net if isinstance(net, Reason) else CollectedChange(added=net[0], removed=net[1])


def _collected_both(
    back: CollectedChange | Reason, forth: CollectedChange | Reason
) -> CollectedChange | Reason:
    if isinstance(back, Reason) or isinstance(forth, Reason):
        return back if isinstance(back, Reason) else forth
    return CollectedChange(
        added=_concatenated(back.removed, forth.added), removed=_concatenated(back.added, forth.removed)
    )


def _concatenated(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return pa.concat_tables([first, second], promote_options="default")


def _as_rows(change: CollectedChange, session: Any) -> RowChange:
    def frame(rows: pa.Table) -> DataFrame:
        schema = from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
        of_rows: DataFrame = session.createDataFrame(rows, schema)
        return of_rows

    sides = [
        None if rows is None or not rows.num_rows else CollectedRows(rows, frame)
        for rows in (change.added, change.removed)
    ]
    return RowChange(
        added=sides[0], removed=sides[1], rows=sum(len(side) for side in sides if side is not None)
    )


# -- by Spark -------------------------------------------------------------------------------------


def _back_and_forth(back: RowChange, forth: RowChange) -> RowChange:
    return _combined_change(_inverted_change(back), forth)


def _inverted_change(change: RowChange) -> RowChange:
    return RowChange(added=change.removed, removed=change.added, rows=change.rows, carried=change.carried)


def _combined_change(first: RowChange, second: RowChange) -> RowChange:
    return RowChange(
        added=_union_all(first.added, second.added),
        removed=_union_all(first.removed, second.removed),
        rows=first.rows + second.rows,
    )


def _union_all(first: Rows | None, second: Rows | None) -> Rows | None:
    if first is None or second is None:
        return second if first is None else first
    return first.unionByName(second, allowMissingColumns=True)


def _net_change(change: RowChange) -> RowChange:
    """The change without the rows that are on both sides."""
    added: DataFrame | None = change.added
    removed: DataFrame | None = change.removed
    if added is None or removed is None:
        return change
    # Rows that were only carried over cancel each other: they need not come to the driver.
    is_large = change.carried or change.rows > limits.MAX_DRIVER_ROWS
    net = None if is_large else net_rows(added, removed)
    if net is None or isinstance(net, Reason):
        added, removed = consolidated(added, removed)
        return RowChange(added=added, removed=removed, rows=change.rows)
    net_added, net_removed = net
    rows = len(net_added) + len(net_removed)
    return RowChange(added=net_added or None, removed=net_removed or None, rows=rows)


# -- the net change of few rows --------------------------------------------------------------------


class CollectedRows:
    """Rows that this process has as an Arrow table. A DataFrame of them is made only if one is needed."""

    def __init__(self, table: pa.Table, frame: Callable[[pa.Table], DataFrame]) -> None:
        self._table = table
        self._frame = frame

    @property
    def columns(self) -> list[str]:
        return list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self._table

    def select(self, *columns: str) -> CollectedRows:
        return CollectedRows(self._table.select(columns), self._frame)

    def as_frame(self) -> DataFrame:
        return self._frame(self._table)

    def toLocalIterator(self) -> Iterator[Any]:  # noqa: N802
        return self.as_frame().toLocalIterator()

    def mapInArrow(self, *arguments: Any, **named: Any) -> DataFrame:  # noqa: N802
        return self.as_frame().mapInArrow(*arguments, **named)


def net_rows(added: DataFrame, removed: DataFrame) -> tuple[CollectedRows, CollectedRows] | Reason:
    """Both relations without the rows that are in both, copy by copy, as `multiset_diff.consolidated`.

    Returns:
        A reason why Spark has to do it: this process does not compare values of the type of a column.

    Example:
        ============ ============== =================
        added        removed        net
        a, a, b      a, c           +a +b -c
        ============ ============== =================
    """
    schema = added.schema
    for field in schema.fields:
        if not _is_grouped(field.dataType):
            return _compared_by_spark(field.name, field.dataType.simpleString())
    columns = [sf.col(quoted(name)) for name in added.columns]
    both = added.select(*columns, sf.lit(1).alias(_SIGN)).unionAll(
        removed.select(*columns, sf.lit(-1).alias(_SIGN))
    )
    session = added.sparkSession

    def frame(table: pa.Table) -> DataFrame:
        return session.createDataFrame(table, schema)

    net = _net_of_signed(both.toArrow())
    if isinstance(net, Reason):
        return net
    return CollectedRows(net[0], frame), CollectedRows(net[1], frame)


def _net_tables(added: pa.Table, removed: pa.Table) -> tuple[pa.Table, pa.Table] | Reason:
    """The same of rows that this process has. A column that one side lacks is NULL in it."""
    both = pa.concat_tables([added, removed], promote_options="default")
    signs = [1] * added.num_rows + [-1] * removed.num_rows
    return _net_of_signed(both.append_column(_SIGN, pa.array(signs, pa.int32())))


def _compared_by_spark(column: str, kind: str) -> Reason:
    return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=column, type=kind)


def _is_grouped(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.StringType):
        # Other collations hold different texts for the same.
        return kind == spark.StringType()
    if isinstance(kind, spark.ArrayType):
        return _is_grouped(kind.elementType)
    if isinstance(kind, spark.MapType):
        return _is_grouped(kind.keyType) and _is_grouped(kind.valueType)
    if isinstance(kind, spark.StructType):
        return all(_is_grouped(field.dataType) for field in kind.fields)
    return isinstance(kind, _GROUPED)


def _net_of_signed(both: pa.Table) -> tuple[pa.Table, pa.Table] | Reason:
    """The rows that remain of each sign, each as often as its copies.

    Args:
        both: with the sign of each row in the last column.
    """
    *names, sign = both.column_names
    keys: list[Any] = []
    for name, column in zip(names, both.columns, strict=False):
        key = _key(column)
        if key is None:
            return _compared_by_spark(name, str(column.type))
        keys.append(key)
    # Names of the user could be those of aggregates.
    positions = [str(position) for position in range(len(keys))]
    table = pa.table(
        [*keys, both.column(len(names)), pa.array(range(both.num_rows), pa.int64())],
        names=[*positions, "sign", "row"],
    )
    groups = table.group_by(positions, use_threads=False).aggregate([("sign", "sum"), ("row", "min")])
    rows, copies = groups["row_min"].to_pylist(), groups["sign_sum"].to_pylist()
    normalized = pa.table([_normalized_floats(column) for column in both.columns], names=[*names, sign])
    normalized = normalized.drop_columns([sign])
    return _copies(normalized, rows, copies), _copies(normalized, rows, [-count for count in copies])


def _copies(rows: pa.Table, positions: Sequence[int], counts: Sequence[int]) -> pa.Table:
    taken = [position for position, count in zip(positions, counts, strict=True) for _ in range(count)]
    return rows.take(pa.array(taken, pa.int64()))


def _key(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array | None:
    """What is equal for equal values; None: their type is compared by Spark only."""
    if not pa.types.is_nested(column.type):
        return _normalized_floats(column)
    try:
        return pa.array([repr(_comparable(value, column.type)) for value in column.to_pylist()], pa.string())
    except (ValueError, OverflowError):
        # Python has no such time or text.
        return None


def _comparable(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return [_comparable(value[field.name], field.type) for field in kind]
    if pa.types.is_map(kind):
        entries = [
            (_comparable(key, kind.key_type), _comparable(item, kind.item_type)) for key, item in value
        ]
        # A map has no order.
        return sorted(entries, key=repr)
    if pa.types.is_nested(kind):
        return [_comparable(item, kind.value_type) for item in value]
    # 0.0 and -0.0 are the same; all NaN have one text.
    return value + 0.0 if isinstance(value, float) else value


def _normalized_floats(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats as Spark groups them: 0.0 and -0.0 are the same, and so are all NaN."""
    if not pa.types.is_floating(column.type):
        return column
    numbers = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(numbers), pa.scalar(math.nan, column.type), numbers)
