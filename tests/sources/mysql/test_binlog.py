"""Events of the binary log as a server sends them, from bytes."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

import pytest

from tautochrone.errors import IngestError
from tautochrone.sources.mysql.binlog import Kind, dump_events

_MARIADB_GTID, _TABLE_MAP, _WRITE, _XID = 162, 19, 23, 16


def _packet(kind: int, size: int, position: int) -> Any:
    body = bytes(size - 19)
    header = struct.pack("<IBIIIH", 1, kind, 7, size, position, 0)
    return SimpleNamespace(is_eof_packet=lambda: False, get_all_data=lambda: b"\0" + header + body)


def _server(*packets: Any) -> Any:
    """Answers the request of a reader."""
    answers = iter([*packets, SimpleNamespace(is_eof_packet=lambda: True)])
    return SimpleNamespace(
        query=lambda _text: None,
        _execute_command=lambda _command, _arguments: None,
        _read_packet=lambda: next(answers),
    )


def test_events_without_a_position_end_behind_their_size() -> None:
    """As MariaDB sends them since 11.4: only the first and the last of a transaction have one."""
    server = _server(
        _packet(Kind.FORMAT, 100, 0),
        _packet(_MARIADB_GTID, 42, 142),
        _packet(_TABLE_MAP, 50, 0),
        _packet(_WRITE, 49, 0),
        _packet(_XID, 31, 272),
    )
    events = list(dump_events(server, "bin.000003", 100))
    assert [(event.kind, event.start, event.end) for event in events] == [
        (_MARIADB_GTID, 100, 142),
        (_TABLE_MAP, 142, 192),
        (_WRITE, 192, 241),
        (_XID, 241, 272),
    ]


@pytest.mark.parametrize("position", [5, 0])
def test_a_file_over_four_gigabytes_is_refused(position: int) -> None:
    """Positions have 32 bits: behind it they begin anew."""
    server = _server(_packet(_MARIADB_GTID, 42, 2**32 - 10), _packet(_XID, 31, position))
    with pytest.raises(IngestError) as raised:
        list(dump_events(server, "bin.000003", 100))
    assert raised.value.error_class == "CHANGE_LOG_TRANSACTION_TOO_LARGE"
