"""From changed rows to upserts and deletes of a Primary Key table, each key at most once.

A table with a key has one row of each. In a table without a key, the copies of a row are numbered from 0, and
hash and number are its key: a copy that comes gets the next number, one that goes has the highest.

StarRocks cannot take a row back from an open transaction, and aborts one that is open for too long. So rows
are computed before the transaction begins, into a file of this process, and can be sent again after it broke.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from tautochrone.errors import SinkContentError, SinkError
from tautochrone.model.sink import Digest
from tautochrone.sinks.common.mirrored import HASH, KEY, quoted
from tautochrone.sinks.json_rows import to_text
from tautochrone.sinks.starrocks.database import SqlDatabase
from tautochrone.sinks.starrocks.tables import OPERATION, MirroredTable, SpooledRow

__all__ = ["Spool", "batch_digest", "load_bodies", "operations"]

_MEMORY_BYTES = 8 << 20


def batch_digest(rows: Iterable[SpooledRow]) -> Digest:
    """The digest of rows in any order."""
    count = total = 0
    for row in rows:
        count += 1
        total += row.sign * int(row.hash[:8], 16)
    return Digest(count, str(total))


class Spool:
    """Rows in numbered chunks. Small ones stay in memory.

    Attributes:
        is_replacement: the rows are all rows of the table.
    """

    def __init__(self, *, is_replacement: bool) -> None:
        self.is_replacement = is_replacement
        self._file = tempfile.SpooledTemporaryFile(max_size=_MEMORY_BYTES)  # noqa: SIM115

    def append(self, rows: Iterable[SpooledRow]) -> None:
        """Add a chunk."""
        listed = [[row.sign, row.key, row.hash, row.columns] for row in rows]
        self._file.write(to_text(listed).encode() + b"\n")

    def chunks(self) -> Iterator[list[SpooledRow]]:
        """What was added, chunk by chunk."""
        self._file.seek(0)
        for line in self._file:
            yield [SpooledRow(*values) for values in json.loads(line)]

    def rows(self) -> Iterator[SpooledRow]:
        for chunk in self.chunks():
            yield from chunk

    def close(self) -> None:
        self._file.close()


_UPSERT, _DELETE = 0, 1
_LITERALS = 1000
"""So many values has one IN."""
_SCANNED_FROM = 20_000
"""For more changed keys the table is read as a whole."""
_BODY_BYTES = 48 << 20
"""A load is held in memory by a backend, which takes 100 MB by default."""


def operations(database: SqlDatabase, mirrored: MirroredTable, spool: Spool) -> Iterator[dict[str, Any]]:
    """The rows to load, after the present ones were read.

    Raises:
        SinkContentError: `SINK_ROW_MISSING`, a row that goes is not there, or has other content.
        SinkError: `SINK_KEY_NOT_UNIQUE`.
    """
    if spool.is_replacement:
        present = {key for (key,) in database.stream(f"SELECT {quoted(KEY)} FROM {mirrored.name}")}
        return _replacement(mirrored, spool, present)
    if mirrored.is_keyed:
        return _keyed_delta(database, mirrored, spool)
    return _copies_delta(database, mirrored, spool)


def load_bodies(rows: Iterator[dict[str, Any]], chunk_rows: int) -> Iterator[bytes]:
    """The rows as arrays of JSON objects, each small enough for one load."""
    texts: list[bytes] = []
    size = 0
    for row in rows:
        text = to_text(row).encode()
        if texts and (len(texts) == chunk_rows or size + len(text) > _BODY_BYTES):
            yield b"[" + b",".join(texts) + b"]"
            texts, size = [], 0
        texts.append(text)
        size += len(text) + 1
    if texts:
        yield b"[" + b",".join(texts) + b"]"


def _upsert(key: str, row: SpooledRow) -> dict[str, Any]:
    return {KEY: key, **row.columns, HASH: row.hash, OPERATION: _UPSERT}


def _delete(key: str) -> dict[str, Any]:
    return {KEY: key, OPERATION: _DELETE}


def _copy(row_hash: str, number: int) -> str:
    return f"{row_hash}_{number}"


def _replacement(mirrored: MirroredTable, spool: Spool, present: set[str]) -> Iterator[dict[str, Any]]:
    copies: Counter[str] = Counter()
    for row in spool.rows():
        number = copies[row.key]
        copies[row.key] += 1
        if mirrored.is_keyed and number:
            raise _not_unique_error(mirrored, 1)
        key = row.key if mirrored.is_keyed else _copy(row.key, number)
        present.discard(key)
        yield _upsert(key, row)
    for key in present:
        yield _delete(key)


def _keyed_delta(database: SqlDatabase, mirrored: MirroredTable, spool: Spool) -> Iterator[dict[str, Any]]:
    removed: dict[str, str] = {}
    added: set[str] = set()
    equal = 0
    for row in spool.rows():
        if row.sign < 0:
            removed[row.key] = row.hash
        else:
            equal += row.key in added
            added.add(row.key)
    query = f"SELECT {quoted(KEY)}, {quoted(HASH)} FROM {mirrored.name}"
    present = _matching(database, query, KEY, "", added | removed.keys())
    missing = sum(present.get(key) != hashed for key, hashed in removed.items())
    if missing:
        raise _row_missing_error(mirrored, missing, len(removed))
    taken = sum(key in present and key not in removed for key in added)
    if equal or taken:
        raise _not_unique_error(mirrored, equal + taken)
    return _keyed_operations(spool, added)


def _keyed_operations(spool: Spool, added: set[str]) -> Iterator[dict[str, Any]]:
    for row in spool.rows():
        if row.sign > 0:
            yield _upsert(row.key, row)
        elif row.key not in added:
            yield _delete(row.key)


def _copies_delta(database: SqlDatabase, mirrored: MirroredTable, spool: Spool) -> Iterator[dict[str, Any]]:
    removed: Counter[str] = Counter()
    changed: set[str] = set()
    for row in spool.rows():
        changed.add(row.hash)
        if row.sign < 0:
            removed[row.hash] += 1
    query = f"SELECT {quoted(HASH)}, COUNT(*) FROM {mirrored.name}"
    present = _matching(database, query, HASH, f" GROUP BY {quoted(HASH)}", changed)
    missing = sum(max(0, copies - int(present.get(hashed, 0))) for hashed, copies in removed.items())
    if missing:
        raise _row_missing_error(mirrored, missing, removed.total())
    return _copy_operations(spool, {hashed: int(copies) for hashed, copies in present.items()})


def _copy_operations(spool: Spool, copies: dict[str, int]) -> Iterator[dict[str, Any]]:
    for row in spool.rows():
        count = copies.get(row.hash, 0)
        copies[row.hash] = count + row.sign
        if row.sign > 0:
            yield _upsert(_copy(row.hash, count), row)
        else:
            yield _delete(_copy(row.hash, count - 1))


def _matching(
    database: SqlDatabase, query: str, column: str, suffix: str, values: set[str]
) -> dict[str, Any]:
    """The second column of a query by the first one, of the given values."""
    if len(values) > _SCANNED_FROM:
        return {value: other for value, other in database.stream(query + suffix) if value in values}
    ordered = sorted(values)
    others: dict[str, Any] = {}
    for start in range(0, len(ordered), _LITERALS):
        batch = ordered[start : start + _LITERALS]
        marks = ", ".join(["%s"] * len(batch))
        others.update(database.query(f"{query} WHERE {quoted(column)} IN ({marks}){suffix}", batch))
    return others


def _row_missing_error(mirrored: MirroredTable, missing: int, rows: int) -> SinkContentError:
    return SinkContentError(
        "SINK_ROW_MISSING",
        f"Sink {mirrored.sink}: {mirrored.table} lacks {missing} of {rows} rows to remove",
        hint="Somebody else changed the table. Drop the database of the sink and run "
        f"`taut sinks --forget {mirrored.sink}`: the next run delivers all rows.",
        retryable=False,
        parameters={"sink": mirrored.sink, "table": str(mirrored.table)},
    )


def _not_unique_error(mirrored: MirroredTable, rows: int) -> SinkError:
    return SinkError(
        "SINK_KEY_NOT_UNIQUE",
        f"Sink {mirrored.sink}: {rows} rows of {mirrored.table} have the key of another row: "
        f"{', '.join(mirrored.rows.key)}",
        hint=f"Name columns that identify a row in [sinks.{mirrored.sink}] key, or leave key out.",
        parameters={"sink": mirrored.sink, "table": str(mirrored.table)},
        sqlstate="23505",
        # A later checkpoint may have one row for each key.
        retryable=True,
    )
