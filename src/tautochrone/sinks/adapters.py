"""Which formats of sinks and participants have an adapter.

An adapter is a function from a sink's name and options to a `model.sink.Sink`. Packages announce theirs as an
entry point of the group `tautochrone.sinks`; `register_sink` does it in the running process. The project's
own are rows of `ADAPTERS`, and only they open participants, which carry out the decisions of transactions
that other programs drive.

A new sink of the project is a folder beside this module and one row here, then what
`tests/sinks/test_adapters.py` asks for: a page in docs/, its row in docs/sinks.md, and the suite
`testing.sink_conformance` in its tests; for a publication, which takes files instead of rows, that of
`tests/sinks/publications`.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, cast

from tautochrone.errors import SettingsError, SinkError
from tautochrone.model.names import TableName
from tautochrone.model.sink import Sink, SinkDeclaration
from tautochrone.model.transactions import Participant
from tautochrone.sinks.common.errors import not_observed_error
from tautochrone.sinks.common.existing import ExistingTable, TableToCompare

__all__ = [
    "ADAPTERS",
    "Adapter",
    "ConfiguredParticipant",
    "SinkFactory",
    "can_observe",
    "check_mirrored_table",
    "check_sink",
    "columns_of_key",
    "compare_mirrored_tables",
    "examine_sink",
    "has_adapter",
    "known_formats",
    "observe_sink",
    "open_participant",
    "open_sink",
    "register_sink",
    "uses_keys",
]

_PACKAGE = "tautochrone.sinks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One format. What it names is imported when it is used.

    Attributes:
        opens: the function that opens a sink (`SinkFactory`), as `module:function`.
        reads_options: the function that refuses wrong options, and asks no server.
        examines: the function that logs in and writes nothing; it answers a sentence about the server.
        observes: the function that opens a sink only to look at it (`SinkFactory`): nothing is written, also
            by what is asked of the sink. Empty: the format has none.
        checks_table: the function from name, options, table, schema and key to what the table is called in
            the sink. It refuses what the format cannot have, and asks no server. Empty: there is none.
        compares_tables: the function from name, options and tables to what the system has of each. It writes
            nothing. Empty: there is none.
        opens_participant: that of a participant; empty: the format has none.
        takes_files: it is a publication (`model.sink.TakesFiles`), with a suite of tests of its own.
        uses_keys: it does something with the key of a table. Others ignore it, also one that the table lacks.
        page: in docs/.
    """

    opens: str
    reads_options: str
    examines: str
    observes: str = ""
    checks_table: str = ""
    compares_tables: str = ""
    opens_participant: str = ""
    takes_files: bool = False
    uses_keys: bool = True
    page: str


