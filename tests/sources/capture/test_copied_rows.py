"""Chunks of a table's first copy, and what their rows become in the log table."""

from __future__ import annotations

import pyarrow as pa

from tautochrone.model.source_position import BulkProgress
from tautochrone.sources.capture.copied_rows import (
    ChunkRows,
    chunks_between,
    chunks_for_tasks,
    completed_rows,
    log_batches,
    parse_chunk,
)
from tautochrone.sources.capture.typed_rows import TextFormat

TEXTS = {"id": pa.array(["1", "2"]), "word": pa.array(["a", None])}
ROWS = ChunkRows("public.t", TEXTS, pa.array(["5:9:", "5:9:"]), 80, 3, TextFormat("t"))


def test_chunks_cover_all_keys() -> None:
    first, middle, last = map(parse_chunk, chunks_between(["5", "9"], planned=7, table_bytes=90))
    assert [first.bounds, middle.bounds, last.bounds] == [
        {"to": "5"},
        {"from": "5", "to": "9"},
        {"from": "9"},
    ]
    assert (first.planned, first.bytes) == (7, 30)


def test_small_chunks_are_copied_together_and_each_task_gets_one() -> None:
    small, large = chunks_between(["5"], 1, 20), chunks_between(["3", "6", "9"], 1, 4_000)
    bulk = BulkProgress(pending={"a": small, "b": large})
    assert chunks_for_tasks(bulk, tasks=2, max_bytes=1_100) == [
        ("a", small[0]),
        ("a", small[1]),
        ("b", large[0]),
    ]
    assert len(chunks_for_tasks(bulk, tasks=4, max_bytes=1)) == 4


def test_rows_of_a_chunk_are_copies_with_the_values_of_their_row() -> None:
    (batch,) = log_batches([ROWS])
    assert [row["columns"] for row in batch.to_pylist()] == [
        [("id", "1"), ("word", "a")],
        [("id", "2"), ("word", None)],
    ]
    row = batch.to_pylist()[1]
    assert (row["point"], row["sequence"], row["operation"], row["snapshot"]) == (80, 3, "copy", "5:9:")
    assert row["transaction"] is None


def test_rows_of_the_log_table_pass_unchanged() -> None:
    completed = completed_rows(["public.t"], 90).to_batches()
    assert list(log_batches(completed)) == completed
