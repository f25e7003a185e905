"""The hint for a name that nothing has."""

from __future__ import annotations

import ast
from pathlib import Path

import tautochrone
from tautochrone.model.near_names import near_names_hint

TABLES = ["lake.shop.orders", "lake.shop.users", "lake.other.orders"]


def test_each_way_of_writing_a_name() -> None:
    for typed, meant in {
        "odrers": "orders",
        "ORDRES": "orders",
        "shop.ordres": "shop.orders",
        "lake.shop.usres": "lake.shop.users",
    }.items():
        assert near_names_hint(typed, TABLES, "there are") == f"did you mean {meant}?"


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
