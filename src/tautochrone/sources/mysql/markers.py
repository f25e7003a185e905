"""What the marker of a position has: the log's file and its identity, marks of transactions, and for each
captured table the fingerprint of its columns and the point behind which its rows count.

After a failover it also has the server whose log is read now, and by how much its points are moved, so that
they are behind those of the former server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tautochrone.model.source_position import LogPosition
from tautochrone.sources.mysql.binlog import OFFSET_BITS, point_of
from tautochrone.sources.mysql.histories import History
from tautochrone.sources.mysql.tables import CapturedTable

__all__ = [
    "FILE",
    "FILE_ID",
    "GTID",
    "columns_of",
    "entry_of",
    "fingerprint_at",
    "gtid_text",
    "history_at",
    "history_entry",
    "moved_position",
    "prepared_at",
    "prepared_entry",
    "relations_of",
    "server_of",
    "shift_of",
    "since_when",
    "without_history",
]

FILE, GTID, FILE_ID = "file", "gtid", "file_id"
_HISTORY, _SERVER, _SHIFT, _PREPARED = "history", "server", "shift", "prepared"
_OF_SERVER = frozenset({FILE, GTID, FILE_ID, _HISTORY, _SERVER, _SHIFT, _PREPARED})
_MAX_HISTORY = 4096
"""Characters. A longer list of GTIDs is not kept with every position."""
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


def relations_of(position: LogPosition) -> frozenset[str]:
    return frozenset(position.marker.keys() - _OF_SERVER)


def server_of(position: LogPosition) -> str:
    """The name of the log that is read now. That of the position stays, since its points go on."""
    return position.marker.get(_SERVER, position.log)


def shift_of(position: LogPosition) -> int:
    """What is added to the points of the log that is read now."""
    return int(position.marker.get(_SHIFT, "0"))


def history_at(position: LogPosition, history: type[History]) -> History | None:
    """The transactions up to the position; None: they are not known."""
    text = position.marker.get(_HISTORY)
    return None if text is None else history.read(text)


def history_entry(history: History | None) -> dict[str, str]:
    """Of a marker; empty: the history is not known, or too long."""
    text = "" if history is None else history.text
    return {_HISTORY: text} if 0 < len(text) <= _MAX_HISTORY else {}


def prepared_at(position: LogPosition) -> dict[str, tuple[str, int]]:
    """Transactions that are prepared there, by their identifiers, with the file and offset of each."""
    entries = [entry.split("@") for entry in position.marker.get(_PREPARED, "").split()]
    return {xid: (file, int(offset)) for xid, file, offset in entries}


def prepared_entry(prepared: Mapping[str, tuple[str, int]]) -> dict[str, str]:
    """Of a marker."""
    text = " ".join(f"{xid}@{file}@{offset}" for xid, (file, offset) in prepared.items())
    return {_PREPARED: text} if text else {}


def without_history(marker: Mapping[str, str]) -> dict[str, str]:
    """Without what is written anew with each position."""
    return {name: text for name, text in marker.items() if name not in (_HISTORY, _PREPARED)}


def moved_position(
    position: LogPosition, server: str, file: str, file_id: str, offset: int, marks: str
) -> LogPosition:
    """The same position in the log of another server, behind all points of the former one."""
    here = point_of(file, offset)
    shift = (((position.point >> OFFSET_BITS) + 1) << OFFSET_BITS) - (here - offset)
    entries = {FILE: file, FILE_ID: file_id, GTID: marks, _SERVER: server, _SHIFT: str(shift)}
    # The other server's log has prepared transactions elsewhere.
    marker = {name: text for name, text in position.marker.items() if name != _PREPARED}
    return replace(position, point=here + shift, marker=marker | entries)
