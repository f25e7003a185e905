"""What fills the disk of a captured database, said before it is full."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import psycopg

from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sources.postgresql.server import one_row, pattern_of_slots

__all__ = ["Alarms", "open_transactions"]

LOG_BYTES = 4_000_000_000
"""So much log may a slot keep that has no bound. With a bound, `max_slot_wal_keep_size`, half of it."""
TRANSACTION_S = 300.0
"""So long may a transaction be open."""


class Alarms:
    """Looks at the slots of a capture and at the oldest transaction that writes."""

    def __init__(self) -> None:
        self._oldest: tuple[int, float] | None = None
        """The number of the oldest transaction, and since when it is known: roles without
        `pg_read_all_stats` do not see when others began."""

    def look(self, connection: psycopg.Connection, prefix: str, own: str) -> list[Reason]:
        return [*_slots(connection, prefix), *self._transactions(connection, own)]

    def _transactions(self, connection: psycopg.Connection, own: str) -> Iterator[Reason]:
        query = (
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
            # The end of a snapshot is behind the last transaction that ended, not behind those that run.
            "pg_snapshot_xmin(pg_current_snapshot()) < pg_snapshot_xmax(pg_current_snapshot()) OR EXISTS ("
            "SELECT FROM pg_locks WHERE locktype = 'transactionid' "
            "AND transactionid = pg_snapshot_xmin(pg_current_snapshot())::xid), "
            "(SELECT extract(epoch FROM max(now() - xact_start))::float FROM pg_stat_activity "
            "WHERE backend_xid = pg_snapshot_xmin(pg_current_snapshot())::xid), "
            "(SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots "
            "WHERE slot_name = %s)"
        )
        oldest, is_open, open_s, kept = one_row(connection, query, (own,))
        now = time.monotonic()
        if not is_open:
            self._oldest = None
            return
        if self._oldest is None or self._oldest[0] != oldest:
            self._oldest = (oldest, now)
        seconds = max(open_s or 0.0, now - self._oldest[1])
        if seconds >= TRANSACTION_S:
            yield Reason.of(
                ReasonCode.TRANSACTION_OPEN_AT_SOURCE,
                transaction=oldest,
                seconds=int(seconds),
                kept_mb=int((kept or 0) // 1_000_000),
            )


def _slots(connection: psycopg.Connection, prefix: str) -> Iterator[Reason]:
    query = (
        "SELECT slot_name, wal_status, (pg_current_wal_lsn() - restart_lsn)::bigint, "
        "pg_size_bytes(current_setting('max_slot_wal_keep_size')) FROM pg_replication_slots "
        "WHERE database = current_database() AND slot_name ~ %s ORDER BY slot_name"
    )
    for name, status, kept, bound in connection.execute(query, (pattern_of_slots(prefix),)).fetchall():
        limit = bound // 2 if bound > 0 else LOG_BYTES
        if status == "unreserved" or (kept is not None and kept > limit):
            yield Reason.of(
                ReasonCode.LOG_KEPT_AT_SOURCE,
                slot=name,
                kept_mb=int((kept or 0) // 1_000_000),
                bound_mb=int(bound // 1_000_000) if bound > 0 else None,
            )


def open_transactions(connection: psycopg.Connection) -> Sequence[Reason]:
    """Those that write, of all databases of the server: it waits for each of them before a slot begins."""
    query = (
        "SELECT backend_xid::text, 'process ' || pid, extract(epoch FROM now() - xact_start)::bigint "
        "FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() "
        "UNION ALL SELECT transaction::text, 'the prepared transaction ' || gid, "
        "extract(epoch FROM now() - prepared)::bigint FROM pg_prepared_xacts "
        "ORDER BY 3 DESC NULLS LAST LIMIT 5"
    )
    return [
        Reason.of(
            ReasonCode.COPY_WAITS_FOR_TRANSACTION,
            transaction=f"transaction {transaction}",
            session=session,
            seconds=seconds,
        )
        for transaction, session, seconds in connection.execute(query).fetchall()
    ]
