"""Names and numbers that identify things, also inputs of queries that nobody writes as a table.

Ids are `NewType`s so that mypy keeps them apart.

A query that asks for the time reads a table that nobody wrote. `NOW` has a version for every microsecond,
`today(zone)` one for every day in a time zone. A checkpoint names one version of each, so all views of a
checkpoint know the same time, and it can be asked for again.

A lake table of ours holds the rows of the files that a batch query reads. It is brought into agreement with
the files before a cut. Its version in the cut stands for the listing, so all views of a checkpoint read the
same files, and again after a crash.

A *shadow table* is a lake table of ours over the data files of a table in another lake format, which a query
reads by its path (`model.foreign`). It is brought to that table's newest version before a cut.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType

__all__ = [
    "FILE_PATH",
    "FILE_STAMP",
    "NOW",
    "CheckpointNumber",
    "Fence",
    "TableName",
    "Version",
    "describe_clock",
    "describe_files",
    "describe_input",
    "file_table",
    "is_clock",
    "is_file_table",
    "is_same_source",
    "is_shadow_table",
    "label_of",
    "quoted",
    "shadow_table",
    "time_zone_of",
    "today",
]


CheckpointNumber = NewType("CheckpointNumber", int)
"""Numbers only grow and are never reused within one store."""

Fence = NewType("Fence", int)
"""Grows at every takeover of a job; a writer with an older one is refused."""

Version = NewType("Version", str)
"""A lake table's snapshot in the format's own spelling (Iceberg: the snapshot id in decimal)."""


def quoted(*parts: str) -> str:
    """A name for Spark SQL, one part or several with dots between, whatever characters they hold."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A fully qualified table name: catalog, one or more namespace levels, table."""

    catalog: str
    namespace: tuple[str, ...]
    table: str

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.namespace, self.table))

    @property
    def without_catalog(self) -> str:
        """`database.table`, as catalogs themselves spell it."""
        return ".".join((*self.namespace, self.table))

    @property
    def with_underscores(self) -> str:
        """`database__table`. Two tables may have the same.

        >>> TableName("lake", ("shop", "eu"), "orders").with_underscores
        'shop__eu__orders'
        """
        return "__".join((*self.namespace, self.table))

    @property
    def sql(self) -> str:
        """The name quoted for Spark SQL."""
        return quoted(self.catalog, *self.namespace, self.table)

    @classmethod
    @lru_cache(maxsize=10_000)
    def parse(cls, text: str) -> TableName:
        """Parse `catalog.namespace….table`; parts must not contain dots.

        Raises:
            ValueError: fewer than three parts.
        """
        parts = text.split(".")
        if len(parts) < 3 or not all(parts):
            raise ValueError(f"not a fully qualified table name: {text!r}")
        return cls(parts[0], tuple(parts[1:-1]), parts[-1])


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
    digests = "__".join(hashlib.sha256(text.encode()).hexdigest()[:16] for text in (source, schema))
    return TableName(catalog, _NAMESPACE, f"{_PREFIX}{_label(paths)}__{digests}")


def _label(path: str) -> str:
    last = path.rstrip("/*").rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9]+", "_", last).strip("_")[:40] or "all"


def is_file_table(name: TableName) -> bool:
    return name.namespace == _NAMESPACE and name.table.startswith(_PREFIX)


def describe_files(table: TableName) -> str:
    """The files of a table as messages name them."""
    return f"the files in {table.table.removeprefix(_PREFIX).rsplit('__', 2)[0]}"


_SHADOW = re.compile(r"(delta|hudi|paimon)__(.+)__[0-9a-f]{16}")


def shadow_table(catalog: str, pipeline: str, table_format: str, path: str) -> TableName:
    """The shadow table of a foreign table. Two pipelines never share one.

    >>> shadow_table("lake", "p", "delta", "/data/My Orders/").table.rpartition("__")[0]
    'delta__my_orders'
    """
    digest = hashlib.sha256(f"{pipeline}\n{table_format}\n{path.rstrip('/')}".encode()).hexdigest()[:16]
    return TableName(catalog, _NAMESPACE, f"{table_format}__{_label(path)}__{digest}")


def is_shadow_table(name: TableName) -> bool:
    return name.namespace == _NAMESPACE and _SHADOW.fullmatch(name.table) is not None


def describe_input(name: TableName) -> str:
    """A table that a query reads, as messages name it.

    >>> describe_input(shadow_table("lake", "p", "delta", "/data/orders"))
    'the Delta table orders'
    """
    if is_file_table(name):
        return describe_files(name)
    shadow = _SHADOW.fullmatch(name.table) if name.namespace == _NAMESPACE else None
    return f"the {shadow[1].capitalize()} table {shadow[2]}" if shadow else str(name)


def label_of(name: TableName) -> str | None:
    """What a table of files, or a shadow table, is called after: the last part of the path; None for others.

    >>> label_of(shadow_table("lake", "p", "delta", "/data/orders"))
    'orders'
    """
    if is_file_table(name):
        return name.table.removeprefix(_PREFIX).rsplit("__", 2)[0]
    shadow = _SHADOW.fullmatch(name.table) if name.namespace == _NAMESPACE else None
    return None if shadow is None else shadow[2]


def is_same_source(first: TableName, second: TableName) -> bool:
    """Whether two tables of files differ in the columns alone."""
    sources = [name.table.rpartition("__")[0] for name in (first, second)]
    return is_file_table(first) and is_file_table(second) and sources[0] == sources[1]
