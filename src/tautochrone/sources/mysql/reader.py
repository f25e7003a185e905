"""Whole transactions of the binary log, as rows of the log table.

Until it ends, a transaction is held as a `Group`: its rows so far, savepoints, and what follows from foreign
keys.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tautochrone.errors import IngestError
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.mysql.binlog import Event, Kind, Query, TableMap, complete_images, identity_of
from tautochrone.sources.mysql.charsets import Charsets, UndecodableError
from tautochrone.sources.mysql.continuity import (
    log_lost_error,
    logged_statement_error,
    other_file,
    unsupported_event_error,
)
from tautochrone.sources.mysql.flavors import LAST, Flavor, TransactionMark
from tautochrone.sources.mysql.histories import History
from tautochrone.sources.mysql.rows import LOGGED_TYPES, RowEvents, changed_types, log_rows, truncate_row
from tautochrone.sources.mysql.statements import Effect, Statement, XaEnd, xid_of
from tautochrone.sources.mysql.tables import CapturedTable, Cascade
from tautochrone.sources.mysql.types import BINLOG_TYPES

__all__ = ["Change", "Group", "LogReader"]


@dataclass(frozen=True, slots=True)
class Change:
    """Row images of one event. Without a layout: the table was truncated."""

    kind: int
    table: CapturedTable
    layout: TableMap | None
    images: bytes


@dataclass(slots=True)
class Group:
    """A transaction that is being read.

    Attributes:
        is_single: one statement without an end of its own; None: not known before its first statement.
        file, start: where its first event is.
        is_prepared: it is committed later by another statement (`XA PREPARE`), so what counts is whether its
            tables were copied before that.
        changes: row events and truncates in their order.
        cascaded: tables whose rows foreign keys may change.
        doubtful: tables of which it is not known what it does to their rows.
    """

    is_single: bool | None
    file: str
    start: int
    is_prepared: bool = False
    changes: list[Change] = field(default_factory=list)
    cascaded: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    _savepoints: dict[str, int] = field(default_factory=dict)
    """How many changes there were before each, in their order."""

    @property
    def bytes(self) -> int:
        return sum(len(change.images) for change in self.changes)

    def set_savepoint(self, name: str) -> None:
        """
        Args:
            name: empty: not known.
        """
        self._savepoints.pop(name, None)
        self._savepoints[name] = len(self.changes)

    def roll_back_to(self, name: str) -> None:
        """The log still has the rows behind a savepoint when it has others there that stay: those of
        temporary tables, or of tables without transactions. The captured tables have transactions."""
        if "" in self._savepoints or name not in self._savepoints:
            self.doubtful |= {change.table.name for change in self.changes}
            return
        count = self._savepoints[name]
        del self.changes[count:]
        names = list(self._savepoints)
        for later in names[names.index(name) + 1 :]:
            del self._savepoints[later]


def _prepared_xid(body: bytes) -> tuple[str, bool]:
    """Of the event behind an `XA` transaction: its identifiers, and whether it is committed by that."""
    one_phase, format_id, transaction, branch = struct.unpack_from("<BIII", body)
    data = body[13:]
    return xid_of(format_id, data[:transaction], data[transaction : transaction + branch]), one_phase == 1


_DECODED_BYTES = 8 * 1024 * 1024
_PREPARED_BYTES = 8 * 1024 * 1024
"""So much of prepared transactions is kept in memory; others are read again when they are committed."""
_INCOMPLETE = (
    "has rows in the log without some of their columns, by a session with another binlog_row_image "
    "than FULL, or with binlog_row_value_options,"
)
_OTHER_TYPES = (
    "has rows in the log of other types than its columns, such as those of times from before MariaDB 10.1, "
    "which ALTER TABLE ... FORCE with mysql56_temporal_format = ON ends,"
)
_OPERATIONS = ((Kind.WRITE, "insert"), (Kind.UPDATE, "update"), (Kind.DELETE, "delete"))


@dataclass(slots=True)
class LogReader:
    """Takes events, and holds what whole transactions wrote.

    Args:
        tables: the captured ones by `schema.table`, and from where on the log has their rows.
        file, point: where the log is read from, at the end of a transaction.
        gtid: marks of the last transactions there.
        ignores_case: upper and lower case of tables' names are the same.
        cascades: by the table whose rows set them off.
        history: all transactions up to there; None: not known.
        shift: what is added to points of the log.
        passes_over: tables of which columns behind the captured ones may change, unless they are called so:
            columns of the lake's table that the captured ones do not have.
        earlier: events of the log from an offset on; None: the server does not have them any more.
        prepared: transactions that are prepared at the point, by their identifiers (`_prepared_xid`),
            with the file and the offset where they begin. Those that were prepared before the capture's
            first point are not among them.

    Attributes:
        reached: the end of the last event.
        changed: tables that the transaction behind `point` changes in a way that the log does not show.
            There it stopped.
        how: what changed them: the end of a sentence. Empty: a statement, after which they may be others.
        ignored: tables of which columns behind the captured ones changed, and where.
        file_ids: identities of the files of which events were read.
        is_at_end: it took all events.
        has_new_tables: a statement may have made or renamed tables.
        committed_s: when the newest transaction with rows was committed, by the database's clock.
    """

    charsets: Charsets
    flavor: Flavor
    tables: Mapping[str, tuple[CapturedTable, int]]
    file: str
    point: int
    gtid: dict[str, str]
    ignores_case: bool = False
    cascades: Mapping[str, Sequence[Cascade]] = field(default_factory=dict)
    passes_over: Mapping[str, Collection[str]] = field(default_factory=dict)
    history: History | None = None
    shift: int = 0
    earlier: Callable[[str, int], AbstractContextManager[Iterable[Event] | None]] | None = None
    prepared: dict[str, tuple[str, int]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    file_ids: dict[str, str] = field(default_factory=dict)
    reached: int = 0
    committed_s: int | None = None
    has_new_tables: bool = False
    rows: int = 0
    changed: tuple[str, ...] = ()
    how: str = ""
    is_at_end: bool = False
    _group: Group | None = None
    _prepared_groups: dict[str, Group] = field(default_factory=dict)
    _mark: tuple[str, str] | None = None
    _begun: Event | None = None
    _begun_mark: TransactionMark | None = None
    _begun_s: int | None = None
    """When its first statement was executed, which is the same on all replicas."""
    _layouts: dict[bytes, tuple[CapturedTable, TableMap] | None] = field(default_factory=dict)
    _events: dict[tuple[TableMap, str], RowEvents] = field(default_factory=dict)
    _bytes: int = 0
    _decoded: list[pa.Table] = field(default_factory=list)

    def read(self, events: Iterable[Event], max_events: int) -> None:
        """Take events up to the transaction that brings it to `max_events` rows.

        Raises:
            IngestError: see `_process_until_commit`.
        """
        for event in events:
            self.reached = max(self.reached, self._point(event))
            if (self._process_until_commit(event) and self._is_enough(max_events)) or self.changed:
                return
        self.is_at_end = True

    def _point(self, event: Event) -> int:
        return event.point + self.shift

    def _is_enough(self, max_events: int) -> bool:
        if self._bytes > _DECODED_BYTES:
            self._decode()
        return self.rows + sum(len(events.images) for events in self._events.values()) >= max_events

    def table(self) -> pa.Table:
        """All rows in the order of the log."""
        self._decode()
        if not self._decoded:
            return ARROW_SCHEMA.empty_table()
        rows = pa.concat_tables(self._decoded)
        order = np.lexsort((rows["sequence"].to_numpy(), rows["point"].to_numpy()))
        return rows.take(pa.array(order)).combine_chunks()

    def _decode(self) -> None:
        for events in self._events.values():
            rows = log_rows(events)
            self.rows += rows.num_rows
            self._decoded.append(rows)
        self._events, self._bytes = {}, 0

    def _process_until_commit(self, event: Event) -> bool:  # noqa: C901
        """Answers whether it ended a transaction.

        Raises:
            IngestError: `CAPTURED_TABLE_CHANGED`: rows do not fit their table; `CAPTURE_SERVER_NOT_USABLE`;
                `CHANGE_LOG_EVENT_NOT_SUPPORTED`.
        """
        kind = event.kind
        if self._begun_mark is not None and kind not in Kind.GTID:
            self._begun_mark.take(event)
        if kind in Kind.FIRST and self._begun_s is None:
            self._begun_s = event.timestamp
        if kind == Kind.FORMAT:
            self._begin_file(event)
        elif kind in Kind.ROWS or kind == Kind.PARTIAL_ROWS:
            self._take_rows(event)
        elif kind == Kind.TABLE_MAP:
            layout = TableMap.read(event.body)
            entry = self.tables.get(layout.name)
            self._layouts[layout.table_id] = None if entry is None else (entry[0], layout)
        elif kind in Kind.GTID:
            self._begin_group(event)
        elif kind in (Kind.QUERY, Kind.QUERY_COMPRESSED):
            return self._take_query(event)
        elif kind == Kind.XID:
            self._end_group(event, is_committed=True)
            return True
        elif kind == Kind.XA_PREPARE:
            self._take_prepare(event)
            return True
        elif kind == Kind.INCIDENT:
            self._require_copies(event, self.tables, "may be changed by transactions that the server lost")
        elif kind not in Kind.IGNORED:
            self._take_other(event)
        return False

    def _begin_file(self, event: Event) -> None:
        """
        Raises:
            IngestError: `SOURCE_LOG_LOST`: the log was reset since it was looked at.
        """
        file_id = identity_of(event)
        if self.file_ids.setdefault(event.file, file_id) != file_id:
            raise log_lost_error("The capture", other_file(event.file))

    def _begin_group(self, event: Event) -> None:
        """
        Raises:
            IngestError: `CHANGE_LOG_EVENT_NOT_SUPPORTED`: the transaction before has no end.
        """
        if self._group is not None and self._group.changes:
            raise unsupported_event_error(event, "a transaction whose end is not understood")
        counter, mark, is_single = self.flavor.transaction_of(event)
        self._mark, self._group = (counter, mark), Group(is_single, event.file, event.start)
        self._group.is_prepared = self.flavor.is_prepared(event)
        self._begun, self._begun_s = event, None
        self._begun_mark = TransactionMark(event.file, event.start)
        self._begun_mark.take(event)

    def _take_prepare(self, event: Event) -> None:
        group = self._group
        xid, is_committed = _prepared_xid(event.body)
        # XA COMMIT … ONE PHASE is this event too.
        if is_committed or group is None:
            self._end_group(event, is_committed=is_committed)
            return
        self.prepared[xid] = (group.file, group.start)
        self._prepared_groups[xid] = group
        if sum(other.bytes for other in self._prepared_groups.values()) > _PREPARED_BYTES:
            del self._prepared_groups[xid]
        self._end_group(event, is_committed=False)

    def _end_prepared(self, event: Event, end: XaEnd) -> None:
        """Rows count from where they are committed."""
        group = self._prepared_group(end.xid) if end.is_committed else None
        if end.is_committed and group is None:
            how = "may be changed by a transaction (XA COMMIT) whose rows the log has before it was captured"
            self._require_copies(event, self.tables, how)
        if not self.changed:
            self._group = group
            self._end_group(event, is_committed=end.is_committed)
        if not self.changed:
            self.prepared.pop(end.xid, None)
            self._prepared_groups.pop(end.xid, None)

    def _prepared_group(self, xid: str) -> Group | None:
        """None: the log does not have what it did, or not any more."""
        group = self._prepared_groups.get(xid)
        begun = self.prepared.get(xid)
        if group is not None or begun is None or self.earlier is None:
            return group
        with self.earlier(*begun) as events:
            return None if events is None else self._read_again(events, xid)

    def _read_again(self, events: Iterable[Event], xid: str) -> Group | None:
        reader = LogReader(
            charsets=self.charsets,
            flavor=self.flavor,
            tables=self.tables,
            file=self.file,
            point=0,
            gtid={},
            ignores_case=self.ignores_case,
            cascades=self.cascades,
            shift=self.shift,
        )
        for event in events:
            if event.kind == Kind.XA_PREPARE:
                return reader._group if _prepared_xid(event.body)[0] == xid else None
            if event.kind in Kind.ROWS | Kind.BEFORE_ROWS | {Kind.PARTIAL_ROWS}:
                reader._process_until_commit(event)
        return None

    def _require_copies(self, event: Event, names: Iterable[str], how: str) -> None:
        """Of those whose rows in the log count here already."""
        point = self._point(event)
        self.changed = tuple(sorted(name for name in names if point > self.tables[name][1]))
        self.how = how if self.changed else ""

    def _take_other(self, event: Event) -> None:
        """
        Raises:
            IngestError: `CAPTURE_SERVER_NOT_USABLE`; `CHANGE_LOG_EVENT_NOT_SUPPORTED`.
        """
        if event.may_be_ignored:
            return
        if event.kind not in Kind.LOADED_FILE:
            raise unsupported_event_error(event, f"an event of the unknown kind {event.kind}")
        # Its statement may change rows of any table, by triggers.
        if any(self._point(event) > since for _table, since in self.tables.values()):
            raise logged_statement_error(event)

    def _take_rows(self, event: Event) -> None:
        captured = self._layouts.get(event.body[:6])
        if captured is None:
            return
        table, layout = captured
        group = self._group
        assert group is not None
        cascades = self._possible_cascades(event, table, group)
        is_new = self._point(event) > self.tables[table.name][1]
        if not is_new and not cascades and not group.is_prepared:
            return
        images = None if event.kind == Kind.PARTIAL_ROWS else complete_images(event.kind, event.body)
        fits = images is not None and _fits_layout(table, layout)
        differ = partial(_columns_differ, self.charsets) if is_new else _columns_may_differ
        group.cascaded |= {
            name
            for cascade in cascades
            if event.kind in Kind.DELETE
            or images is None
            or (is_new and not fits)
            or differ(table, layout, images, cascade.columns)
            for name in cascade.tables
        }
        if images is not None and fits:
            if is_new or group.is_prepared:
                group.changes.append(Change(event.kind, table, layout, images))
        elif group.is_prepared:
            group.doubtful.add(table.name)
        else:
            self._require_copies(event, [table.name], _INCOMPLETE if images is None else _OTHER_TYPES)

    def _possible_cascades(self, event: Event, table: CapturedTable, group: Group) -> list[Cascade]:
        """Those that this kind of event may set off, and whose tables lack what follows from it."""
        return [
            cascade
            for cascade in self.cascades.get(table.name, ())
            if (event.kind in Kind.DELETE and cascade.on_delete)
            or (event.kind in Kind.UPDATE and cascade.on_update)
            if group.is_prepared or any(self._point(event) > self.tables[name][1] for name in cascade.tables)
        ]

    def _take_query(self, event: Event) -> bool:
        statement = Statement(Query.read(event), self._text)
        group = self._group
        if group is not None and group.is_single is None:
            group.is_single = not statement.begins_group
            group.is_prepared = statement.begins_prepared_group
        xa_end = statement.xa_end
        if xa_end is not None:
            self._end_prepared(event, xa_end)
            return True
        is_commit = statement.ends_group
        if is_commit is not None:
            self._end_group(event, is_committed=is_commit)
            return True
        if group is not None and statement.savepoint is not None:
            group.set_savepoint(statement.savepoint)
        elif group is not None and statement.rolled_back_to is not None:
            group.roll_back_to(statement.rolled_back_to)
        elif self.flavor.takes_effect(self._begun):
            self._take_effects(event, statement)
        if group is not None and group.is_single and not self.changed:
            self._end_group(event, is_committed=True)
            return True
        return False

    def _text(self, charset: int, data: bytes) -> str | None:
        """See `tokens.Decoder`."""
        try:
            return self.charsets.decode(charset, data)
        except (UndecodableError, IngestError):
            return None

    def _take_effects(self, event: Event, statement: Statement) -> None:
        """
        Raises:
            IngestError: `CAPTURE_SERVER_NOT_USABLE`.
        """
        self.has_new_tables |= statement.may_make_tables
        normal = _without_case if self.ignores_case else str
        captured = {name: table for name, (table, _since) in self.tables.items()}
        effects = [
            effect
            for effect in statement.effects(self.tables.keys(), normal, captured)
            if self._point(event) > self.tables[effect.relation][1]
        ]
        self.changed = tuple(
            effect.relation
            for effect in effects
            if effect.kind == "change"
            or (effect.kind == "behind" and not self._may_pass_over(effect, statement))
            or (effect.kind == "truncate" and event.is_about_temporary_table)
        )
        if self.changed:
            return
        for effect in effects:
            if effect.kind == "behind":
                self.ignored[effect.relation] = f"{event.file} {event.end}"
                continue
            table = self.tables[effect.relation][0]
            if effect.kind == "rows" or self._group is None:
                raise logged_statement_error(event)
            self._group.changes.append(Change(Kind.QUERY, table, None, b""))

    def _may_pass_over(self, effect: Effect, statement: Statement) -> bool:
        """A column that the lake's table has must not come back unseen."""
        names = self.passes_over.get(effect.relation)
        return names is not None and not statement.may_name(names)

    def _end_group(self, event: Event, *, is_committed: bool) -> None:
        group, point = self._group, self._point(event)
        if group is not None and is_committed:
            self._require_copies(event, group.cascaded, "may be changed by a foreign key")
            if not self.changed:
                how = "may be changed by a transaction of which a part was rolled back or prepared before"
                self._require_copies(event, group.doubtful, how)
            if self.changed:
                return
            self._take_changes(event, group)
        if self._mark is not None and self._begun_mark is not None:
            before = self.gtid if self.flavor.counts_domains else {}
            self.gtid = {**before, **dict([self._mark]), LAST: str(self._begun_mark)}
        if self.history is not None and self._begun is not None:
            self.history.time_s = self._begun_s
            if not self.history.take(self._begun):
                self.history = None
        self._group = self._mark = self._begun = self._begun_mark = None
        self.point, self.file = point, event.file

    def _take_changes(self, event: Event, group: Group) -> None:
        """Of a transaction that is committed by the event."""
        point = self._point(event)
        for number, change in enumerate(group.changes):
            if point <= self.tables[change.table.name][1]:
                continue
            self.committed_s = event.timestamp
            if change.layout is None:
                self._decoded.append(truncate_row(change.table.name, point, event.timestamp))
                self.rows += 1
                continue
            operation = next(name for kinds, name in _OPERATIONS if change.kind in kinds)
            key = (change.layout, operation)
            events = self._events.setdefault(
                key, RowEvents(self.charsets, change.table, change.layout, operation)
            )
            events.images.append(change.images)
            events.numbers.append(number)
            events.points.append(point)
            events.timestamps.append(event.timestamp)
            self._bytes += len(change.images)


