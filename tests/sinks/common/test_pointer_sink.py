"""What the pointer records of a table, and when a table still holds that."""

from __future__ import annotations

import pytest

from tautochrone.model.reason import ReasonCode
from tautochrone.sinks.common.pointer_sink import Content, Identities, Pointer, TableRecord, change_of
from tautochrone.testing.sink_conformance import ORDERS, new_intent

RECORD = TableRecord("table 1", Content(3, 42), ("id", "word"))


def test_the_text_of_a_pointer_is_read_back() -> None:
    pointer = Pointer(new_intent(7, fence=2), {ORDERS: RECORD})
    assert Pointer.parse(pointer.text()) == pointer
    assert Pointer.parse(None).published is None


@pytest.mark.parametrize(
    ("record", "identity", "content", "code"),
    [
        (RECORD, None, RECORD.content, ReasonCode.SINK_TABLE_MISSING),
        (None, "table 1", RECORD.content, ReasonCode.SINK_TABLE_UNRECORDED),
        (RECORD, "table 1", None, ReasonCode.SINK_TABLE_ALTERED),
        (RECORD, "table 1", Content(3, 41), ReasonCode.SINK_ROWS_DIFFER),
        (RECORD, "table 2", Content(2, 42), ReasonCode.SINK_ROWS_DIFFER),
        (RECORD, "table 2", RECORD.content, None),
    ],
)
def test_changes_of_a_table_are_told(
    record: TableRecord | None, identity: str | None, content: Content | None, code: ReasonCode | None
) -> None:
    reason = change_of(record, identity, None, lambda: False, lambda: content)
    assert (None if reason is None else reason.code) is code


def test_rows_of_a_large_table_are_not_read_unless_it_differs() -> None:
    def unread() -> Content:
        raise AssertionError("the rows were read")

    assert change_of(RECORD, "table 1", 2, lambda: False, unread) is None
    assert change_of(RECORD, "table 1", 2, lambda: True, Content) is not None
    assert change_of(RECORD, "table 2", 2, lambda: False, Content) is not None


def test_an_altered_table_stays_the_recorded_one_only_if_it_was() -> None:
    identities = Identities()
    identities.record_altered(ORDERS, RECORD, "table 2", "table 3")
    assert not identities.is_same(ORDERS, RECORD, "table 3")
    identities.record_altered(ORDERS, RECORD, "table 1", "table 3")
    assert identities.is_same(ORDERS, RECORD, "table 3")
    assert identities.is_same(ORDERS, RECORD, "table 1")
    assert not identities.is_same(ORDERS, RECORD, None)
