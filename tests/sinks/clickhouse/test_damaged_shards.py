"""Whatever happens to one server of several, the next delivery mends it, or says what mends it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sinks.clickhouse.benches import EmbeddedBench, ShardedBench
from tests.sinks.clickhouse.test_damages import _DAMAGES, _deliver

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence
from tautochrone.model.sink import Sink
from tautochrone.sinks.clickhouse.statements import name_sql
from tautochrone.testing.sink_conformance import LAKE, ORDERS

_databases = iter(range(1_000_000))
_ALL = {
    **_DAMAGES,
    "drop the database": "DROP DATABASE {db} SYNC",
    "drop the pointer": "TRUNCATE TABLE {db}.taut_published",
}
_CASES = [(damage, number, reopened) for damage in _ALL for number in (0, 1) for reopened in (False, True)]
_SHORT = {
    ("drop the database", 1, False),
    ("drop the pointer", 1, True),
    ("drop taut_rows_shop__orders", 0, False),
    ("drop taut_layout", 1, False),
    ("older pointer", 1, False),
}
ROWS = [(number, f"word {number}") for number in range(1, 13)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("clickhouse")
    keeper = EmbeddedBench(folder)
    yield folder
    keeper.close()


def opened(bench: ShardedBench) -> Sink:
    sink = bench.open()
    sink.claim(LAKE)
    sink.fence(Fence(1))
    sink.recover([], Fence(1))
    return sink


def attempt(bench: ShardedBench, sink: Sink, number: int, *, is_reopened: bool) -> SinkError | None:
    """Deliver; the error of a refusal."""
    try:
        _deliver(bench, opened(bench) if is_reopened else sink, number, ROWS[:3])
    except SinkError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("damage", "number", "is_reopened"),
    [pytest.param(*case, marks=() if case in _SHORT else pytest.mark.slow) for case in _CASES],
)
def test_damage_to_one_server_is_mended_or_named(
    folder: Path, damage: str, number: int, is_reopened: bool
) -> None:
    bench = ShardedBench(folder, database=f"damage_{next(_databases)}", chunk_rows="100")
    try:
        sink = opened(bench)
        for delivery in (1, 2):
            _deliver(bench, sink, delivery, ROWS[:delivery])
        for statement in _ALL[damage].split(";"):
            bench.reader.run(statement.strip().format(db=name_sql(bench.servers[number].database)))
        refusal = attempt(bench, sink, 3, is_reopened=is_reopened)
        if refusal is not None and refusal.retryable:
            # As after every error that another try may end.
            refusal = attempt(bench, sink, 4, is_reopened=True)
        if refusal is not None:
            assert refusal.error_class in ("SINK_SERVERS_DIFFER", "SINK_SERVERS_CHANGED"), refusal
            assert not refusal.retryable
            for options in bench.servers:
                bench.reader.run(f"DROP DATABASE IF EXISTS {name_sql(options.database)} SYNC")
            assert attempt(bench, sink, 5, is_reopened=True) is None
        shown: Counter[Any] = Counter(bench.read(ORDERS))
        assert shown == Counter(ROWS[:3])
        assert not opened(bench).changed_tables([ORDERS], None)
    finally:
        bench.close()