def _without_case(name: str) -> str:
    """The server makes each letter small by itself, which Python does not do with this one."""
    return name.replace("\u0130", "i").casefold()


def _fits_layout(table: CapturedTable, layout: TableMap) -> bool:
    """Behind the columns may stand others: hidden ones of unique keys over long texts, and ignored ones."""
    logged = layout.types[: len(table.logged)]
    return (
        len(logged) == len(table.logged)
        and all(
            kind in BINLOG_TYPES[column.data_type] for kind, column in zip(logged, table.logged, strict=True)
        )
        and LOGGED_TYPES.issuperset(layout.types)
    )


def _columns_differ(
    charsets: Charsets, table: CapturedTable, layout: TableMap, images: bytes, columns: tuple[str, ...]
) -> bool:
    """Whether an update changes a value in these columns."""
    # An update of a key becomes a delete and an insert.
    events = RowEvents(charsets, replace(table, keys=columns), layout, "update", [images], [0], [0], [0])
    return "delete" in log_rows(events)["operation"].to_pylist()


def _columns_may_differ(
    table: CapturedTable, layout: TableMap, images: bytes, columns: tuple[str, ...]
) -> bool:
    """The same of an update from before the table was copied again: its columns may have had other places."""
    changed = changed_types(layout, images)
    kinds = {
        kind for column in table.logged if column.name in columns for kind in BINLOG_TYPES[column.data_type]
    }
    return changed is None or not changed.isdisjoint(kinds)
