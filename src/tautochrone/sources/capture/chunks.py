"""Chunks of the first copy of a table as text: a range of its key as JSON.

`from` is inclusive and `to` exclusive; a missing bound is open. What a bound is, only the source knows.
`planned` is when the copy was planned, in nanoseconds: it orders copies of one table. `bytes` is about how
many the chunk has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tautochrone.model.source_position import BulkProgress

__all__ = ["Chunk", "chunk_bytes", "chunks_between", "chunks_for_tasks", "parse_chunk"]

_MAX_CHUNKS = 1_000
"""Of a table. Each commit of a copy lists those that are left."""
_MAX_CHUNKS_PER_TASK = 32
_MIN_BYTES = 2 * 1024 * 1024
"""A table is not divided further, so that all tasks have something to read."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """
    Attributes:
        bounds: `from` and `to`, as far as the range is bounded.
    """

    bounds: Mapping[str, Any]
    planned: int
    bytes: int


def chunk_bytes(table_bytes: int, usual_bytes: int, tasks: int) -> int:
    """How large the chunks of a table are that so many tasks read.

    >>> chunk_bytes(100_000_000, 16_000_000, 4), chunk_bytes(50_000_000_000, 16_000_000, 4)
    (16000000, 50000000)
    >>> chunk_bytes(40_000_000, 16_000_000, 4), chunk_bytes(1_000_000, 16_000_000, 4)
    (10000001, 2097152)
    """
    for_all_tasks = max(_MIN_BYTES, table_bytes // max(1, tasks) + 1)
    return max(min(usual_bytes, for_all_tasks), table_bytes // _MAX_CHUNKS)


def chunks_between(bounds: Sequence[Any], planned: int, table_bytes: int) -> tuple[str, ...]:
    """The chunks that cover all keys.

    >>> chunks_between(["5"], 1, 80)
    ('{"to": "5", "planned": 1, "bytes": 40}', '{"from": "5", "planned": 1, "bytes": 40}')
    """
    properties = {"planned": planned, "bytes": table_bytes // (len(bounds) + 1)}
    return tuple(
        json.dumps({name: key for name, key in (("from", low), ("to", high)) if key is not None} | properties)
        for low, high in pairwise([None, *bounds, None])
    )


def parse_chunk(text: str) -> Chunk:
    parts = json.loads(text)
    bounds = {name: parts[name] for name in ("from", "to") if name in parts}
    return Chunk(bounds, parts.get("planned", 0), parts.get("bytes", 0))


def chunks_for_tasks(bulk: BulkProgress, tasks: int, max_bytes: int) -> Sequence[tuple[str, str]]:
    """The relations and chunks that are copied together next: one for each task, and more if they are small.
    Each such round has a Spark job and a commit."""
    chosen: list[tuple[str, str]] = []
    total = 0
    for relation, chunk in bulk.next_chunks(tasks * _MAX_CHUNKS_PER_TASK):
        total += parse_chunk(chunk).bytes
        if len(chosen) >= tasks and total > max_bytes:
            break
        chosen.append((relation, chunk))
    return chosen
