"""From changed rows to the records of a topic.

`upsert`: the key and the newest row, or no value for a key that went. `changelog`: Debezium's envelope with
the row before and after, and the checkpoint in `source`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.sink import TransactionId
from tautochrone.sinks.json_rows import JsonRows, comparable, row_number

__all__ = ["Message", "changelog_delta", "changelog_replacement", "upsert_delta", "upsert_replacement"]

_Row = Mapping[str, Any]
Message = tuple[bytes | None, _Row | None]
"""The key, and the value before it is encoded."""


def upsert_delta(
    sink: str, table: TableName, encoder: JsonRows, removed: Iterable[_Row], added: Iterable[_Row]
) -> Iterator[Message]:
    """The newest row of each key, then the keys that went.

    Raises:
        SinkError: `SINK_KEY_NOT_UNIQUE`.
    """
    keys: set[str] = set()
    for row in added:
        yield _upsert(sink, table, encoder, row, keys)
    for row in removed:
        key = _key(encoder, row)
        if key not in keys:
            keys.add(key)
            yield key.encode(), None


def upsert_replacement(
    sink: str, table: TableName, encoder: JsonRows, rows: Iterable[_Row], present: Mapping[str, int]
) -> Iterator[Message]:
    """What leads from the keys in the topic to these rows; `present` has the hash of each key's row."""
    keys: set[str] = set()
    for row in rows:
        message = _upsert(sink, table, encoder, row, keys)
        if present.get(_key(encoder, row)) != row_number(comparable(row)):
            yield message
    for key in present:
        if key not in keys:
            yield key.encode(), None


def _upsert(sink: str, table: TableName, encoder: JsonRows, row: _Row, keys: set[str]) -> Message:
    key = _key(encoder, row)
    if key in keys:
        raise SinkError(
            "SINK_KEY_NOT_UNIQUE",
            f"Sink {sink}: {table} has two rows of the key {key}, and a topic has one value for each key",
            hint=f"Name columns that identify a row in [sinks.{sink}] key, or set mode = changelog.",
            parameters={"sink": sink, "table": str(table)},
            sqlstate="23505",
            # A later checkpoint may have one row for each key.
            retryable=True,
        )
    keys.add(key)
    return key.encode(), row


def _key(encoder: JsonRows, row: _Row) -> str:
    key = encoder.key_of(row)
    assert key is not None
    return key


def changelog_delta(
    table: TableName,
    encoder: JsonRows,
    transaction: TransactionId,
    removed: Iterable[_Row],
    added: Iterable[_Row],
) -> Iterator[Message]:
    """Changed rows of one key in pairs, as updates; other rows as deletes and creates."""
    source = _source(table, transaction)
    before: dict[str, list[_Row]] = {}
    for row in removed:
        key = encoder.key_of(row)
        if key is None:
            yield None, _envelope("d", row, None, source)
        else:
            before.setdefault(key, []).append(row)
    for row in added:
        key = encoder.key_of(row)
        if key is None:
            yield None, _envelope("c", None, row, source)
            continue
        rows = before.get(key)
        if rows:
            yield key.encode(), _envelope("u", rows.pop(), row, source)
        else:
            yield key.encode(), _envelope("c", None, row, source)
    for key, rows in before.items():
        for row in rows:
            yield key.encode(), _envelope("d", row, None, source)


def changelog_replacement(
    table: TableName,
    encoder: JsonRows,
    transaction: TransactionId,
    rows: Iterable[_Row],
    present: Counter[str],
    stored_row: Mapping[str, _Row],
) -> Iterator[Message]:
    """What leads from the rows in the topic to these rows.

    Args:
        present: number of copies by the text of a row. It is used up.
        stored_row: the row by its text.
    """
    source = _source(table, transaction)
    for row in rows:
        text = comparable(row)
        if present[text] > 0:
            present[text] -= 1
            continue
        key = encoder.key_of(row)
        yield None if key is None else key.encode(), _envelope("r", None, row, source)
    for text, copies in present.items():
        row = stored_row[text]
        key = encoder.key_of(row)
        for _ in range(copies):
            yield None if key is None else key.encode(), _envelope("d", row, None, source)


def _source(table: TableName, transaction: TransactionId) -> dict[str, Any]:
    return {
        "connector": "tautochrone",
        "name": transaction.sink,
        "db": ".".join(table.namespace),
        "table": table.table,
        "checkpoint": int(transaction.checkpoint),
    }


def _envelope(operation: str, before: _Row | None, after: _Row | None, source: _Row) -> _Row:
    return {"before": before, "after": after, "op": operation, "source": source}
