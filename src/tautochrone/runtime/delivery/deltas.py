"""What a sink lacks of one table: the consolidated delta from the delivered version to the published one.

After a revision the delivered version is no ancestor of the published one. Then the delta is what leads back
to their newest common ancestor, inverted, plus what leads from there to the published version. Where no
history leads from one to the other, all rows are sent.

Few changed rows are read from the data files and netted by this process; all others by Spark's jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from tautochrone.errors import HistoryLostError
from tautochrone.model import limits
from tautochrone.model.lake import CollectedChange, LakeTable, RowChange, Rows
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery.net_rows import CollectedRows, net_rows, net_tables
from tautochrone.spark.execute.multiset_diff import consolidated

__all__ = ["TableDelta", "delta_of"]

_Change = TypeVar("_Change")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelta:
    """What goes to the sink of one table: a consolidated `change`, or all `rows` for a `reason`.

    Attributes:
        left_to_spark: why Spark's jobs read the changed rows; None: this process did, or there were none.
    """

    table: TableName
    change: RowChange | None = None
    rows: Rows | None = None
    reason: Reason | None = None
    left_to_spark: Reason | None = None

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
    try:
        collected = _collected(table, delivered, published)
        if not isinstance(collected, Reason):
            return TableDelta(table=table.name, change=_as_rows(collected, session))
        change = _by_way_of_ancestor(
            table,
            delivered,
            published,
            lambda old, new: table.changed_rows(session, old, new),
            _back_and_forth,
        )
    except HistoryLostError as lost:
        reason = Reason.of(ReasonCode.CHANGES_UNKNOWN, error_class=lost.error_class, text=lost.message)
        return TableDelta(table=table.name, rows=table.read(session, published), reason=reason)
    return TableDelta(table=table.name, change=_net(change), left_to_spark=collected)


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


def _collected(table: LakeTable, delivered: Version, published: Version) -> CollectedChange | Reason:
    """The net change; or why Spark must read it."""
    change = _by_way_of_ancestor(table, delivered, published, table.collected_change, _collected_both)
    if isinstance(change, Reason) or change.added is None or change.removed is None:
        return change
    net = net_tables(change.added, change.removed)
    return net if isinstance(net, Reason) else CollectedChange(added=net[0], removed=net[1])


def _collected_both(
    back: CollectedChange | Reason, forth: CollectedChange | Reason
) -> CollectedChange | Reason:
    if isinstance(back, Reason) or isinstance(forth, Reason):
        return back if isinstance(back, Reason) else forth
    return CollectedChange(
        added=_together(back.removed, forth.added), removed=_together(back.added, forth.removed)
    )


def _together(first: Any, second: Any) -> Any:
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
    return _after(_inverted(back), forth)


def _inverted(change: RowChange) -> RowChange:
    return RowChange(added=change.removed, removed=change.added, rows=change.rows, carried=change.carried)


def _after(first: RowChange, second: RowChange) -> RowChange:
    return RowChange(
        added=_both(first.added, second.added),
        removed=_both(first.removed, second.removed),
        rows=first.rows + second.rows,
    )


def _both(first: Rows | None, second: Rows | None) -> Rows | None:
    if first is None or second is None:
        return second if first is None else first
    return first.unionByName(second, allowMissingColumns=True)


def _net(change: RowChange) -> RowChange:
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
