"""Copies on several servers are sinks of their own: docs/clickhouse.md, Replicas."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sinks.clickhouse.benches import BrokenConnectionError, EmbeddedBench

from tautochrone.model.names import Fence
from tautochrone.testing.sink_conformance import LINES, ORDERS, Row, SinkConformance, new_intent


def test_copies_agree_at_every_checkpoint_that_both_have(tmp_path: Path) -> None:
    benches = [EmbeddedBench(tmp_path, database=f"copy_{letter}", chunk_rows="1000") for letter in "ab"]
    sinks = [bench.open() for bench in benches]
    for sink, bench in zip(sinks, benches, strict=True):
        sink.fence(Fence(1))
        for table in (ORDERS, LINES):
            sink.ensure(table, bench.schema(), (), Fence(1))

    def deliver(copy: int, number: int, *added: Row, removed: tuple[Row, ...] = ()) -> None:
        SinkConformance().deliver(benches[copy], sinks[copy], new_intent(number), *added, removed=removed)

    def at(copy: int, number: int) -> list[tuple[int, str]]:
        database = benches[copy].options.database
        query = f"SELECT id, word FROM {database}.shop__orders_at(checkpoint = {number}) ORDER BY id"
        return [(int(key), word) for key, word in benches[copy].reader.rows(query)]

    for copy in (0, 1):
        deliver(copy, 1, (1, "one"))
    deliver(0, 2, (2, "two"))
    error = benches[1].break_during("write")  # type: ignore[arg-type]
    assert error is BrokenConnectionError
    with pytest.raises(BrokenConnectionError):
        deliver(1, 2, (2, "two"))
    # The copy that is behind shows a whole checkpoint, and so do both at that number.
    assert at(0, 1) == at(1, 1) == [(1, "one")]
    assert at(0, 2) == [(1, "one"), (2, "two")]
    deliver(0, 3, (3, "three"), removed=((1, "one"),))
    # After the outage it gets one net change.
    sinks[1].fence(Fence(2))
    sinks[1].recover([], Fence(2))
    added: tuple[Row, ...] = ((2, "two"), (3, "three"))
    SinkConformance().deliver(benches[1], sinks[1], new_intent(3, 2), *added, removed=((1, "one"),))
    assert at(0, 3) == at(1, 3) == [*added]
    for bench in benches:
        bench.close()
