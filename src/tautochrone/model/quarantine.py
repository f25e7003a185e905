"""Bad records: those on which a flow's own query fails, and the quarantine table that takes them."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from tautochrone.model.names import TableName

__all__ = ["QUARANTINE_SCHEMA", "BadRecords", "quarantine_of"]

QUARANTINE_SCHEMA = """
    topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY, value BINARY,
    headers ARRAY<STRUCT<key: STRING, value: BINARY>>,
    error_class STRING, reason STRING, flow STRING, batch BIGINT
"""
"""A record as the topic holds it, why it is bad, and which batch of which flow met it."""


class BadRecords(StrEnum):
    """What a flow does with a batch that holds a bad record."""

    FAIL = "fail"
    QUARANTINE = "quarantine"


def quarantine_of(table: TableName) -> TableName:
    """The quarantine table of `table`.

    >>> str(quarantine_of(TableName.parse("lake.default.events")))
    'lake.default.events__quarantine'
    """
    return replace(table, table=f"{table.table}__quarantine")
