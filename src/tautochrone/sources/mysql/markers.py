"""What the marker of a position has: the log's file, marks of transactions, and for each captured table the
fingerprint of its columns and the point behind which its rows count."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.tables import CapturedTable

__all__ = ["FILE", "GTID", "columns_of", "entry_of", "fingerprint_at", "gtid_text", "since_when"]

FILE, GTID = "file", "gtid"
_LACKS = "lacks."
"""Before the fingerprint of columns of which the lake's table may lack some: with `evolve` it is copied."""


def entry_of(table: CapturedTable, since: int, *, lacks_columns: bool = False) -> str:
    return f"{_LACKS if lacks_columns else ''}{table.fingerprint}@{since}"


def fingerprint_at(position: LogPosition, table: str) -> str:
    """Of a table's columns, which is another one where the lake's table may lack some."""
    return position.marker[table].partition("@")[0]


def columns_of(fingerprint: str) -> str:
    """The fingerprint of the columns themselves."""
    return fingerprint.removeprefix(_LACKS)


def since_when(position: LogPosition, table: str) -> int:
    return int(position.marker[table].partition("@")[2])


def gtid_text(gtids: Mapping[str, str]) -> str:
    return ",".join(sorted(gtids.values()))
