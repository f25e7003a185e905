"""A table with other columns or another key takes the place of the older one.

MariaDB ends a transaction at each statement that creates, alters or renames a table, so a rename cannot be
part of the commit. A view can be switched by a row instead:

1. `taut_next_…` is created beside the table, and the row of `taut_swaps` says what it shall be.
2. Before the commit the table is called `taut_older_…`, and a view has its name, by one RENAME. The view
   shows the older table until the row says that the swap is decided, and the next one afterwards.
3. The commit fills the next table, and decides the swap in the same transaction as all other tables.
4. The next table gets the name of the view, by one RENAME, and what is left of the older one is dropped.

A process that dies between two of these leaves whole tables. The next owner finishes a swap that is decided,
and takes any other back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import types as spark

from tautochrone.model.names import TableName
from tautochrone.sinks.common.mirrored import HASH, KEY, quoted

__all__ = ["Swap", "Swaps", "all_columns"]


class Swap:
    """The names of the objects of one mirrored table, without their database."""

    def __init__(self, plain: str) -> None:
        digest = hashlib.md5(plain.encode(), usedforsecurity=False).hexdigest()
        self.plain = plain
        self.next, self.older, self.view = (f"taut_{role}_{digest}" for role in ("next", "older", "view"))


class Swaps:
    """See the module docstring. A cursor is one in autocommit where nothing else is said."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._swaps = quoted(database, "taut_swaps")

    def create_registry(self, cursor: Any) -> None:
        cursor.execute(
            f"CREATE TABLE IF NOT EXISTS {self._swaps} (name VARCHAR(64) CHARACTER SET utf8mb4 "
            "COLLATE utf8mb4_bin PRIMARY KEY, mirrors TEXT NOT NULL, key_columns LONGTEXT NOT NULL, "
            "schema_json LONGTEXT NOT NULL, is_decided BOOLEAN NOT NULL) "
            "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
        )

    def names(self, cursor: Any) -> list[str]:
        """The mirrored tables with an unfinished swap. In any transaction."""
        cursor.execute(f"SELECT name FROM {self._swaps}")
        return [str(name) for (name,) in cursor.fetchall()]

    def begin(self, cursor: Any, swap: Swap, table: TableName, schema: Any, key: Sequence[str]) -> None:
        """Step 1, without the table itself."""
        cursor.execute(f"DROP TABLE IF EXISTS {self._quoted(swap.next)}")
        cursor.execute(
            f"REPLACE INTO {self._swaps} VALUES (%s, %s, %s, %s, FALSE)",
            (swap.plain, str(table), json.dumps(list(key)), schema.json()),
        )

    def put_view(self, cursor: Any, swap: Swap, before: Sequence[str], after: Sequence[str]) -> None:
        """Step 2. Repeatable.

        Args:
            before: the columns of the older table, with those of the sink.
            after: those of the next one.
        """
        if self._is_view(cursor, swap.plain):
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

    def decide(self, cursor: Any, swap: Swap) -> None:
        """Step 3, in the open transaction of `cursor`."""
        cursor.execute(f"UPDATE {self._swaps} SET is_decided = TRUE WHERE name = %s", (swap.plain,))

    def settle(self, cursor: Any, swap: Swap, registry: str) -> None:
        """Step 4, or take an undecided swap back. Repeatable.

        Args:
            registry: the table that says what each mirrored table is, as SQL.
        """
        cursor.execute(
            f"SELECT key_columns, schema_json, is_decided FROM {self._swaps} WHERE name = %s", (swap.plain,)
        )
        row = cursor.fetchone()
        is_decided = row is not None and bool(row[2])
        name, following, older, view = map(self._quoted, (swap.plain, swap.next, swap.older, swap.view))
        if self._is_view(cursor, swap.plain):
            rows = following if is_decided else older
            cursor.execute(f"RENAME TABLE {name} TO {view}, {rows} TO {name}")
        if row is None:
            return
        cursor.execute(f"DROP VIEW IF EXISTS {view}")
        cursor.execute(f"DROP TABLE IF EXISTS {older}, {following}")
        if is_decided:
            cursor.execute(
                f"UPDATE {registry} SET key_columns = %s, schema_json = %s WHERE name = %s",
                (row[0], row[1], swap.plain),
            )
        cursor.execute(f"DELETE FROM {self._swaps} WHERE name = %s", (swap.plain,))

    def _is_view(self, cursor: Any, name: str) -> bool:
        cursor.execute(
            "SELECT table_type FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            (self._database, name),
        )
        row = cursor.fetchone()
        return row is not None and row[0] == "VIEW"

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
