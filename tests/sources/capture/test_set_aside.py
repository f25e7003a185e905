"""A table that cannot be captured is set aside, so that the others go on; one alone is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tautochrone.errors import DefinitionError, DefinitionsOutdatedError
from tautochrone.model.reason import Reason
from tautochrone.sources.capture.set_aside import (
    NewTables,
    absent_tables,
    outdated_if_refused,
    refused_names,
    require_capturable,
)


@dataclass(frozen=True)
class Table:
    name: str


GOOD, BAD = Table("public.good"), Table("public.bad")


def check(table: Table) -> None:
    if table is BAD:
        raise DefinitionError("CAPTURED_TABLE_WITHOUT_KEY", "it has no key", hint="give it one")


def test_others_go_on_and_the_reason_is_kept() -> None:
    aside: dict[str, Reason] = {}
    absent = absent_tables("shop", ["public.*", "sales.orders"], [GOOD.name, BAD.name], "USAGE")
    assert require_capturable([GOOD, BAD], check, absent, aside) == (GOOD,)
    assert {name: reason.params["error"] for name, reason in aside.items()} == {
        "sales.orders": "CAPTURE_WITHOUT_TABLES",
        BAD.name: "CAPTURED_TABLE_WITHOUT_KEY",
    }
    # One that is absent may come back, and is a new one then.
    assert refused_names(aside) == {BAD.name}
    new_tables = NewTables([GOOD.name], ["public.*", "sales.orders"], [], aside)
    assert new_tables.take([GOOD.name, BAD.name, "sales.orders"]) == "sales.orders"


@pytest.mark.parametrize(("tables", "aside"), [([GOOD, BAD], None), ([BAD], {})])
def test_a_table_is_refused_where_none_can_be_set_aside(
    tables: list[Table], aside: dict[str, Reason] | None
) -> None:
    with pytest.raises(DefinitionError, match="CAPTURED_TABLE_WITHOUT_KEY"):
        require_capturable(tables, check, {}, aside)


def test_a_refusal_within_a_run_asks_for_definitions_anew() -> None:
    with pytest.raises(DefinitionsOutdatedError) as outdated, outdated_if_refused():
        check(BAD)
    assert outdated.value.error_class == "CAPTURED_TABLE_WITHOUT_KEY"
    assert str(outdated.value.hint).startswith("give it one. Until then it is set aside")
