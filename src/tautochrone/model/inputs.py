"""Inputs of queries that nobody writes as a table: time, and files that a batch query reads.

Time as an input: a query that asks for it reads a table that nobody wrote.

`NOW` has a version for every microsecond, `today(zone)` one for every day in a time zone. A checkpoint names
one version of each, so all views of a checkpoint know the same time, and it can be asked for again.

Files that a batch query reads, as an input: a lake table of ours holds the rows that each file gave.

The table is brought into agreement with the files before a cut. Its version in the cut stands for the
listing, so all views of a checkpoint read the same files, and again after a crash.
"""

from __future__ import annotations

import hashlib
import re

from tautochrone.model.names import TableName

__all__ = [
    "FILE_PATH",
    "FILE_STAMP",
    "NOW",
    "describe_clock",
    "describe_files",
    "file_table",
    "is_clock",
    "is_file_table",
    "is_same_source",
    "time_zone_of",
    "today",
]


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
    return "the time" if clock == NOW else f"the date in {time_zone_of(clock)}"


def time_zone_of(clock: TableName) -> str:
    """The time zone of `today(zone)`."""
    return clock.table


FILE_PATH, FILE_STAMP = "__taut_path", "__taut_stamp"
"""Columns besides those of the files: the file of a row, and what tells its content from a later one."""

_NAMESPACE, _PREFIX = ("_tautochrone",), "files__"


def file_table(catalog: str, paths: str, source: str, schema: str) -> TableName:
    """The table of one source of files.

    Args:
        catalog: the lake's.
        paths: of the source; its last part makes the name readable.
        source: all that decides what is read: format, paths, options.
        schema: of the rows.
    """
    label = re.sub(r"[^a-z0-9]+", "_", paths.rstrip("/*").rsplit("/", 1)[-1].lower()).strip("_")[:40]
    digests = "__".join(hashlib.sha256(text.encode()).hexdigest()[:16] for text in (source, schema))
    return TableName(catalog, _NAMESPACE, f"{_PREFIX}{label or 'all'}__{digests}")


def is_file_table(name: TableName) -> bool:
    return name.namespace == _NAMESPACE and name.table.startswith(_PREFIX)


def describe_files(table: TableName) -> str:
    """The files of a table as messages name them."""
    return f"the files in {table.table.removeprefix(_PREFIX).rsplit('__', 2)[0]}"


def is_same_source(first: TableName, second: TableName) -> bool:
    """Whether two tables of files differ in the columns alone."""
    sources = [name.table.rpartition("__")[0] for name in (first, second)]
    return is_file_table(first) and is_file_table(second) and sources[0] == sources[1]
