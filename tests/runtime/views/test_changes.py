"""What changed in a table is known as no rows, or not known."""

from __future__ import annotations

from unittest.mock import Mock

from tautochrone.model.lake import RowChange
from tautochrone.model.names import TableName, Version
from tautochrone.runtime.views.changes import Changes
from tautochrone.spark.execute.engine import TableDelta

TABLE = TableName("lake", ("src",), "lines")
NO_ROWS = TableDelta(None, None, 0, materialized=True)


def test_no_row_changed_is_not_unknown() -> None:
    table = Mock()
    table.changed_rows.return_value = RowChange(added=None, removed=None, rows=0)
    changes = Changes(Mock(), lambda _: table, lambda _: True, lambda _: frozenset())
    assert changes.stored_delta(TABLE, Version("1"), Version("2"), ["k"]) == NO_ROWS
    assert changes.stored_delta(TABLE, Version("1"), Version("1"), ["k"]) == NO_ROWS
    table.changed_rows.return_value = RowChange(added=Mock(), removed=None, rows=10**9)
    assert changes.stored_delta(TABLE, Version("2"), Version("3"), ["k"]) is None
    changes.add_view_delta(TABLE, Version("3"), Version("4"), NO_ROWS)
    assert changes.stored_delta(TABLE, Version("3"), Version("4"), ["k"]) is None, "computed by a refresh"
