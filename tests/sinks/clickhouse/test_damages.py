"""Whatever somebody does to a table of the sink, the next delivery shows what was delivered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as spark
from tests.sinks.clickhouse.benches import EmbeddedBench

from tautochrone.model.lake import RowChange
from tautochrone.model.names import Fence
from tautochrone.model.sink import Sink
from tautochrone.testing.sink_conformance import LAKE, ORDERS, new_intent

_databases = iter(range(1_000_000))
_ROWS = "taut_rows_shop__orders"
_LEDGER = (
    "taut_fences",
    "taut_transactions",
    "taut_published",
    "taut_replaced",
    "taut_layout",
    "taut_folded",
)
_DAMAGES = {
    **{f"drop {name}": f"DROP TABLE {{db}}.{name} SYNC" for name in (*_LEDGER, _ROWS)},
    **{f"empty {name}": f"TRUNCATE TABLE {{db}}.{name}" for name in (*_LEDGER, _ROWS)},
    **{
        f"drop view {name}": f"DROP VIEW {{db}}.{name}"
        for name in ("shop__orders", "shop__orders_at", "taut_read_shop__orders")
    },
    "rename": f"RENAME TABLE {{db}}.{_ROWS} TO {{db}}.other",
    "exchange": f"CREATE TABLE {{db}}.other AS {{db}}.{_ROWS};"
    f"EXCHANGE TABLES {{db}}.other AND {{db}}.{_ROWS}",
    "delete": f"DELETE FROM {{db}}.{_ROWS} WHERE id = 1",
    "update": f"ALTER TABLE {{db}}.{_ROWS} UPDATE word = 'x' WHERE id = 1 SETTINGS mutations_sync = 2",
    "detach": f"ALTER TABLE {{db}}.{_ROWS} DETACH PARTITION tuple()",
    "insert": f"INSERT INTO {{db}}.{_ROWS} SELECT * FROM {{db}}.{_ROWS} LIMIT 1",
    "older pointer": "DELETE FROM {db}.taut_published WHERE publication = 2",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clickhouse")
    keeper = EmbeddedBench(folder)
    yield folder
    keeper.close()


def _deliver(
    bench: EmbeddedBench, sink: Sink, number: int, rows: list[tuple[int, str]], schema: Any = None
) -> None:
    """All of `rows`, of which the last one is new; like the delivery, whole where the table differs."""
    shown = sink.published()
    is_whole = shown is None or bool(sink.changed_tables([ORDERS], None))
    is_whole |= sink.ensure(ORDERS, schema or bench.schema(), (), Fence(1)) is not None
    new = [row for row in rows if shown is None or row[0] > shown.checkpoint]
    intent = replace(
        new_intent(number),
        versions={ORDERS: f"v{number}"},
        base=None if shown is None else shown.transaction,
        replaced=(ORDERS,) if is_whole else (),
    )
    intent = replace(intent, transaction=replace(intent.transaction, attempt=number * 10 + is_whole))
    sink.begin(intent)
    if is_whole:
        chunks = sink.replace(intent.transaction, ORDERS, bench.frame(rows))
    else:
        chunks = sink.write(intent.transaction, ORDERS, RowChange(added=bench.frame(new), rows=len(new)))
    sink.prepare(intent.transaction, chunks)
    sink.commit(intent.transaction, Fence(1))


_LIVING = {
    *("drop taut_fences", "drop taut_transactions", "drop taut_replaced", "drop taut_folded"),
    *("empty taut_published", "empty taut_layout", f"drop {_ROWS}", f"empty {_ROWS}"),
    *("drop view shop__orders_at", "drop view taut_read_shop__orders"),
    *("rename", "update", "detach", "insert", "older pointer"),
}
_REOPENED = {
    *("drop taut_published", "empty taut_transactions", "drop view shop__orders"),
    *("exchange", "delete", "older pointer"),
}
"""Each table of the ledger is dropped or emptied; every other damage is met by at least one of the two."""


_REBUILT = f"drop {_ROWS}"
"""The same of a table of rows that took the place of another one."""


def _cases() -> Iterator[Any]:
    for damage, statement in _DAMAGES.items():
        for moment, short in (("living", _LIVING), ("reopened", _REOPENED)):
            marks = () if damage in short else pytest.mark.slow
            yield pytest.param(damage, moment == "reopened", False, id=f"{damage}-{moment}", marks=marks)
        if "_shop__orders" in statement:
            for moment in ("living", "reopened"):
                marks = () if (damage, moment) == (_REBUILT, "living") else pytest.mark.slow
                case = f"{damage}-{moment}-after a rebuild"
                yield pytest.param(damage, moment == "reopened", True, id=case, marks=marks)


@pytest.mark.parametrize(("damage", "is_reopened", "is_rebuilt"), list(_cases()))
def test_the_next_delivery_mends_a_damage(
    folder: Path, damage: str, is_reopened: bool, is_rebuilt: bool
) -> None:
    bench = EmbeddedBench(folder, database=f"damage_{next(_databases)}")
    try:
        sink = bench.open()
        sink.claim(LAKE)
        sink.fence(Fence(1))
        rows = [(1, "one"), (2, "two"), (3, "three")]
        older = spark.StructType().add("id", "integer").add("word", "string") if is_rebuilt else None
        for number, schema in ((1, older), (2, None)):
            _deliver(bench, sink, number, rows[:number], schema)
        text = _DAMAGES[damage]
        if is_rebuilt:
            text = re.sub("(taut_(rows|read))_shop", r"\g<1>1_shop", text)
        for statement in text.split(";"):
            bench.reader.run(statement.strip().format(db=f"`{bench.options.database}`"))
        if is_reopened:
            sink = bench.open()
            sink.claim(LAKE)
            sink.fence(Fence(1))
        _deliver(bench, sink, 3, rows)
        assert Counter(bench.read(ORDERS)) == Counter(rows)
        assert not sink.changed_tables([ORDERS], None)
    finally:
        bench.close()