ADAPTERS: Mapping[str, Adapter] = {
    "clickhouse": Adapter(
        opens=f"{_PACKAGE}.clickhouse:open_clickhouse_sink",
        reads_options=f"{_PACKAGE}.clickhouse.options:server_options",
        examines=f"{_PACKAGE}.clickhouse.sink:examine_clickhouse_sink",
        observes=f"{_PACKAGE}.clickhouse.sink:observe_clickhouse_sink",
        checks_table=f"{_PACKAGE}.clickhouse.tables:check_table",
        compares_tables=f"{_PACKAGE}.clickhouse.sink:compare_clickhouse_tables",
        opens_participant=f"{_PACKAGE}.clickhouse.participant:open_clickhouse_participant",
        uses_keys=False,
        page="clickhouse.md",
    ),
    "postgresql": Adapter(
        opens=f"{_PACKAGE}.postgresql:open_postgresql_sink",
        reads_options=f"{_PACKAGE}.postgresql.options:postgresql_options",
        examines=f"{_PACKAGE}.postgresql.options:examine_postgresql_sink",
        observes=f"{_PACKAGE}.postgresql.options:observe_postgresql_sink",
        checks_table=f"{_PACKAGE}.postgresql.tables:check_table",
        compares_tables=f"{_PACKAGE}.postgresql.tables:compare_tables",
        page="postgresql-sink.md",
    ),
    "mariadb": Adapter(
        opens=f"{_PACKAGE}.mariadb:open_mariadb_sink",
        reads_options=f"{_PACKAGE}.mariadb.options:mariadb_options",
        examines=f"{_PACKAGE}.mariadb.options:examine_mariadb_sink",
        observes=f"{_PACKAGE}.mariadb.options:observe_mariadb_sink",
        checks_table=f"{_PACKAGE}.mariadb.tables:check_table",
        compares_tables=f"{_PACKAGE}.mariadb.tables:compare_tables",
        page="mariadb-sink.md",
    ),
    "starrocks": Adapter(
        opens=f"{_PACKAGE}.starrocks:open_starrocks_sink",
        reads_options=f"{_PACKAGE}.starrocks.options:starrocks_options",
        examines=f"{_PACKAGE}.starrocks.options:examine_starrocks_sink",
        checks_table=f"{_PACKAGE}.starrocks.tables:check_table",
        page="starrocks-sink.md",
    ),
    "kafka-transactional": Adapter(
        opens=f"{_PACKAGE}.kafka:open_kafka_sink",
        reads_options=f"{_PACKAGE}.kafka.options:kafka_options",
        examines=f"{_PACKAGE}.kafka.options:examine_kafka_sink",
        observes=f"{_PACKAGE}.kafka:open_kafka_sink",
        checks_table=f"{_PACKAGE}.kafka.topics:check_table",
        page="kafka-sink.md",
    ),
    "delta-publication": Adapter(
        opens=f"{_PACKAGE}.delta:open_delta_publication",
        reads_options=f"{_PACKAGE}.delta.sink:delta_options",
        examines=f"{_PACKAGE}.delta.sink:examine_delta_publication",
        observes=f"{_PACKAGE}.delta:open_delta_publication",
        takes_files=True,
        uses_keys=False,
        page="publications.md",
    ),
    "hudi-publication": Adapter(
        opens=f"{_PACKAGE}.hudi:open_hudi_publication",
        reads_options=f"{_PACKAGE}.hudi.sink:hudi_options",
        examines=f"{_PACKAGE}.hudi.sink:examine_hudi_publication",
        observes=f"{_PACKAGE}.hudi:open_hudi_publication",
        takes_files=True,
        uses_keys=False,
        page="publications.md",
    ),
    "paimon-publication": Adapter(
        opens=f"{_PACKAGE}.paimon:open_paimon_publication",
        reads_options=f"{_PACKAGE}.paimon.sink:paimon_options",
        examines=f"{_PACKAGE}.paimon.sink:examine_paimon_publication",
        observes=f"{_PACKAGE}.paimon:open_paimon_publication",
        takes_files=True,
        uses_keys=False,
        page="publications.md",
    ),
}
"""By format."""


SinkFactory = Callable[[str, Mapping[str, str]], Sink]

_GROUP = "tautochrone.sinks"
_registered: dict[str, SinkFactory] = {}
_lock = threading.Lock()


def register_sink(format_name: str, factory: SinkFactory) -> None:
    """Make an adapter known to this process. The same name again replaces the adapter.

    Example:
        >>> register_sink("my-store", lambda name, options: MyStoreSink(options["url"]))  # doctest: +SKIP
    """
    with _lock:
        _registered[format_name.lower()] = factory


def has_adapter(format_name: str) -> bool:
    """Whether sinks of this format are delivered through the port."""
    with _lock:
        return format_name.lower() in _registered or format_name.lower() in _installed()


def known_formats() -> list[str]:
    """The formats with an adapter, by name."""
    with _lock:
        return sorted({*_registered, *_installed()})


def check_sink(name: str, format_name: str, options: Mapping[str, str]) -> bool:
    """Refuse what `open_sink` would refuse without asking the system.

    An adapter of another package is asked if its factory has a function `check_options`.

    Returns:
        Whether it is known already that the sink needs a key.

    Raises:
        SinkError: as `open_sink`.
    """
    own = _own_adapter(format_name)
    if own is not None:
        read_options = EntryPoint(format_name, own.reads_options, _GROUP).load()
        return bool(getattr(read_options(name, options), "needs_key", False))
    check = getattr(_factory(name, format_name), "check_options", None)
    if check is not None:
        check(name, options)
    return False


