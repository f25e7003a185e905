"""Messages of the log by `pg_logical_slot_peek_binary_changes`, which can be repeated."""

from __future__ import annotations

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import sql

from tautochrone.errors import IngestError
from tautochrone.model.source_position import LogPosition
from tautochrone.sources.postgresql.connection import lsn_text
from tautochrone.sources.postgresql.server import one_row

__all__ = ["COPY_AGAIN", "OTHER_HISTORY", "log_lost", "peeked_messages", "with_long_xids"]

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
        raise _publication_missing(publication, log_name, str(error)) from error
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
        raise _publication_missing(publication, log_name, warnings[0])
    return messages


def log_lost(
    log_name: str, position: LogPosition, reason: str, *, may_be_shared: bool = False
) -> IngestError:
    hint = f"if the url leads to the wrong server, mend it; otherwise {COPY_AGAIN}"
    if may_be_shared:
        hint += f"; if a copy of this lake runs too, first give one of them {_OWN_SLOT}"
    stopped = f"{log_name} cannot go on from {lsn_text(position.point)}"
    return IngestError("SOURCE_LOG_LOST", f"{stopped}: {reason}", hint=hint)


def _publication_missing(publication: str, log_name: str, message: str) -> IngestError:
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
