"""Rows on their way into temporary tables of a relational database, and which value it cannot hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tautochrone.errors import SinkError
from tautochrone.model.lake import Rows
from tautochrone.model.names import TableName
from tautochrone.sinks.common.mirrored import value_unsupported
from tautochrone.sinks.json_rows import JsonRows

__all__ = ["MirroredRows", "row_batches", "send_rows"]

_ROW_CHARACTERS = 200
_Row = tuple[Mapping[str, Any], list[Any]]
"""A row in JSON values, and as the database takes it."""


class MirroredRows(Protocol):
    """A table as the sink knows it."""

    @property
    def rows(self) -> JsonRows:
        """How rows become JSON values."""

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """A row in JSON values as the database takes it; the last one is its hash in hexadecimal digits."""


def row_batches(
    sink: str, table: TableName, mirrored: MirroredRows, rows: Rows, chunk_rows: int, known_rows: int | None
) -> Iterator[list[_Row]]:
    """The rows in batches.

    Raises:
        SinkError: `SINK_VALUE_UNSUPPORTED`, Python has no such value: years before 1 and after 9999, and
            texts that are no Unicode.
    """
    batch: list[_Row] = []
    encoded = mirrored.rows.rows(rows, chunk_rows, known_rows)
    while True:
        row: Mapping[str, Any] | None = None
        try:
            row = next(encoded, None)
            if row is None:
                break
            batch.append((row, mirrored.values(row)))
        except (ValueError, OverflowError) as error:
            text = None if row is None else _text(mirrored, row)
            raise value_unsupported(sink, table, str(error), row=text) from error
        if len(batch) == chunk_rows:
            yield batch
            batch = []
    if batch:
        yield batch


def send_rows(
    sink: str,
    table: TableName,
    mirrored: MirroredRows,
    batch: list[_Row],
    send: Callable[[list[list[Any]]], None],
) -> None:
    """Send rows; if the database refuses them, send parts of them until it is known which value it refuses.

    Raises:
        SinkError: `SINK_VALUE_UNSUPPORTED`.
    """

    def refusal(rows: list[list[Any]]) -> SinkError | None:
        try:
            send(rows)
        except SinkError as error:
            if error.error_class != "SINK_DATABASE_REFUSED" or error.retryable:
                raise
            return error
        return None

    error = refusal([values for _, values in batch])
    if error is None:
        return
    while len(batch) > 1:
        half = batch[: len(batch) // 2]
        batch = half if refusal([values for _, values in half]) is not None else batch[len(half) :]
    ((row, values),) = batch
    columns = mirrored.rows.columns
    for number, column in enumerate(columns):
        alone = [value if index == number else None for index, value in enumerate(values[: len(columns)])]
        alone_error = refusal([[*alone, *values[len(columns) :]]])
        if alone_error is not None:
            text = _text(mirrored, row)
            raise value_unsupported(sink, table, alone_error.message, column, text) from alone_error
    raise value_unsupported(sink, table, error.message, row=_text(mirrored, row)) from error


def _text(mirrored: MirroredRows, row: Mapping[str, Any]) -> str:
    """The key of a row, or all of it, for people to find it."""
    shown = {name: row[name] for name in mirrored.rows.key} or row
    return json.dumps(shown)[:_ROW_CHARACTERS]