def check_mirrored_table(declaration: SinkDeclaration, table: TableName, schema: Any) -> str | None:
    """Refuse a table that the format of its sink cannot have: a type, a name, a key. No system is asked.

    An adapter of another package is asked if its factory has a function `check_table`.

    Args:
        schema: a pyspark StructType.

    Returns:
        What the table is called in the sink; None: the adapter has no such function.

    Raises:
        SinkError: as `Sink.ensure`, as far as it needs no server.
    """
    name, options = declaration.name, declaration.options
    own = _own_adapter(declaration.format)
    if own is None:
        check = getattr(_factory(name, declaration.format), "check_table", None)
    else:
        check = EntryPoint(name, own.checks_table, _GROUP).load() if own.checks_table else None
    return None if check is None else str(check(name, options, table, schema, declaration.key_of(table)))


def compare_mirrored_tables(
    declaration: SinkDeclaration, schemas: Mapping[TableName, Any]
) -> Iterator[ExistingTable | SinkError]:
    """What the system of a sink already has of its tables, or what is against one. Nothing is written.

    Args:
        declaration: of the sink.
        schemas: the lake's, pyspark StructTypes; a table without one is left out.

    Returns:
        Nothing for formats that cannot be asked.

    Raises:
        SinkError: as `open_sink`.
    """
    own = _own_adapter(declaration.format)
    if own is None or not own.compares_tables:
        return
    tables = [
        TableToCompare(table, schemas[table], declaration.key_of(table))
        for table in declaration.tables
        if table in schemas
    ]
    compare = EntryPoint(declaration.name, own.compares_tables, _GROUP).load()
    yield from compare(declaration.name, declaration.options, tables)


def uses_keys(format_name: str) -> bool:
    """Whether sinks of a format do something with the key of a table.

    An adapter of another package does, unless its factory has an attribute `uses_keys` that is false.
    """
    own = _own_adapter(format_name)
    if own is not None:
        return own.uses_keys
    return bool(getattr(_factory(format_name, format_name), "uses_keys", True))


def columns_of_key(sink: str, table: TableName, columns: Sequence[str], key: Sequence[str]) -> list[str]:
    """The columns of a key as a table spells them.

    Raises:
        SinkError: `SINK_COLUMN_MISSING`, the table has no such column.

    Example:
        >>> columns_of_key("mirror", TableName("lake", ("shop",), "orders"), ["Id", "price"], ["id"])
        ['Id']
    """
    names = {column.lower(): column for column in columns}
    lacking = [column for column in key if column.lower() not in names]
    if lacking:
        raise SinkError(
            "SINK_COLUMN_MISSING",
            f"Sink {sink}: {table} has no column {', '.join(lacking)}, which its key names",
            hint=f"Its columns: {', '.join(names.values())}. A key of this table alone: "
            f'[sinks.{sink}.keys] {table.table} = ["…"] in tautochrone.toml.',
            parameters={"sink": sink, "table": str(table)},
            sqlstate="42703",
        )
    return [names[column.lower()] for column in key]


def examine_sink(name: str, format_name: str, options: Mapping[str, str]) -> str | None:
    """Log in to the system of a sink, and write nothing.

    An adapter of another package is asked if its factory has a function `examine`.

    Returns:
        A sentence about what answers; None: the adapter has no such function.

    Raises:
        SinkError: as `open_sink`, such as `SINK_NOT_REACHABLE` and `SINK_LOGIN_REFUSED`.
    """
    own = _own_adapter(format_name)
    if own is not None:
        examine = EntryPoint(format_name, own.examines, _GROUP).load()
    else:
        examine = getattr(_factory(name, format_name), "examine", None)
    return None if examine is None else str(examine(name, options))


