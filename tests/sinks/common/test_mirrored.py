"""Mirrored tables: no two get one name, every name fits, and a value that a database refuses is found."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.common.mirrored import (
    NameRules,
    columns_changed,
    key_changed,
    mirror_name,
    refuse_columns_of_other_case,
    refuse_reserved_columns,
    row_batches,
    row_hash,
    send_rows,
)
from tautochrone.sinks.json_rows import JsonRows
from tautochrone.testing.sink_conformance import ORDERS
from tautochrone.testing.sqlite_sink import ListRows

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


SCHEMA = StructType().add("id", IntegerType()).add("word", StringType())
WIDER = StructType().add("id", LongType()).add("word", StringType())


def schema_of(*names: str) -> StructType:
    schema = StructType()
    for name in names:
        schema.add(name, StringType())
    return schema


@pytest.mark.parametrize(
    ("check", "error_class"),
    [
        (
            lambda: refuse_reserved_columns("mirror", ORDERS, schema_of("_taut_x")),
            "SINK_COLUMN_NAME_RESERVED",
        ),
        (
            lambda: refuse_columns_of_other_case("mirror", ORDERS, schema_of("a", "A")),
            "SINK_SCHEMA_UNSUPPORTED",
        ),
    ],
)
def test_tables_that_cannot_be_mirrored_are_refused(check: Callable[[], None], error_class: str) -> None:
    with pytest.raises(SinkError) as refused:
        check()
    assert refused.value.error_class == error_class


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (schema_of("a"), schema_of("a", "b"), None),
        (schema_of("a", "b"), schema_of("b"), "a"),
        (SCHEMA, WIDER, "id"),
    ],
)
def test_columns_that_went_or_have_another_type_are_named(
    before: StructType, after: StructType, changed: str | None
) -> None:
    reason = columns_changed(before, after)
    assert (None if reason is None else reason.params["columns"]) == changed


def test_keys_are_told_apart_by_their_order() -> None:
    assert key_changed(["a", "b"], ("a", "b")) is None
    assert str(key_changed([], ["a"])) == "its key was none, and is a now"
    assert key_changed(["a", "b"], ["b", "a"]) is not None


@dataclass(frozen=True)
class Mirrored:
    rows: JsonRows

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        return [*row.values(), row_hash(row)]


MIRRORED = Mirrored(JsonRows("mirror", ORDERS, schema_of("id", "word"), ["id"]))
ROWS = ListRows(["id", "word"], [(f"k{number}", f"w{number}") for number in range(7)])


def test_rows_are_sent_in_batches_with_their_hashes() -> None:
    batches = list(row_batches("mirror", ORDERS, MIRRORED, ROWS, 3, None))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert all(values[-1] == row_hash(row) for batch in batches for row, values in batch)


def test_a_refused_value_is_found_with_its_column_and_row() -> None:
    sent = 0

    def send(rows: list[list[Any]]) -> None:
        nonlocal sent
        sent += 1
        if any("w5" in row for row in rows):
            raise SinkError("SINK_DATABASE_REFUSED", "the value does not fit")

    (batch,) = row_batches("mirror", ORDERS, MIRRORED, ROWS, 100, None)
    with pytest.raises(SinkError, match="SINK_VALUE_UNSUPPORTED") as refused:
        send_rows("mirror", ORDERS, MIRRORED, batch, send)
    assert refused.value.parameters["column"] == "word"
    assert refused.value.parameters["row"] == '{"id": "k5"}'
    assert sent < len(batch)


def test_an_error_that_may_pass_is_not_searched_for() -> None:
    def send(_rows: list[list[Any]]) -> None:
        raise SinkError("SINK_DATABASE_REFUSED", "the disk is full", retryable=True)

    (batch,) = row_batches("mirror", ORDERS, MIRRORED, ROWS, 100, None)
    with pytest.raises(SinkError, match="disk is full"):
        send_rows("mirror", ORDERS, MIRRORED, batch, send)
