"""The hint for a name that nothing has."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import tautochrone
from tautochrone.model.near_names import matching_tables, near_names_hint, table_spellings

TABLES = ["lake.shop.orders", "lake.shop.users", "lake.other.orders"]


def test_each_way_of_writing_a_name() -> None:
    for typed, meant in {
        "odrers": "other.orders or shop.orders",
        "orders": "other.orders or shop.orders",
        "USRES": "users",
        "shop.ordres": "shop.orders",
        "lake.shop.usres": "lake.shop.users",
    }.items():
        hint = near_names_hint(typed, TABLES, "there are", spellings=table_spellings)
        assert hint == f"did you mean {meant}?"


def test_a_table_is_found_by_each_spelling_in_any_case() -> None:
    for name in TABLES:
        for written in table_spellings(name):
            named = [table for table in sorted(TABLES) if written in table_spellings(table)]
            for typed in (written, written.upper(), written.title()):
                assert matching_tables(typed, TABLES) == named
    assert matching_tables("rders", TABLES) == matching_tables("lake.shop", TABLES) == []


@given(st.data())
def test_only_what_the_look_up_accepts_is_suggested(data: st.DataObject) -> None:
    """Names that no look-up has: each suggestion is a spelling of one name, and not what was typed."""
    part = st.sampled_from(["a", "B", "ab", "abc", "Abc", "orders"])
    known = data.draw(st.lists(st.tuples(part, part, part).map(".".join), min_size=1, max_size=4))
    typed = data.draw(st.lists(part, min_size=1, max_size=4).map(".".join))
    spellings = data.draw(st.sampled_from([None, table_spellings]))
    hint = near_names_hint(typed, known, "there are", spellings=spellings)
    if not hint.startswith("did you mean "):
        return
    for meant in hint.removeprefix("did you mean ").removesuffix("?").split(" or "):
        accepting = {name for name in known if meant in (spellings(name) if spellings else (name,))}
        assert len(accepting) == 1
        assert meant != typed


def test_many_names_are_not_all_listed() -> None:
    hint = near_names_hint("zzz", [f"lake.db.t{n:03}" for n in range(25)], "there are")
    assert hint.startswith("there are lake.db.t000, ")
    assert hint.endswith("lake.db.t019 and 5 more")


def test_every_unknown_name_has_a_hint() -> None:
    """The errors of commands whose class says that a name is not there."""
    classes = {
        "DATASET_NOT_FOUND",
        "SINK_NOT_FOUND",
        "JOB_NOT_FOUND",
        "TARGET_NOT_FOUND",
        "UNIT_TEST_NOT_FOUND",
    }
    root = Path(tautochrone.__file__).parent
    without = []
    for folder in ("cli", "runtime", "project"):
        for file in (root / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value in classes:
                    hint = next((each.value for each in node.keywords if each.arg == "hint"), None)
                    if hint is None or "near_names_hint" not in ast.unparse(hint):
                        without.append(f"{file.relative_to(root)}:{node.lineno}")
    assert without == []