def can_observe(format_name: str) -> bool:
    """Whether `observe_sink` knows how to open sinks of a format.

    Example:
        >>> can_observe("postgresql"), can_observe("starrocks")
        (True, False)
    """
    return _observing_factory(format_name, format_name) is not None


def observe_sink(name: str, format_name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink of a format of `can_observe` only to look at it, without a deadline. Nothing is written,
    also by `published`, `highest_fence`, `changed_tables` and audits.

    The factory of an adapter of another package has an attribute `observe`: a function of the same arguments.

    Raises:
        SinkError: as `open_sink`; `SINK_OBJECT_MISSING`, of a sink of which something is missing, also by
            `published`; `SINK_NOT_OBSERVED`, who opens this one writes.
    """
    observe = _observing_factory(name, format_name)
    if observe is None:
        raise not_observed_error(name, f"the format {format_name}")
    return observe(name, options)


def _observing_factory(name: str, format_name: str) -> SinkFactory | None:
    own = _own_adapter(format_name)
    if own is None:
        return getattr(_factory(name, format_name), "observe", None)
    observe: SinkFactory | None = EntryPoint(name, own.observes, _GROUP).load() if own.observes else None
    return observe


def open_sink(name: str, format_name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink. Some adapters create the tables of their own that are missing.

    Raises:
        SinkError: `SINK_FORMAT_UNKNOWN`, no adapter has this format; `SINK_OPTION_MISSING`, or whatever the
            adapter has against its options.
    """
    return _factory(name, format_name)(name, options)


def _own_adapter(format_name: str) -> Adapter | None:
    """The project's own adapter, unless somebody replaced it."""
    key = format_name.lower()
    with _lock:
        own = ADAPTERS.get(key)
        is_own = own is not None and key not in _registered and _installed()[key].value == own.opens
    return own if is_own else None


def _factory(name: str, format_name: str) -> SinkFactory:
    with _lock:
        factory = _registered.get(format_name.lower())
        installed = _installed().get(format_name.lower())
    if factory is None and installed is not None:
        factory = installed.load()
    if factory is None:
        raise SinkError(
            "SINK_FORMAT_UNKNOWN",
            f"Sink {name}: no adapter for the format {format_name} is installed",
            hint="known formats: " + (", ".join(known_formats()) or "none"),
            parameters={"sink": name, "format": format_name},
        )
    return factory


@cache
def _installed() -> Mapping[str, EntryPoint]:
    built_in = [EntryPoint(name, adapter.opens, _GROUP) for name, adapter in ADAPTERS.items()]
    return {entry.name.lower(): entry for entry in (*built_in, *entry_points(group=_GROUP))}


_PARTICIPANT_FORMATS = {
    name: own.opens_participant for name, own in ADAPTERS.items() if own.opens_participant
}


class ConfiguredParticipant(Participant, Protocol):
    """A participant that settings describe."""

    @property
    def description(self) -> str:
        """Its target, for people, without secrets."""

    def check(self) -> None:
        """Ask the target whether it lets us in.

        Raises:
            Exception: it does not, or does not answer.
        """


def open_participant(
    name: str, format_name: str, options: Mapping[str, str], location: str
) -> ConfiguredParticipant:
    """A participant of these options. Nothing is connected to.

    Args:
        location: of its section in the settings, for errors.

    Raises:
        SettingsError: `PARTICIPANT_FORMAT_UNKNOWN`; what the format has against the options.
    """
    factory = _PARTICIPANT_FORMATS.get(format_name.lower())
    if factory is None:
        raise SettingsError(
            "PARTICIPANT_FORMAT_UNKNOWN",
            f"Participant {name} has the format {format_name or '(none)'}",
            hint=f"Formats of participants: {', '.join(sorted(_PARTICIPANT_FORMATS))}",
            location=location,
        )
    module, _, function = factory.partition(":")
    opened = cast(
        "Callable[[str, Mapping[str, str], str], ConfiguredParticipant]",
        getattr(importlib.import_module(module), function),
    )
    return opened(name, options, location)
