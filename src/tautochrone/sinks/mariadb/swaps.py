"""A table with other columns or another key takes the place of the older one.

MariaDB ends a transaction at each statement that creates, alters or renames a table, so a rename cannot be
part of the commit. A view can be switched by a row instead:

1. `taut_next_…` is created beside the table, and a row of `taut_swaps` says so.
2. Before the commit the table is called `taut_older_…`, and a view has its name, by one RENAME. The view
   shows the older table until the row says that the swap is decided, and the next one afterwards.
3. The commit fills the next table, and decides the swap in the same transaction as all other tables.
4. The next table gets the name of the view, by one RENAME, and what is left of the older one is dropped.

A process that dies between two of these leaves whole tables. The next owner finishes a swap that is decided,
and takes any other back.

Each RENAME waits for transactions that read the table, for a short time only, as all later readers wait
behind it. Before the commit the delivery is tried again then. After it the view stays, deltas go to the table
behind it (`Swaps.rows_of`), and the swap is finished later, at the latest before the next one of that table.

The names of all objects have the fence of the owner that began the swap: a late statement of an older owner
changes nothing of a newer one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql
from pymysql.constants import ER
from pyspark.sql import types as spark

from tautochrone.model.names import TableName
from tautochrone.sinks.common.mirrored import HASH, KEY, quoted

__all__ = ["Swap", "Swaps", "all_columns"]

_VIEW = "VIEW"


class Swap:
    """The names of the objects of one mirrored table, without their database.

    Args:
        plain: what the mirrored table is called.
        fence: of the owner that began it.
    """

    def __init__(self, plain: str, fence: int) -> None:
        digest = hashlib.md5(plain.encode(), usedforsecurity=False).hexdigest()
        self.plain = plain
        self.fence = int(fence)
        self.next, self.older, self.view = (
            f"taut_{role}_{digest}_{self.fence}" for role in ("next", "older", "view")
        )
        self.leftovers = f"^taut_(next|older)_{digest}_[0-9]+$"
        """The tables of this and other swaps of it, as a regular expression."""


class Swaps:
    """See the module docstring. A cursor is one in autocommit where nothing else is said."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._swaps = quoted(database, "taut_swaps")

    def create_registry(self, cursor: Any) -> None:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._swaps} (name VARCHAR(64) CHARACTER SET utf8mb4 "
            "COLLATE utf8mb4_bin PRIMARY KEY, mirrors TEXT NOT NULL, fence BIGINT NOT NULL, "
            "is_decided BOOLEAN NOT NULL) "
            "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
        )

    def tables(self, cursor: Any) -> list[TableName]:
        """The mirrored tables with an unfinished swap. In any transaction."""
        cursor.execute(f"SELECT mirrors FROM {self._swaps} ORDER BY name")
        return [TableName.parse(str(name)) for (name,) in cursor.fetchall()]

    def rows_of(self, cursor: Any, plain: str) -> str:
        """The name of the table with the rows of a mirrored table. In any transaction."""
        unfinished = self._unfinished(cursor, plain)
        if unfinished is None or self._kind(cursor, plain) != _VIEW:
            return plain
        swap, is_decided = unfinished
        return swap.next if is_decided else swap.older

    def is_unfinished(self, cursor: Any, plain: str) -> bool:
        return self._unfinished(cursor, plain) is not None

    def begin(self, cursor: Any, swap: Swap, table: TableName) -> None:
        """Step 1, without the table itself."""
        cursor.execute(f"DROP TABLE IF EXISTS {self._quoted(swap.next)}")
        cursor.execute(
            f"REPLACE INTO {self._swaps} VALUES (%s, %s, %s, FALSE)", (swap.plain, str(table), swap.fence)
        )

    def put_view(self, cursor: Any, swap: Swap, before: Sequence[str], after: Sequence[str]) -> None:
        """Step 2. Repeatable.

        Args:
            before: the columns of the older table, with those of the sink.
            after: those of the next one.
        """
        if self._kind(cursor, swap.plain) == _VIEW:
            return
        name, following, older, view = map(self._quoted, (swap.plain, swap.next, swap.older, swap.view))
        decided = f"(SELECT 1 FROM {self._swaps} WHERE name = {_text(swap.plain)} AND is_decided)"
        selects = [
            f"SELECT {_listed(before, after, columns)} FROM {rows} WHERE {condition} {decided}"
            for rows, columns, condition in ((older, before, "NOT EXISTS"), (following, after, "EXISTS"))
        ]
        # A view needs the tables that it names; this one has another name so far.
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {older} LIKE {name}")
        cursor.execute(f"CREATE OR REPLACE VIEW {view} AS {' UNION ALL '.join(selects)}")
        cursor.execute(f"DROP TABLE {older}")
        cursor.execute(f"RENAME TABLE {name} TO {older}, {view} TO {name}")

    def decide(self, cursor: Any, swap: Swap) -> bool:
        """Step 3, in the open transaction of `cursor`; whether there was something to decide."""
        cursor.execute(
            f"UPDATE {self._swaps} SET is_decided = TRUE WHERE name = %s AND fence = %s AND NOT is_decided",
            (swap.plain, swap.fence),
        )
        return bool(cursor.rowcount == 1) and self._kind(cursor, swap.plain) == _VIEW

    def settle(self, cursor: Any, plain: str) -> bool:
        """Step 4, or take an undecided swap back. Repeatable.

        Returns:
            Whether it is over: readers may keep it from that.
        """
        unfinished = self._unfinished(cursor, plain)
        if unfinished is None:
            # A view of this name is somebody else's.
            return True
        swap, is_decided = unfinished
        name, following, older, view = map(self._quoted, (plain, swap.next, swap.older, swap.view))
        rows = swap.next if is_decided else swap.older
        try:
            if self._kind(cursor, plain) == _VIEW and self._kind(cursor, rows) is not None:
                cursor.execute(f"RENAME TABLE {name} TO {view}, {self._quoted(rows)} TO {name}")
            cursor.execute(f"DROP VIEW IF EXISTS {view}")
            cursor.execute(f"DROP TABLE IF EXISTS {', '.join((older, following, *self._left(cursor, swap)))}")
        except pymysql.Error as error:
            if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
                raise
            return False
        cursor.execute(f"DELETE FROM {self._swaps} WHERE name = %s", (plain,))
        return True

    def _unfinished(self, cursor: Any, plain: str) -> tuple[Swap, bool] | None:
        cursor.execute(f"SELECT fence, is_decided FROM {self._swaps} WHERE name = %s", (plain,))
        row = cursor.fetchone()
        return None if row is None else (Swap(plain, row[0]), bool(row[1]))

    def _left(self, cursor: Any, swap: Swap) -> list[str]:
        """Tables of earlier swaps."""
        cursor.execute(
            "SELECT table_name FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name REGEXP %s",
            (self._database, swap.leftovers),
        )
        own = (swap.next, swap.older)
        return [self._quoted(str(name)) for (name,) in cursor.fetchall() if name not in own]

    def _kind(self, cursor: Any, name: str) -> str | None:
        """What has a name; None: nothing."""
        cursor.execute(
            "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (self._database, name),
        )
        row = cursor.fetchone()
        return None if row is None else str(row[0])

    def _quoted(self, name: str) -> str:
        return quoted(self._database, name)


def all_columns(schema: spark.StructType, key: Sequence[str]) -> list[str]:
    """The columns of a table that readers may name, with the sink's own."""
    return [*schema.names, *([KEY] if key else []), HASH]


def _listed(before: Sequence[str], after: Sequence[str], columns: Sequence[str]) -> str:
    """All columns of both tables; NULL for those that one of them lacks."""
    # Names that differ in case are one.
    present: Mapping[str, str] = {name.lower(): name for name in columns}
    names = {name.lower(): name for name in (*before, *after)}
    return ", ".join(
        f"{quoted(present[low])} AS {quoted(name)}" if low in present else f"NULL AS {quoted(name)}"
        for low, name in names.items()
    )


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
