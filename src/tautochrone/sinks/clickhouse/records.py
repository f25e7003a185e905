"""What each mirrored table must be, recorded with the pointer, and the comparison with what is there.

A record is part of the pointer's row, so an older copy of the pointer brings the older records back. It says
what ClickHouse's metadata tells at once (the table's uuid, its last mutation, from which publication on its
rows count) and how many rows readers see. Folding and merges change none of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import Intent, Published, require_base
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.ledger import Entry, Ledger
from tautochrone.sinks.clickhouse.rows import PUBLICATION, SIGN
from tautochrone.sinks.clickhouse.statements import text_sql
from tautochrone.sinks.clickhouse.tables import ClickHouseTables
from tautochrone.sinks.common.errors import table_changed_error

__all__ = ["Records"]


_TOGETHER = 50


@dataclass(frozen=True, slots=True)
class _Identity:
    uuid: str
    mutation: int
    replaced: int


@dataclass(frozen=True, slots=True)
class _Record:
    identity: _Identity
    rows: int


@dataclass(frozen=True, slots=True)
class _Pointer:
    published: Published | None
    publication: int
    records: Mapping[TableName, _Record]


class Records:
    """See the module docstring."""

    def __init__(
        self, name: str, engine: Engine, database: str, ledger: Ledger, tables: ClickHouseTables
    ) -> None:
        self._name = name
        self._engine = engine
        self._database = text_sql(database)
        self._ledger = ledger
        self._tables = tables

    def require_base(self, intent: Intent) -> None:
        """Refuse a transaction that starts from something else than what the sink shows.

        Raises:
            SinkError: `SINK_BASE_CHANGED`.
        """
        pointer = self._pointer()
        require_base(intent, pointer.published)
        deltas = [
            table for table in intent.versions if table not in intent.replaced and table in pointer.records
        ]
        identities = self._identities(deltas)
        for table in deltas:
            if identities.get(table) != pointer.records[table].identity:
                raise table_changed_error(self._name, table)

    def changed_tables(
        self, tables: Sequence[TableName], max_rows: int | None, fence: Fence | None
    ) -> Mapping[TableName, Reason]:
        """See `model.sink.Sink.changed_tables`. Views that somebody dropped are restored by the owner only:
        another one may be about to let them show another table.

        Args:
            fence: of the owner; None: who asks is none.

        Raises:
            SinkFencedError: views are missing, and somebody else is the owner.
        """
        pointer, identities = self._pointer(), self._identities(tables)
        reasons = {}
        for table in tables:
            reason = self._change(table, pointer, identities.get(table), max_rows)
            if reason is None and self._tables.lacks_views(table):
                if fence is None:
                    reason = Reason.of(ReasonCode.SINK_TABLE_MISSING)
                else:
                    self._ledger.require(fence)
                    self._tables.restore_views(table)
            if reason is not None:
                reasons[table] = reason
        return reasons

    def text(self, entry: Entry) -> str:
        """The records at the publication of a transaction whose rows have arrived."""
        pointer, tables = self._pointer(), list(entry.intent.versions)
        identities = self._identities(tables)
        for table in tables:
            if table not in identities:
                raise table_changed_error(self._name, table)
        condition = f"{PUBLICATION} = {entry.publication}"
        rows = self._counts(dict.fromkeys(tables, condition))
        records = {}
        for table in tables:
            before = pointer.records.get(table) if table not in entry.intent.replaced else None
            identity = identities[table]
            total = rows[table] + (0 if before is None else before.rows)
            records[str(table)] = [identity.uuid, identity.mutation, identity.replaced, total]
        return json.dumps(records)

    def highest_publication(self, intent: Intent) -> int:
        """Of the rows in tables that are sent whole: a lost pointer may leave rows of later publications. Of
        a table that is built anew, which has no rows yet, it is known from which publication on it counts."""
        highest = 0
        for table in intent.replaced:
            ((newest,),) = self._engine.rows(
                f"SELECT toString(greatest(toUInt64(max({PUBLICATION})), "
                f"toUInt64({self._tables.replaced_sql(table, 2**63)}))) FROM {self._tables.rows(table)}"
            )
            highest = max(highest, int(newest))
        return highest

    def _change(
        self, table: TableName, pointer: _Pointer, identity: _Identity | None, max_rows: int | None
    ) -> Reason | None:
        if identity is None:
            self._tables.forget(table)
            return Reason.of(ReasonCode.SINK_TABLE_MISSING)
        record = pointer.records.get(table)
        if record is None:
            return Reason.of(ReasonCode.SINK_TABLE_UNRECORDED)
        if identity != record.identity:
            return Reason.of(ReasonCode.SINK_TABLE_ALTERED)
        is_large = max_rows is not None and record.rows > max_rows
        if is_large and self._engine.rows(f"SELECT 1 FROM {self._tables.rows(table)} LIMIT 1"):
            return None
        present = self._counts({table: self._tables.visible_sql(table, pointer.publication)})[table]
        beyond = self._engine.rows(
            f"SELECT 1 FROM {self._tables.rows(table)} WHERE {PUBLICATION} > {pointer.publication} LIMIT 1"
        )
        if present != record.rows or beyond:
            return Reason.of(ReasonCode.SINK_ROWS_DIFFER, rows=present, recorded=record.rows)
        return None

    def _pointer(self) -> _Pointer:
        newest = self._ledger.newest_with_tables()
        if newest is None:
            return _Pointer(None, 0, {})
        publication, published, tables = newest
        records = {
            TableName.parse(name): _Record(_Identity(uuid, mutation, replaced), rows)
            for name, (uuid, mutation, replaced, rows) in json.loads(tables).items()
        }
        return _Pointer(published, publication, records)

    def _counts(self, conditions: Mapping[TableName, str]) -> dict[TableName, int]:
        """By table the number of rows that meet its condition."""
        queries = [
            f"SELECT {text_sql(str(table))}, toString(sum(toInt64({SIGN}))) "
            f"FROM {self._tables.rows(table)} WHERE {condition}"
            for table, condition in conditions.items()
        ]
        return {TableName.parse(name): int(rows) for name, rows in self._rows_of_all(queries)}

    def _identities(self, tables: Sequence[TableName]) -> dict[TableName, _Identity]:
        """Of the tables that are there."""
        queries = []
        for table in tables:
            name = text_sql(self._tables.rows_name(table))
            mutation = (
                "SELECT max(toUInt64OrZero(extract(mutation_id, '[0-9]+'))) FROM system.mutations "
                f"WHERE database = {self._database} AND table = {name}"
            )
            queries.append(
                f"SELECT {text_sql(str(table))}, toString(uuid), toString(({mutation})), "
                f"toString({self._tables.replaced_sql(table, 2**63)}) "
                f"FROM system.tables WHERE database = {self._database} AND name = {name}"
            )
        return {
            TableName.parse(table): _Identity(uuid, int(mutation), int(replaced))
            for table, uuid, mutation, replaced in self._rows_of_all(queries)
        }

    def _rows_of_all(self, queries: Sequence[str]) -> Iterator[list[Any]]:
        """The rows of all queries, many of them by one statement: the length of a statement is limited."""
        for first in range(0, len(queries), _TOGETHER):
            yield from self._engine.rows(" UNION ALL ".join(queries[first : first + _TOGETHER]))
