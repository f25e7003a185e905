"""Names that ClickHouse reserves, splits or cannot hold are delivered right, or refused before the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.benches import EmbeddedBench

from tautochrone.errors import SinkError
from tautochrone.model.lake import RowChange
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.sinks.clickhouse.statements import name_sql
from tautochrone.sinks.clickhouse.tables import plain_name
from tautochrone.testing.sink_conformance import LAKE, new_intent
from tautochrone.testing.sqlite_sink import ListRows

TABLE = TableName("lake", ("shop",), "orders")
_databases = itertools.count()
_TEXT, _LIST = spark.StringType(), spark.ArrayType(spark.LongType())
_PAIR = spark.StructType([spark.StructField("x", spark.LongType()), spark.StructField("size0", _LIST)])
_VALUES: dict[Any, tuple[Any, Any]] = {
    _TEXT: ("a'\\`\n", None),
    _LIST: ([1, None], []),
    _PAIR: ({"x": 1, "size0": [2]}, None),
}
_ODD = (
    "a`b",
    "a\\b",
    "a\nb",
    "a'b",
    'a"b',
    "a\tb",
    " ",
    "größe",
    "订单",
    "{x:Int8}",
    "a;b",
    "--",
    "1",
    "*",
    "`a`",
)
_OWN = ("checkpoint", "changed", "publication", "fence", "name", "e0", "e1", "e2", "orders", "taut_rows_x")
_HIDDEN = ("_ck", "_sign", "_nulls", "_chunk", "_taut_x", "_taut_hash", "_taut_copies")
_LONG = ("x" * 100, "x" * 215, "x" * 216, "x" * 300, "ö" * 100, "ö" * 60)
_SUBCOLUMNS = ("a.null", "a.size0", "a.x", "a.keys", "a.b.c", ".a", "a.", ".")
_NAMES = ["", "a\0b", *_ODD, *_OWN, *_HIDDEN, *_LONG, *_SUBCOLUMNS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("names")
    keeper = EmbeddedBench(folder)
    yield folder
    keeper.close()


def virtual_names(bench: EmbeddedBench) -> list[str]:
    """What the server itself calls columns of a table that has other ones."""
    bench.reader.run("CREATE DATABASE IF NOT EXISTS virtual ENGINE = Atomic")
    bench.reader.run("CREATE TABLE virtual.t (id Int8) ENGINE = MergeTree ORDER BY id")
    described = bench.reader.rows("DESCRIBE TABLE virtual.t SETTINGS describe_include_virtual_columns = 1")
    names = [row[0] for row in described if row[0] != "id"]
    assert "_part" in names
    return names


def delivered(folder: Path, fields: Sequence[tuple[str, Any]], table: TableName = TABLE) -> str:
    """Deliver two rows, one of them in a second delivery; the class of the refusal, or an empty text."""
    bench = EmbeddedBench(folder, database=f"names_{next(_databases)}")
    names = [name for name, _ in fields]
    schema = spark.StructType([spark.StructField(name, kind) for name, kind in fields])
    rows = [tuple(_VALUES[kind][index] for _, kind in fields) for index in (0, 1)]
    sink = bench.open()
    try:
        sink.claim(LAKE)
        sink.fence(Fence(1))
        try:
            sink.ensure(table, schema, (), Fence(1))
        except SinkError as refused:
            return refused.error_class
        for number, row in enumerate(rows, 1):
            shown = sink.published()
            intent = new_intent(number, base=None if shown is None else shown.transaction)
            intent = replace(intent, versions={table: Version(str(number))})
            sink.begin(intent)
            change = RowChange(added=ListRows(names, [row]), rows=1)
            sink.prepare(intent.transaction, sink.write(intent.transaction, table, change))
            sink.commit(intent.transaction, Fence(1))
        expected = sink.digest(table, ListRows(names, rows))
        assert sink.audit(table, CheckpointNumber(2)) == expected
        assert not sink.changed_tables([table], None)
        view = name_sql(plain_name(table, bench.options.database))
        shown_columns = bench.reader.rows(
            f"SELECT name FROM system.columns WHERE database = '{bench.options.database}' "
            f"AND table = {plain_name(table, bench.options.database)!r} ORDER BY position"
        )
        assert shown_columns == [[name] for name in names]
        for name, kind in fields:
            if kind is _TEXT:
                values = bench.reader.rows(f"SELECT {name_sql(name)} FROM `{bench.options.database}`.{view}")
                assert sorted(map(str, values)) == sorted(str([value]) for value in _VALUES[kind])
        return ""
    finally:
        bench.close()


def defined(bench: EmbeddedBench, names: Sequence[str]) -> Iterator[str]:
    """For each name the class of the refusal of a table that has a column of it, or an empty text."""
    sink = bench.open()
    sink.fence(Fence(1))
    for number, name in enumerate(names):
        schema = spark.StructType([spark.StructField("id", _TEXT), spark.StructField(name, _TEXT)])
        try:
            sink.ensure(TableName("lake", ("shop",), f"t{number}"), schema, (), Fence(1))
        except SinkError as refused:
            yield refused.error_class
        else:
            yield ""


def is_right_or_refused(outcome: str) -> bool:
    return outcome in ("", "SINK_SCHEMA_UNSUPPORTED", "SINK_COLUMN_NAME_RESERVED")


def test_names_of_columns_are_delivered_or_refused_first(folder: Path) -> None:
    bench = EmbeddedBench(folder, database="virtual")
    names = [*_NAMES, *virtual_names(bench)]
    outcomes = dict(zip(names, defined(bench, names), strict=True))
    wrong = {name: outcome for name, outcome in outcomes.items() if not is_right_or_refused(outcome)}
    assert not wrong
    assert all(not outcomes[name] for name in (*_ODD, *_OWN))
    taken = [(name, _TEXT) for name in names if not outcomes[name]]
    assert delivered(folder, [("id", _TEXT), *taken, ("l", _LIST)]) == ""
    assert all(outcomes[name] for name in ("", "_ck", "_row_exists"))
    bench.close()


@pytest.mark.parametrize(
    "fields",
    [
        [("n.x", _LIST), ("n.y", _LIST)],
        pytest.param([("n.x", _LIST), ("n.y", _TEXT)], marks=pytest.mark.slow),
        pytest.param([("n.x", _TEXT), ("n.y", _TEXT)], marks=pytest.mark.slow),
        pytest.param([("n.x", _LIST)], marks=pytest.mark.slow),
        [("n", _PAIR), ("n.x", _TEXT)],
        [("n", _TEXT), ("n.null", _TEXT)],
        [("n", _LIST), ("n.size0", _TEXT)],
        [("word", _TEXT), ("Word", _TEXT), ("WORD", _LIST)],
        pytest.param([("n", _PAIR), ("N", _PAIR)], marks=pytest.mark.slow),
    ],
    ids=lambda fields: " ".join(name for name, _ in fields),
)
def test_columns_that_are_one_structure_or_differ_in_case(
    folder: Path, fields: Sequence[tuple[str, Any]]
) -> None:
    assert is_right_or_refused(delivered(folder, [("id", _TEXT), *fields]))


def test_names_of_tables_are_delivered(folder: Path) -> None:
    tables = [
        "a`b",
        "größe" * 20,
        "x" * 300,
        "y" * 150,
        "orders_at",
        "taut_published",
        "a__b",
        "_x",
        "1",
        " ",
    ]
    for name in tables:
        assert delivered(folder, [("id", _TEXT)], TableName("lake", ("shop",), name)) == ""


def test_a_name_that_looks_like_one_of_the_sink_is_not_dropped(folder: Path) -> None:
    table = TableName("lake", ("a", "deadbeef"), "1")
    bench = EmbeddedBench(folder, database="looks")
    sink = bench.open()
    sink.fence(Fence(1))
    sink.ensure(table, bench.schema(), (), Fence(1))
    sink.fence(Fence(2))
    sink.recover([], Fence(2))
    assert bench.read(table) == []
    bench.close()


def test_no_two_tables_have_one_name() -> None:
    parts = ["a", "b", "a__b", "_a", "a_", "at", "a_at", "b_at", "x" * 200, "ö" * 99]
    tables = [
        TableName("lake", space, name) for name in parts for space in (("default",), *zip(parts), ("a", "b"))
    ]
    names = [plain_name(table, "lake") for table in tables]
    names += [f"{name}_at" for name in names]
    assert len(set(names)) == len(names)
