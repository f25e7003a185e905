"""Which table of rows stands for a mirrored table.

At first it is `taut_rows_orders`. A table of rows with other columns is built beside it, is called after the
owner's fence, as `taut_rows7_orders`, and takes its place at a publication. Its comment says at which one;
until its transaction is decided it says none. Of several the pointer tells which one readers see. So a
process that dies between two statements leaves the older one or the newer one, and the next owner drops the
other.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tautochrone.model.names import Fence
from tautochrone.sinks.clickhouse.engines import Engine
from tautochrone.sinks.clickhouse.statements import name_sql, text_sql
from tautochrone.sinks.clickhouse.types import MirroredColumn

__all__ = ["TAG", "RowTable", "RowTables", "comment_of", "common_columns"]

TAG = "[0-9]+b?"
"""What the tag in the name of a table of rows is, as a regular expression."""


@dataclass(frozen=True, slots=True)
class RowTable:
    """A table of rows.

    Attributes:
        tag: of its name; empty for the first one.
        since: the publication from which on it is read; None: it is not decided yet.
    """

    tag: str = ""
    since: int | None = 0

    def name(self, plain: str) -> str:
        return f"taut_rows{self.tag}_{plain}"

    def view(self, plain: str) -> str:
        return f"taut_read{self.tag}_{plain}"

    @property
    def fence(self) -> int:
        """Of the owner that created it."""
        return int(self.tag.rstrip("b") or 0)


class RowTables:
    """See the module docstring. Mirrored tables are named as in ClickHouse."""

    def __init__(self, engine: Engine, database: str) -> None:
        self._engine = engine
        self._database = database
        self._shown: dict[str, RowTable] = {}

    def listed(self, plain: str) -> list[RowTable]:
        """Those that there are of a mirrored table."""
        rows = self._engine.rows(
            f"SELECT name, comment FROM system.tables WHERE database = {text_sql(self._database)} "
            f"AND startsWith(name, 'taut_rows') AND endsWith(name, {text_sql('_' + plain)}) "
            "AND engine LIKE '%MergeTree'"
        )
        pattern = re.compile(rf"taut_rows((?:{TAG})?)_{re.escape(plain)}", re.DOTALL)
        matches = [(pattern.fullmatch(name), comment) for name, comment in rows]
        return [RowTable(match[1], _since(comment)) for match, comment in matches if match is not None]

    def shown(self, plain: str) -> RowTable:
        """The one that readers see; the first one if there is none."""
        if plain not in self._shown:
            decided = {table.since: table for table in self.listed(plain) if table.since is not None}
            shown = decided[min(decided)] if decided else RowTable()
            if len(decided) > 1:
                publication = self._publication()
                shown = decided[max((s for s in decided if s <= publication), default=min(decided))]
            self._shown[plain] = shown
        return self._shown[plain]

    def others(self, plain: str, fence: Fence) -> list[RowTable]:
        """Those that readers do not see, of this owner and older ones."""
        shown = self.shown(plain)
        return [table for table in self.listed(plain) if table.tag != shown.tag and table.fence <= fence]

    def next(self, plain: str, fence: Fence) -> RowTable:
        """A new one, which is to be created."""
        tag = str(int(fence))
        return RowTable(f"{tag}b" if self.shown(plain).tag == tag else tag, None)

    def waiting(self, plain: str, fence: Fence) -> RowTable | None:
        """The one that a transaction of this owner fills, or shall fill."""
        own = [table for table in self.others(plain, fence) if table.tag and table.fence == int(fence)]
        return own[0] if own else None

    def forget(self, plain: str | None = None) -> None:
        """Look again. None: at all of them."""
        if plain is None:
            self._shown.clear()
        else:
            self._shown.pop(plain, None)

    def has_several(self) -> bool:
        """Whether any table of rows is not the first of its name."""
        return bool(
            self._engine.rows(
                f"SELECT 1 FROM system.tables WHERE database = {text_sql(self._database)} "
                f"AND match(name, '^taut_rows{TAG}_') LIMIT 1"
            )
        )

    def _publication(self) -> int:
        newest = self._engine.rows(
            f"SELECT toString(publication) FROM {name_sql(self._database)}.taut_published "
            "ORDER BY fence DESC, publication DESC LIMIT 1"
        )
        return int(newest[0][0]) if newest else 0


def comment_of(since: int | None) -> str:
    """What the comment of a table of rows says."""
    return json.dumps({"since": since})


def _since(comment: str) -> int | None:
    try:
        since: int | None = json.loads(comment)["since"]
    except (ValueError, KeyError, TypeError):
        # The first table has no comment, or one of somebody else.
        return 0
    return since


_INTEGERS = ("Int8", "Int16", "Int32", "Int64")
_DECIMAL = re.compile(r"Nullable\(Decimal\((\d+), (\d+)\)\)")


def common_columns(older: list[MirroredColumn], newer: list[MirroredColumn]) -> list[tuple[str, str, str]]:
    """How one view shows rows of either table: by name the expressions over the older and the newer one.

    A column that widened is shown with the wider type, one that has an unrelated type as text, and one that
    only one of both has is NULL in the other.

    Example:
        >>> from pyspark.sql import types as spark
        >>> from tautochrone.sinks.clickhouse.types import column_type
        >>> kinds = spark.IntegerType(), spark.LongType()
        >>> columns = [MirroredColumn("n", column_type("mirror", "orders.n", kind), "") for kind in kinds]
        >>> common_columns(columns[:1], columns[1:])
        [('n', 'CAST(`n` AS Nullable(Int64))', '`n`')]
    """
    before, after = ({column.name: column.type.sql for column in columns} for columns in (older, newer))
    return [(name, *_common(name, before.get(name), after.get(name))) for name in before | after]


def _common(name: str, before: str | None, after: str | None) -> tuple[str, str]:
    column = name_sql(name)
    if before == after:
        return column, column
    text = f"CAST(toString({column}) AS Nullable(String))"
    if before is None or after is None:
        present = before or after or ""
        is_nullable = present.startswith("Nullable(")
        shown = column if is_nullable else text
        absent = f"CAST(NULL AS {present if is_nullable else 'Nullable(String)'})"
        return (absent, shown) if before is None else (shown, absent)
    if _widens(before, after):
        return f"CAST({column} AS {after})", column
    return text, text


def _widens(before: str, after: str) -> bool:
    names = [f"Nullable({name})" for name in _INTEGERS]
    if before in names and after in names:
        return names.index(before) < names.index(after)
    older, newer = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if older is not None and newer is not None:
        digits, more_digits = (int(match[1]) - int(match[2]) for match in (older, newer))
        return digits <= more_digits and int(older[2]) <= int(newer[2])
    return (before, after) == ("Nullable(Float32)", "Nullable(Float64)")
