"""What a sink lacks of one table: the consolidated delta from the delivered version to the published one.

After a revision the delivered version is no ancestor of the published one. Then the delta is what leads back
to their newest common ancestor, inverted, plus what leads from there to the published version. Where no
history leads from one to the other, all rows are sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from tautochrone.errors import HistoryLostError
from tautochrone.model import limits
from tautochrone.model.lake import LakeTable, RowChange, Rows
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.delivery.net_rows import net_rows
from tautochrone.spark.execute.multiset_diff import consolidated

__all__ = ["TableDelta", "delta_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDelta:
    """What goes to the sink of one table: a consolidated `change`, or all `rows` for a `reason`.

    Attributes:
        left_to_spark: why Spark's jobs cancelled rows that were added and removed; None: this process did, or
            there were none.
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
        change = _change(table, session, delivered, published)
    except HistoryLostError as lost:
        reason = Reason.of(ReasonCode.CHANGES_UNKNOWN, error_class=lost.error_class, text=lost.message)
        return TableDelta(table=table.name, rows=table.read(session, published), reason=reason)
    net, left_to_spark = _net(change)
    return TableDelta(table=table.name, change=net, left_to_spark=left_to_spark)


def _change(table: LakeTable, session: Any, delivered: Version, published: Version) -> RowChange:
    """The change, by way of the common ancestor where one version does not lead to the other.

    Raises:
        HistoryLostError: there is no such way.
    """
    try:
        return table.changed_rows(session, delivered, published)
    except HistoryLostError:
        ancestor = table.common_ancestor(delivered, published)
        # An ancestor that is one of the two adds no other way.
        if ancestor is None or ancestor == delivered:
            raise
    back = table.changed_rows(session, ancestor, delivered)
    forth = table.changed_rows(session, ancestor, published)
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


def _net(change: RowChange) -> tuple[RowChange, Reason | None]:
    """The change without the rows that are on both sides, and why Spark computed it, if it did."""
    added: DataFrame | None = change.added
    removed: DataFrame | None = change.removed
    if added is None or removed is None:
        return change, None
    net = _left_to_spark(change) or net_rows(added, removed)
    if isinstance(net, Reason):
        consolidated_added, consolidated_removed = consolidated(added, removed)
        return RowChange(added=consolidated_added, removed=consolidated_removed, rows=change.rows), net
    net_added, net_removed = net
    rows = len(net_added) + len(net_removed)
    return RowChange(added=net_added or None, removed=net_removed or None, rows=rows), None


def _left_to_spark(change: RowChange) -> Reason | None:
    if change.carried:
        # They cancel each other: they need not come to the driver.
        return Reason.of(ReasonCode.ROWS_CARRIED_OVER)
    if change.rows > limits.MAX_DRIVER_ROWS:
        return Reason.of(ReasonCode.MANY_ROWS_CHANGED, rows=change.rows, limit=limits.MAX_DRIVER_ROWS)
    return None
