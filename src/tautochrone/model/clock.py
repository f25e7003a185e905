"""Time as an input: a query that asks for it reads a table that nobody wrote.

`NOW` has a version for every microsecond, `today(zone)` one for every day in a time zone. A checkpoint names
one version of each, so all views of a checkpoint know the same time, and it can be asked for again.
"""

from __future__ import annotations

from tautochrone.model.names import TableName

__all__ = ["NOW", "describe_clock", "is_clock", "today", "zone_of"]

_CATALOG = "tautochrone"
_TODAY = ("clock", "today")

NOW = TableName(_CATALOG, ("clock",), "now")
"""One row, one TIMESTAMP. Its versions are microseconds since 1970."""


def today(zone: str) -> TableName:
    """One row, one DATE, in a time zone as Spark spells it. Its versions are days since 1970."""
    return TableName(_CATALOG, _TODAY, zone)


def is_clock(name: TableName) -> bool:
    return name == NOW or (name.catalog == _CATALOG and name.namespace == _TODAY)


def describe_clock(clock: TableName) -> str:
    """A clock as messages name it."""
    return "the time" if clock == NOW else f"the date in {zone_of(clock)}"


def zone_of(clock: TableName) -> str:
    """The time zone of `today(zone)`."""
    return clock.table
