from __future__ import annotations

from dataclasses import replace

import pytest

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice, MergeColumns, common_auto_cdc

FLOW = AutoCdc(keys=("ID",), sequence="n", scd_type=2)
COLUMNS = ["id", "name", "City", "__taut_sequence", "__taut_delete", "__taut_truncate"]


@pytest.mark.parametrize(
    ("tracked", "names"),
    [
        (None, ("name", "City")),
        (ColumnChoice(("city", "id")), ("City",)),
        (ColumnChoice(("city",), is_except=True), ("name",)),
        (ColumnChoice((), is_except=True), ("name", "City")),
    ],
)
def test_columns_are_named_as_the_source_spells_them(
    tracked: ColumnChoice | None, names: tuple[str, ...]
) -> None:
    columns = replace(FLOW, tracked=tracked).merge_columns(COLUMNS, "a.sql:1")
    assert columns == MergeColumns(keys=("id",), values=("name", "City"), tracked=names)


def test_history_may_leave_out_columns_that_the_table_leaves_out() -> None:
    flow = replace(FLOW, columns=ColumnChoice(("Synced",), is_except=True))
    tracked = ColumnChoice(("city", "synced"), is_except=True)
    assert replace(flow, tracked=tracked).merge_columns(COLUMNS, "a.sql:1").tracked == ("name",)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (None, ("name", "City")),
        (ColumnChoice(("CITY",)), ("City",)),
        (ColumnChoice(("city", "id", "synced"), is_except=True), ("name",)),
    ],
)
def test_null_is_ignored_in_the_chosen_columns(choice: ColumnChoice | None, names: tuple[str, ...]) -> None:
    columns = ColumnChoice(("synced",), is_except=True)
    flow = replace(FLOW, columns=columns, is_ignoring_nulls=True, null_ignoring=choice)
    assert flow.merge_columns(COLUMNS, "a.sql:1").null_ignoring == names
    assert flow.text != replace(flow, null_ignoring=ColumnChoice(("name",))).text


def test_unknown_columns_are_refused() -> None:
    unknown = ColumnChoice(("town",))
    for flow in (
        replace(FLOW, keys=("key",)),
        replace(FLOW, tracked=unknown),
        replace(FLOW, is_ignoring_nulls=True, null_ignoring=unknown),
    ):
        with pytest.raises(DefinitionError) as refused:
            flow.merge_columns(COLUMNS, "a.sql:1")
        assert refused.value.error_class == "AUTO_CDC_COLUMN_NOT_FOUND"


def test_flows_into_one_table_merge_alike() -> None:
    assert common_auto_cdc([("f", None, "a.sql:1")]) is None
    same = replace(FLOW, keys=("id",), sequence="m", delete="gone")
    assert common_auto_cdc([("f", FLOW, "a.sql:1"), ("g", same, "a.sql:2")]) == FLOW
    chosen = replace(FLOW, is_ignoring_nulls=True, null_ignoring=ColumnChoice(("name",)))
    for other in (None, replace(FLOW, scd_type=1), replace(FLOW, is_ignoring_nulls=True), chosen):
        with pytest.raises(DefinitionError) as refused:
            common_auto_cdc([("f", FLOW, "a.sql:1"), ("g", other, "a.sql:2")])
        assert (refused.value.error_class, refused.value.location) == ("AUTO_CDC_FLOWS_DIFFER", "a.sql:2")
