"""No two tables get the same name in a sink, and every name is one that its system takes."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tautochrone.model.names import TableName
from tautochrone.sinks.common.mirrored import NameRules, mirror_name
from tautochrone.sinks.kafka.options import is_topic_name, topic_name

RULES = {
    "bytes": NameRules(longest=63, in_bytes=True),
    "characters": NameRules(longest=64, refused=r"[/.]|[^\x00-\uffff]", folds_case=True),
    "letters": NameRules(longest=64, refused=r"^[0-9]|[^A-Za-z0-9_]"),
}
PARTS = [
    *(
        "x",
        "y",
        "x_",
        "_x",
        "_",
        "x__y",
        "x___y",
        "y__x",
        "__",
        "X",
        "Y_",
        "x_y",
        "x.y",
        "x y",
        "1",
        "taut_x",
    ),
    *("taut_sinks", "TAUT_x", "tautx", "taut", "ü", "ü" * 40, "ü" * 41, "x" * 63, "x" * 64, "x" * 70),
    *("x" * 69 + "y", "x" * 30, "x" * 31, "x" * 32, "订单", "😀", "default"),
]


NAMESPACES = [("default",), *((part,) for part in PARTS), *product(("x", "y", "x_", "x__y"), repeat=2)]
TABLES = {TableName("lake", namespace, part) for namespace in NAMESPACES for part in PARTS}


@pytest.mark.parametrize("system", RULES)
def test_names_are_injective_and_fit(system: str) -> None:
    rules = RULES[system]
    names: dict[str, TableName] = {}
    for table in TABLES:
        name = mirror_name(table, rules)
        assert name == mirror_name(table, rules)
        other = names.setdefault(name.lower() if rules.folds_case else name, table)
        assert other == table
        assert len(name.encode() if rules.in_bytes else name) <= rules.longest
        assert not re.search(rules.refused, name)
        assert not name.lower().startswith("taut_")
    # A table that is called like the hashed name of another one gets another name.
    for name in list(names):
        table = TableName("lake", ("default",), name)
        assert names.get(mirror_name(table, rules), table) in (table, names[name])
        assert mirror_name(table, rules) != name or names[name].table == name.rpartition("__")[2]


def test_simple_names_are_plain() -> None:
    rules = RULES["bytes"]
    assert mirror_name(TableName("lake", ("default",), "orders"), rules) == "orders"
    assert mirror_name(TableName("lake", ("shop", "eu"), "order_lines"), rules) == "shop__eu__order_lines"


@pytest.mark.parametrize("template", ["{table}", "shop.{table}", "{table}_", "a" * 209 + "{table}"])
def test_names_of_topics_are_injective_and_fit(template: str) -> None:
    names: dict[str, TableName] = {}
    more = [TableName("lake", ("default",), part) for part in ("x" * 230, "x" * 249 + "y", "x" * 250, "..")]
    for table in sorted({*TABLES, *more}, key=str):
        name = topic_name(template, table)
        assert is_topic_name(name)
        assert names.setdefault(name, table) == table
    # A table that is called like the hashed name of another one gets another name.
    for name, table in list(names.items()):
        if template == "{table}" and name.endswith("_"):
            called = TableName("lake", ("default",), name)
            assert topic_name(template, called) != name or called == table
