"""Is the log that the server has the one that the table took so far?

System, database and slot may have the same names, and yet the server may be another one: a standby that was
promoted, or a copy of its files that was started. Numbers in the log are given a second time there. So a
position has more than the slot and a number, in its marker under names that no relation has:

.timeline     the server's timeline: promotion, and recovery from a backup, begin another one
.taken        the last transaction of which the table has rows: its end, its number and its time
.copied       the end of the log behind the last copied rows of which the table may show something
.anew.<name>  of a relation that is copied again: behind which point of the log its rows begin anew, and a
              transaction that all its copied rows have seen
.fewest.<name>  of a relation that got columns: so many columns its rows in the log have at least

The log is read by `pg_logical_slot_peek_binary_changes`, which can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import ExecStatus

from tautochrone.errors import IngestError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.postgresql.connection import lsn_number, lsn_text
from tautochrone.sources.postgresql.messages import DecodedBatch
from tautochrone.sources.postgresql.server import ServerState, one_row

__all__ = [
    "COPY_AGAIN",
    "OTHER_HISTORY",
    "Restart",
    "SlotNotContinuousError",
    "fewest_columns",
    "fewest_columns_entries",
    "first_marker",
    "has_last_transaction",
    "last_transaction_point",
    "log_lost_error",
    "marker_after_batch",
    "peeked_messages",
    "position_on_timeline",
    "restart_entries",
    "restarts",
    "server_log_entries",
    "with_long_xids",
]


_TIMELINE, _LAST_TRANSACTION, _COPIED, _ANEW, _FEWEST = ".timeline", ".taken", ".copied", ".anew.", ".fewest."


class SlotNotContinuousError(Exception):
    """The server's log is no continuation of what the table took. Its text is a part of a sentence."""


@dataclass(frozen=True, slots=True)
class Restart:
    """From where on the rows of a relation count that is copied again.

    Attributes:
        point: what the log has up to here is in the copied rows.
        transaction: all copied rows have seen it, and no earlier ones of the relation.
    """

    point: int
    transaction: int

    def __str__(self) -> str:
        return f"{self.point}/{self.transaction}"


def first_marker(state: ServerState) -> dict[str, str]:
    """What the marker of a new position has."""
    return {_TIMELINE: str(state.timeline)}


def server_log_entries(marker: Mapping[str, str], *, with_last_transaction: bool) -> dict[str, str]:
    """What a marker says of the server's log, without relations.

    Args:
        with_last_transaction: false where relations came that were not read before: events of them may be
            behind the last transaction of which the table has rows.
    """
    names = (_TIMELINE, _COPIED, *([_LAST_TRANSACTION] if with_last_transaction else []))
    return {name: text for name, text in marker.items() if name in names}


def restarts(marker: Mapping[str, str]) -> dict[str, Restart]:
    return {
        name.removeprefix(_ANEW): Restart(*map(int, text.split("/")))
        for name, text in marker.items()
        if name.startswith(_ANEW)
    }


def restart_entries(restarting: Mapping[str, Restart]) -> dict[str, str]:
    """As entries of a marker."""
    return {f"{_ANEW}{name}": str(restart) for name, restart in restarting.items()}


def fewest_columns(marker: Mapping[str, str]) -> dict[str, int]:
    """Of relations that got columns: how many their rows in the log have at least."""
    return {
        name.removeprefix(_FEWEST): int(text) for name, text in marker.items() if name.startswith(_FEWEST)
    }


def fewest_columns_entries(fewest: Mapping[str, int]) -> dict[str, str]:
    """As entries of a marker."""
    return {f"{_FEWEST}{name}": str(count) for name, count in fewest.items()}


def last_transaction_point(position: LogPosition) -> int | None:
    """The end of the last transaction of which the table has rows; None: not known."""
    text = position.marker.get(_LAST_TRANSACTION)
    return int(text.split("/")[0]) if text else None


def has_last_transaction(batch: DecodedBatch, position: LogPosition) -> bool:
    """Whether a batch that begins before it has the last transaction that the table took, unchanged."""
    point = last_transaction_point(position)
    return point is None or batch.transaction_at(point) == position.marker[_LAST_TRANSACTION]


def marker_after_batch(
    position: LogPosition, batch: DecodedBatch, waiting: Mapping[str, int]
) -> dict[str, str]:
    """The marker behind a batch: what it took, and without relations that are complete."""
    marker = {
        name: text
        for name, text in position.marker.items()
        if not name.startswith(_ANEW) or name.removeprefix(_ANEW) in position.bulk.waiting
    }
    if batch.rows.num_rows:
        marker[_LAST_TRANSACTION] = batch.transaction_at(batch.rows["point"][-1].as_py()) or ""
    if waiting:
        marker[_COPIED] = str(max(int(marker.get(_COPIED, "0")), *waiting.values()))
    return marker


