"""What a table of a sink must hold, recorded with the pointer, and the comparison with what it holds.

The record is part of the pointer's row. So it changes in the transaction that changes the tables, and an
older copy of the pointer brings the older record back. A table is the recorded one if it has the same
identity (the database's own number of it, its columns and its indexes). Its rows are those that were
delivered if their number and the sum over their hashes are the recorded ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import Intent, Published

__all__ = [
    "Content",
    "Pointer",
    "TableRecord",
    "change_of",
    "database_taken",
    "pointer_missing",
    "table_changed",
]


@dataclass(frozen=True, slots=True)
class Content:
    """The rows of a table: their number, and the sum over the first 32 bits of their hashes."""

    rows: int = 0
    total: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(self.rows + other.rows, self.total + other.total)


@dataclass(frozen=True, slots=True)
class TableRecord:
    """What a table must be. `identity` is the adapter's own text, `columns` are those of the lake's table."""

    identity: str
    content: Content
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pointer:
    """What the row of a sink's pointer says. Without an intent the sink shows nothing."""

    intent: Intent | None = None
    records: Mapping[TableName, TableRecord] = field(default_factory=dict)

    @property
    def published(self) -> Published | None:
        if self.intent is None:
            return None
        return Published(transaction=self.intent.transaction, versions=self.intent.versions)

    def text(self) -> str:
        assert self.intent is not None
        value = {
            **self.intent.as_json(),
            "tables": {
                str(table): [record.identity, record.content.rows, record.content.total, record.columns]
                for table, record in self.records.items()
            },
        }
        return json.dumps(value, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str | None) -> Pointer:
        """The inverse of `text`."""
        if text is None:
            return cls()
        value: dict[str, Any] = json.loads(text)
        records = {
            TableName.parse(name): TableRecord(identity, Content(rows, total), tuple(columns))
            for name, (identity, rows, total, columns) in value["tables"].items()
        }
        return cls(Intent.from_json(value), records)


class Identities:
    """What a process knows of tables that have another identity than the recorded one, and the recorded rows:
    it compared the rows, or it altered the table itself."""

    def __init__(self) -> None:
        self._same: dict[tuple[TableName, str], str] = {}

    def compared(self, table: TableName, record: TableRecord | None, identity: str | None) -> None:
        """The table of this identity has the recorded rows."""
        if record is not None and identity is not None:
            self._same[table, record.identity] = identity

    def altered(
        self, table: TableName, record: TableRecord | None, before: str | None, after: str | None
    ) -> None:
        """This process altered a table: if it was the recorded one, it still is."""
        if record is not None and self.is_same(table, record, before):
            self.compared(table, record, after)

    def is_same(self, table: TableName, record: TableRecord, identity: str | None) -> bool:
        known = self._same.get((table, record.identity), record.identity)
        return identity is not None and identity in (record.identity, known)


def change_of(
    record: TableRecord | None,
    identity: str | None,
    max_rows: int | None,
    is_empty: Callable[[], bool],
    content: Callable[[], Content | None],
) -> Reason | None:
    """Why a table does not hold what was delivered; None if it does, as far as was looked.

    Args:
        identity: of the table; None: there is none.
        max_rows: see `Sink.changed_tables`.
        content: reads all rows; None if the altered table does not allow it.
    """
    if identity is None:
        return Reason.of(ReasonCode.SINK_TABLE_MISSING)
    if record is None:
        return Reason.of(ReasonCode.SINK_TABLE_UNRECORDED)
    recorded = record.content
    is_large = max_rows is not None and recorded.rows > max_rows
    if is_large and identity == record.identity and not is_empty():
        return None
    present = content()
    if present is None:
        return Reason.of(ReasonCode.SINK_TABLE_ALTERED)
    if present != recorded:
        return Reason.of(ReasonCode.SINK_ROWS_DIFFER, rows=present.rows, recorded=recorded.rows)
    return None


def table_changed(sink: str, table: TableName) -> SinkError:
    """The refusal to commit a delta to a table that is not the one that was compared."""
    return SinkError(
        "SINK_BASE_CHANGED",
        f"Sink {sink}: somebody dropped, created or altered the table of {table} during the delivery",
        hint="The next try compares what it holds, and sends all of its rows if they differ.",
        parameters={"sink": sink, "table": str(table)},
        retryable=True,
        sqlstate="40001",
    )


def pointer_missing(sink: str) -> SinkError:
    """The refusal to commit without the row of the pointer."""
    return SinkError(
        "SINK_BASE_CHANGED",
        f"Sink {sink}: somebody deleted the row of its pointer during the delivery",
        hint="The next try writes it again, and sends all rows.",
        parameters={"sink": sink},
        retryable=True,
        sqlstate="40001",
    )


def database_taken(sink: str, lake: str, container: str, owners: Collection[tuple[str, str]]) -> SinkError:
    """The refusal of a database that is the mirror of somebody else.

    Args:
        container: what belongs to one sink, such as `the schema lake`.
        owners: the names of sinks, and the identities of their lakes.
    """
    owner, other = next(iter(owners))
    whose = f"sink {owner} of this lake" if other == lake else f"sink {owner} of another lake ({other})"
    return SinkError(
        "SINK_DATABASE_TAKEN",
        f"Sink {sink}: {container} belongs to {whose}",
        hint=f"Give the sink another one by its options. If nothing delivers to {container} any more, also "
        "after a sink was renamed or the lake got another catalog, drop it: the next run creates it, and "
        "delivers all rows.",
        parameters={"sink": sink, "owner": owner, "lake": other},
        sqlstate="55000",
    )
