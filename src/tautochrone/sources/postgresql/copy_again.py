"""Which tables must be copied again when a run goes on, and from where on their rows begin anew.

A table is copied again when it is new, has other columns, or when its rows may have changed without events in
the log. Rows that are gone have no event either, so a copy alone would leave them. Therefore the log table
gets a truncate of that relation: behind a point of the log up to which every transaction is visible to all
statements that copy, with the number of a transaction that they all have seen. It counts for everything that
the log and earlier copies had, and not for the copied rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import psycopg

from tautochrone.errors import IngestError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import LogBatch
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.capture.log_table import ARROW_SCHEMA
from tautochrone.sources.postgresql import server
from tautochrone.sources.postgresql.bulk import chunks_of, chunks_of_partition, durable_log_end
from tautochrone.sources.postgresql.continuity import (
    COPY_AGAIN,
    Restart,
    fewest_columns,
    fewest_columns_entries,
    restart_entries,
    restarts,
    server_log_entries,
)
from tautochrone.sources.postgresql.messages import DecodedBatch
from tautochrone.sources.postgresql.server import add_to_publication, await_running_transactions
from tautochrone.sources.postgresql.tables import CapturedTable, Partition, attached_partitions, has_lost_rows

__all__ = [
    "Difference",
    "batch_of_copies_again",
    "copied_up_to",
    "differences",
    "relations_unlike_tables",
    "restart_rows",
    "resumed_position",
    "table_changed_error",
]

_, _COLUMNS, _FILES, _ATTRIBUTES, _KEY, _ORIGIN, _PARTITIONS, _LAST_NUMBER = range(8)


@dataclass(frozen=True, slots=True)
class Difference:
    """
    Attributes:
        change: what was changed, as a part of a sentence; empty: nothing that the log does not have.
        attached: partitions whose rows must be copied; empty: those of the whole table must.
        columns_before: so many columns it had before others were added that are NULL in all rows that were
            there; the log has rows without these.
    """

    change: str = ""
    attached: Sequence[Partition] = ()
    columns_before: int | None = None

    def __bool__(self) -> bool:
        return bool(self.change)


def _difference(before: str | None, table: CapturedTable, *, is_copying: bool) -> Difference:
    """Compare a table with the fingerprint that it had.

    ALTER TABLE may write the rows anew, such as `ALTER COLUMN … TYPE … USING …` with the same type: then
    files and attributes are others. Files alone are others after VACUUM FULL or TRUNCATE, attributes alone
    after SET DEFAULT.

    Args:
        is_copying: the log has not passed its copy yet, which may have been read, without new columns, behind
            changes of them.
    """
    if not before:
        return Difference("came, or must be copied")
    old, new = before.split("/"), table.fingerprint.split("/")
    if old == new:
        return Difference()
    if len(old) != len(new):
        return Difference("came, or must be copied")
    if old[_KEY] != new[_KEY]:
        return Difference("got another key")
    if old[_ORIGIN] != new[_ORIGIN]:
        return Difference("was dropped and made anew, or its publication was changed")
    if old[_COLUMNS] != new[_COLUMNS]:
        columns_before = None if is_copying else _count_of_columns_before(old, new, table)
        return Difference("" if columns_before else "got other columns", columns_before=columns_before)
    if table.partitions is not None:
        return _difference_of_partitions(old[_PARTITIONS], table.partitions)
    if old[_FILES] != new[_FILES] and old[_ATTRIBUTES] != new[_ATTRIBUTES]:
        return Difference("was written anew by ALTER TABLE")
    return Difference()


def _count_of_columns_before(old: Sequence[str], new: Sequence[str], table: CapturedTable) -> int | None:
    """How many columns it had, if nothing happened but that columns without a value were added."""
    if (
        len(old) <= _LAST_NUMBER
        or table.partitions is not None
        or not table.keys
        or old[_FILES] != new[_FILES]
    ):
        # Without a key all columns identify a row.
        return None
    last_number = int(old[_LAST_NUMBER])
    if any(number > last_number for number in table.filled_numbers):
        return None
    return (
        table.count_of_columns(last_number) if table.digest_of_columns(last_number) == old[_COLUMNS] else None
    )


def _difference_of_partitions(before: str, partitions: Sequence[Partition]) -> Difference:
    if has_lost_rows(before, partitions):
        return Difference("has partitions that were detached, dropped, truncated or written anew")
    came = attached_partitions(before, partitions)
    return Difference("has partitions that were attached", attached=came) if came else Difference()


_TRIES = 10
_OTHER_SHAPE = "had other columns, or another REPLICA IDENTITY, for a while"


def differences(position: LogPosition, tables: Sequence[CapturedTable]) -> dict[str, Difference]:
    """Of the tables whose rows may have changed without events since the position."""
    return {name: change for name, change in _all_differences(position, tables).items() if change}


def _all_differences(position: LogPosition, tables: Sequence[CapturedTable]) -> dict[str, Difference]:
    """By name, each table with what it was at the position."""
    return {
        table.name: _difference(
            position.marker.get(table.name), table, is_copying=table.name in position.bulk.waiting
        )
        for table in tables
    }


def resumed_position(
    connection: psycopg.Connection,
    publication: str,
    position: LogPosition,
    current: Callable[[bool], Sequence[CapturedTable]],
    *,
    follows: bool,
    tasks: int,
    anew: Collection[str] = (),
) -> LogPosition:
    """The position from which a run goes on.

    Args:
        current: the captured tables as they are now; with their sizes, if it is asked for.
        follows: tables may be copied again; otherwise refused.
        tasks: so many read chunks at once.
        anew: relations that are copied in any case.

    Raises:
        IngestError: `CAPTURED_TABLE_CHANGED`; `CAPTURE_WAITS_FOR_TRANSACTIONS`.
    """
    for _ in range(_TRIES):
        tables = current(False)
        changes = _tables_to_copy(position, tables, follows, anew)
        if not changes:
            # The same reading: a later one may have a change that nothing was compared with.
            return _position_with_copies(position, tables, {}, {})
        # Before the copy: what is written from now on is in the log.
        add_to_publication(connection, publication, tables)
        tables = current(True)
        point = durable_log_end(connection)
        transaction = await_running_transactions(connection, server.TRANSACTIONS_WAIT_S)
        if [table.fingerprint for table in current(True)] != [table.fingerprint for table in tables]:
            continue
        changes = _tables_to_copy(position, tables, follows, anew)
        chunks, restarting = {}, {}
        for table in tables:
            if table.name not in changes:
                continue
            attached = changes[table.name].attached
            may_add = table.keys and table.name not in position.bulk.waiting
            if attached and may_add and all(partition.may_read for partition in attached):
                chunks[table.name] = tuple(
                    chunk
                    for partition in attached
                    for chunk in chunks_of_partition(connection, table, partition, tasks)
                )
                continue
            chunks[table.name] = chunks_of(connection, table, tasks)
            restarting[table.name] = Restart(point, transaction)
        return _position_with_copies(position, tables, chunks, restarting)
    raise table_changed_error(next(iter(changes)), "changed again and again")


def batch_of_copies_again(follows: bool, position: LogPosition, changes: Mapping[str, str]) -> LogBatch:
    """The answer to a read that found tables which must be copied again.

    Args:
        follows: tables may be copied again; otherwise refused.

    Raises:
        IngestError: `CAPTURED_TABLE_CHANGED`.
    """
    if not follows:
        name, change = next(iter(changes.items()))
        raise table_changed_error(name, f"{change},")
    reasons = {
        name: Reason.of(ReasonCode.ROWS_CHANGED_WITHOUT_LOG, relation=name, change=change)
        for name, change in changes.items()
    }
    return LogBatch(rows=ARROW_SCHEMA.empty_table(), position=position, caught_up=False, copied_again=reasons)


def relations_unlike_tables(
    batch: DecodedBatch, tables: Sequence[CapturedTable], after: LogPosition
) -> dict[str, str]:
    """Relations with rows that the log does not have as the table has them, and what was so for a while.

    Args:
        tables: as they are now.
    """
    by_name = {table.name: table for table in tables}
    by_oid = {table.oid: table for table in tables}
    fewest = fewest_columns(after.marker)
    copied = copied_up_to(after, by_name)
    unlike = dict.fromkeys(batch.unidentified, _OTHER_SHAPE)
    for relation in batch.relations:

        def matters(table: CapturedTable | None, point: int = relation.point) -> TypeGuard[CapturedTable]:
            # What the log has up to there is followed by a copy of the table, which saw it.
            return table is not None and point > copied[table.name]

        own, named = by_oid.get(relation.oid), by_name.get(relation.name)
        if relation.root is not None:
            root = by_oid.get(relation.root)
            parts = [] if root is None else [partition.oid for partition in root.partitions or ()]
            if matters(root) and relation.oid not in parts:
                unlike[root.name] = "had a partition for a while"
            if matters(own):
                unlike[own.name] = "was a partition for a while"
        elif own is named:
            if matters(own) and not own.matches(relation, fewest.get(own.name)):
                unlike[own.name] = _OTHER_SHAPE
        else:
            # Rows of it are in the log under another name, and under its own those of another table.
            unlike |= {table.name: "had another name for a while" for table in (own, named) if matters(table)}
    return unlike


def copied_up_to(position: LogPosition, names: Iterable[str]) -> dict[str, int]:
    """By relation up to which point of the log its rows do not matter: the table has them, or its copy saw
    them."""
    restarting = restarts(position.marker)
    return {name: max(position.point, restarting[name].point if name in restarting else 0) for name in names}


def _tables_to_copy(
    position: LogPosition, tables: Sequence[CapturedTable], follows: bool, anew: Collection[str]
) -> dict[str, Difference]:
    changes = _all_differences(position, tables)
    for name, change in changes.items():
        # A column without a value needs no copy, and is a change all the same.
        refused = not follows and (change or change.columns_before is not None)
        if refused:
            raise table_changed_error(name, f"{change.change or 'got other columns'},")
    # As a whole, whatever else happened to it.
    whole = {table.name: Difference("must be copied") for table in tables if table.name in anew}
    return {name: change for name, change in changes.items() if change} | whole


def _position_with_copies(
    position: LogPosition,
    tables: Sequence[CapturedTable],
    chunks: Mapping[str, tuple[str, ...]],
    restarting: Mapping[str, Restart],
) -> LogPosition:
    kept = {table.name for table in tables} - chunks.keys()
    partial = [
        table.name for table in tables if table.keys and table.name in chunks.keys() - restarting.keys()
    ]
    bulk = position.bulk.copied_again(kept, chunks, partial)
    still = {
        name: restart
        for name, restart in restarts(position.marker).items()
        if name in bulk.waiting and name in kept
    }
    columns_before = _columns_before(position, [table for table in tables if table.name in kept])
    # Complete with the next commit, so that the lake's table gets a version with the columns. What is left of
    # an earlier copy, such as where its rows begin anew, does not count again. Nothing is copied: rows that
    # the log lacks are still missing.
    widened = dict.fromkeys(columns_before.keys() - bulk.waiting, position.point)
    bulk = replace(
        bulk,
        pass_at={**bulk.pass_at, **widened},
        partial=tuple(sorted({*bulk.partial, *widened})),
    )
    fewest = {name: count for name, count in fewest_columns(position.marker).items() if name in kept}
    for name, count in columns_before.items():
        fewest[name] = min(count, fewest.get(name, count))
    marker = {
        **server_log_entries(
            position.marker, with_last_transaction=all(table.name in position.marker for table in tables)
        ),
        **restart_entries(still | dict(restarting)),
        **fewest_columns_entries(fewest),
        **{table.name: table.fingerprint for table in tables},
    }
    return replace(position, marker=marker, bulk=bulk)


def _columns_before(position: LogPosition, tables: Sequence[CapturedTable]) -> dict[str, int]:
    """Of tables that got columns without a value: how many they had. The log may have rows behind the
    position that are as old."""
    return {
        name: change.columns_before
        for name, change in _all_differences(position, tables).items()
        if change.columns_before is not None
    }


def restart_rows(relations: Sequence[str], position: LogPosition) -> list[dict[str, object]]:
    """The rows of the log table from which on these relations, which have keys, begin anew. Without a key the
    copy itself replaces all rows."""
    restarting = restarts(position.marker)
    return [
        dict.fromkeys(ARROW_SCHEMA.names)
        | {
            # No transaction ends here: records of the log begin at multiples of 8.
            "point": restarting[name].point + 1,
            "sequence": 0,
            "transaction": restarting[name].transaction,
            "relation": name,
            "operation": "truncate",
        }
        for name in relations
        if name in restarting
    ]


def table_changed_error(name: str, change: str) -> IngestError:
    return IngestError(
        "CAPTURED_TABLE_CHANGED",
        f"The table {name} {change} since it is captured",
        hint=f"run again: the table is copied; if it is refused again, {COPY_AGAIN}",
    )