def position_on_timeline(url: str, state: ServerState, position: LogPosition) -> LogPosition:
    """A position on the server's timeline. After a promotion it may be an earlier point: where the standby's
    own log begins, if the table has nothing of what the old server wrote behind it.

    Raises:
        SlotNotContinuousError: the server lacks what the table took, or is no successor.
        psycopg.Error: the history of timelines could not be read.
    """
    if position.log != state.log:
        return position
    current = str(state.timeline)
    known = position.marker.get(_TIMELINE, current)
    marker = {**position.marker, _TIMELINE: current}
    if known == current:
        return position if position.marker == marker else replace(position, marker=marker)
    fork = (
        _end_of_timeline(_timeline_history(url, state.timeline), int(known))
        if state.timeline > int(known)
        else None
    )
    if fork is None:
        raise SlotNotContinuousError(
            f"the server is on timeline {current}, which does not follow timeline {known} that the log table "
            f"was read from: it is a former primary, or was restored from an older backup"
        )
    copied = int(position.marker.get(_COPIED, "0"))
    taken = last_transaction_point(position)
    needed = max(position.point if taken is None else taken, copied, *position.bulk.pass_at.values(), 0)
    if needed > fork:
        raise SlotNotContinuousError(
            f"the server was promoted, or restored, at {lsn_text(fork)} (timeline {current}), and the log "
            f"table has rows of the former server up to {lsn_text(needed)} that this one does not have"
        )
    return replace(position, point=min(position.point, fork), marker=marker)


def _timeline_history(url: str, timeline: int) -> str:
    """By the replication protocol: functions that read the server's files need more rights."""
    with psycopg.connect(make_conninfo(url, replication="database"), autocommit=True) as connection:
        result = connection.pgconn.exec_(f"TIMELINE_HISTORY {timeline}".encode())
        if result.status != ExecStatus.TUPLES_OK:
            raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        return (result.get_value(0, 1) or b"").decode(errors="replace")


def _end_of_timeline(history: str, timeline: int) -> int | None:
    """Where a timeline ended, by the history of a later one.

    >>> _end_of_timeline("1\\t0/3000000\\tno recovery target\\n\\n2\\t0/5000000\\tx", 1) == 0x3000000
    True
    """
    for line in history.splitlines():
        fields = line.split()
        if len(fields) > 1 and fields[0] == str(timeline):
            return lsn_number(fields[1])
    return None


COPY_AGAIN = "copy the database again: --full-refresh of the log table and of the captured tables"
OTHER_HISTORY = "the server's log has other transactions than the log table took: it was restored, or copied,"
_OWN_SLOT = "a slot of its own, capture(…, slot=…), and copy the database again there only"
_QUERY = (
    "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, %s::int, "
    "'proto_version', '1', 'publication_names', %s, 'messages', %s)"
)


def peeked_messages(
    connection: psycopg.Connection,
    slot: str,
    end: int,
    max_messages: int | None,
    *,
    publication: str,
    log_name: str,
    with_marks: bool = False,
) -> list[bytes]:
    """Messages of whole transactions. The server adds a transaction as a whole before it looks at the bounds.

    Args:
        with_marks: also what somebody wrote into the log by `pg_logical_emit_message`.

    Raises:
        IngestError: `CAPTURE_PUBLICATION_MISSING`; `SOURCE_LOG_LOST`.
    """
    identifier = sql.Identifier(publication).as_string(connection)
    arguments = (slot, lsn_text(end), max_messages, identifier, "true" if with_marks else "false")
    warnings: list[str] = []

    def warned(notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(str(notice.message_primary))

    connection.add_notice_handler(warned)
    try:
        with connection.cursor(binary=True) as cursor:
            cursor.execute(_QUERY, arguments)
            messages = [data for (data,) in cursor]
    except psycopg.errors.UndefinedObject as error:
        raise _publication_missing_error(publication, log_name, str(error)) from error
    except psycopg.errors.UndefinedFile as error:
        # The slot does not know it: files were deleted, or pg_resetwal was run.
        raise IngestError(
            "SOURCE_LOG_LOST",
            f"The server of {log_name} has no longer the log that the replication slot {slot} keeps: "
            f"{' '.join(str(error).split())}",
            hint=COPY_AGAIN,
        ) from error
    finally:
        connection.remove_notice_handler(warned)
    if warnings:
        # PostgreSQL 18 leaves out changes of a missing publication, and only warns.
        raise _publication_missing_error(publication, log_name, warnings[0])
    return messages


def log_lost_error(
    log_name: str, position: LogPosition, reason: str, *, may_be_shared: bool = False
) -> IngestError:
    hint = f"if the url leads to the wrong server, mend it; otherwise {COPY_AGAIN}"
    if may_be_shared:
        hint += f"; if a copy of this lake runs too, first give one of them {_OWN_SLOT}"
    stopped = f"{log_name} cannot go on from {lsn_text(position.point)}"
    return IngestError("SOURCE_LOG_LOST", f"{stopped}: {reason}", hint=hint)


def _publication_missing_error(publication: str, log_name: str, message: str) -> IngestError:
    return IngestError(
        "CAPTURE_PUBLICATION_MISSING",
        f"The publication {publication} of {log_name} was not there when changes were "
        f"written: {' '.join(message.split())}",
        hint=f"the log lacks these changes; {COPY_AGAIN}, which makes the publication anew",
    )


def with_long_xids(connection: psycopg.Connection, rows: pa.Table) -> pa.Table:
    """The log has the lower 32 bits of a transaction's number. The full number is the one that is nearest to
    those of today; rows of the log are less than 2³¹ transactions old, or the server would have stopped."""
    if not rows.num_rows:
        return rows
    (newest,) = one_row(connection, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    short = rows["transaction"].to_numpy()
    distance = ((short - newest + 2**31) & 0xFFFFFFFF) - 2**31
    index = rows.schema.get_field_index("transaction")
    return rows.set_column(index, rows.schema.field(index), pa.array(np.asarray(newest + distance, np.int64)))
