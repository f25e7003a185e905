"""Checks of sinks before anything is written to them.

The declarations of a project are checked without asking the sinks' systems. A run asks whether a sink mirrors
its store: a checkpoint is a number of one store's incarnation, so numbers alone prove nothing. A sink goes on
from where it is when the store remembers exactly what it shows, or when the lake has the versions that the
sink says it shows. So the sinks of a store that was lost, restored or replaced can be used further.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError, RefreshError, SinkError
from tautochrone.model.lake import LakeTable
from tautochrone.model.names import TableName
from tautochrone.model.sink import Published, SinkDeclaration, SinkStatus
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph
from tautochrone.project.queries import PythonQuery
from tautochrone.project.settings import SinkSettings
from tautochrone.project.sinks import StreamSink, sink_declarations, stream_sinks
from tautochrone.sinks import (
    check_mirrored_table,
    check_sink,
    columns_of_key,
    has_adapter,
    known_formats,
    uses_keys,
)

__all__ = [
    "MirroredTable",
    "check_sinks",
    "mirrored_tables",
    "only_inserts_error",
    "require_keys",
    "require_own",
    "sink_input_error",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTable:
    """A table of a sink with an adapter.

    Attributes:
        shown_as: what the table is called in the sink; None: the adapter does not tell.
        inserts_only: the sink gets new rows, and no changes.
    """

    sink: str
    format: str
    table: TableName
    shown_as: str | None
    key: tuple[str, ...]
    inserts_only: bool
    location: str


def check_sinks(
    session: Any, definitions: Definitions, graph: Graph, settings: Mapping[str, SinkSettings]
) -> list[MirroredTable]:
    """Refuse sinks that a run could not open, and tables that they could not have. Nothing is connected to.

    Returns:
        What goes to sinks with an adapter, by sink and table.

    Raises:
        DefinitionError: as `sink_declarations` and `stream_sinks`; `SINK_FORMAT_UNKNOWN`, Spark has no data
            source of this name.
        SinkError: `SINK_FORMAT_UNKNOWN`, no adapter has this format; what is wrong with the options;
            as `mirrored_tables`.
    """
    mirrors: list[MirroredTable] = []
    locations = {sink.name.table: str(sink.location) for sink in definitions.sinks.values()}
    for declaration in sink_declarations(definitions, graph, settings, has_adapter):
        try:
            mirrors += mirrored_tables(declaration, graph.schemas)
        except SinkError as error:
            # A sink that only the settings declare is in no definition file.
            error.location = error.location or declaration.location or locations.get(declaration.name)
            raise
    for sink in stream_sinks(definitions, graph, settings, has_adapter):
        # A registration belongs to the session of one query, which is not this one.
        if sink.format.lower() not in _registered_sources(sink):
            _require_data_source(session, sink)
    return mirrors


def mirrored_tables(
    declaration: SinkDeclaration, schemas: Mapping[TableName, StructType]
) -> list[MirroredTable]:
    """The tables of a sink, after it and they are checked without the sink's system.

    Args:
        schemas: of tables. Those of tables that something outside gives are known once they are there.

    Raises:
        SinkError: what is wrong with the options; `SINK_NEEDS_KEY`; `SINK_COLUMN_MISSING`, a table lacks a
            column of its key; `SINK_TYPE_UNSUPPORTED`, `SINK_SCHEMA_UNSUPPORTED`,
            `SINK_COLUMN_NAME_RESERVED`: the sink cannot have a table.
    """
    if check_sink(declaration.name, declaration.format, declaration.options):
        require_keys(declaration)
    mirrored = []
    for table in declaration.tables:
        schema, key, shown_as = schemas.get(table), declaration.key_of(table), None
        if schema is not None:
            if uses_keys(declaration.format):
                columns_of_key(declaration.name, table, schema.names, key)
            shown_as = check_mirrored_table(declaration, table, schema)
        mirrored.append(
            MirroredTable(
                sink=declaration.name,
                format=declaration.format,
                table=table,
                shown_as=shown_as,
                key=key,
                inserts_only=table in declaration.insert_only,
                location=declaration.location,
            )
        )
    return mirrored


def require_keys(declaration: SinkDeclaration) -> None:
    """Refuse a table of which no key is known, for a sink that needs one.

    Raises:
        SinkError: `SINK_NEEDS_KEY`.
    """
    for table in declaration.tables:
        if not declaration.key_of(table):
            raise SinkError(
                "SINK_NEEDS_KEY",
                f"Sink {declaration.name} ({declaration.format}) needs to know which columns identify a row "
                f"of {table.without_catalog}",
                hint=f'[sinks.{declaration.name}] key = ["id"] in tautochrone.toml, or keys.{table.table} = '
                '["id"] for this table.',
                location=declaration.location or None,
            )


def only_inserts_error(declaration: SinkDeclaration, table: TableName, reason: object) -> SinkError:
    """The error of a sink that takes only new rows of a table, of which others changed."""
    return SinkError(
        "SINK_TAKES_INSERTS_ONLY",
        f"Sink {declaration.name} takes only new rows of {table}: {reason}",
        hint="Mirror the table by its property tautochrone.sinks into a sink that takes updates.",
        location=declaration.location or None,
        parameters={"sink": declaration.name, "table": str(table)},
        sqlstate="0A000",
    )


def sink_input_error(sink: str, table: TableName, reason: object) -> RefreshError:
    """The error of a sink that Spark writes, and whose input did not only gain rows."""
    return RefreshError(
        "STREAM_INPUT_CHANGED",
        f"The sink {sink} reads {table} as a stream, and {reason}",
        hint=f"a stream only takes appended rows; send all rows again with --full-refresh {sink}",
        sqlstate="55000",
    )


def _registered_sources(sink: StreamSink) -> set[str]:
    """The names of data sources that the definition files of the sink's flows register."""
    queries = [flow.flow.query for flow in sink.flows]
    return {
        source.name().lower()
        for query in queries
        if isinstance(query, PythonQuery)
        for source in query.project.data_sources
    }


def _require_data_source(session: Any, sink: StreamSink) -> None:
    state = session._jsparkSession.sessionState()  # noqa: SLF001
    if state.dataSourceManager().dataSourceExists(sink.format):
        return
    lookup = session._jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource  # noqa: SLF001
    try:
        lookup(sink.format, state.conf())
    except Py4JJavaError as error:
        message = " ".join(str(error.java_exception.getMessage()).split())
        raise DefinitionError(
            "SINK_FORMAT_UNKNOWN",
            f"The sink {sink.name} has the format {sink.format}, which neither an adapter nor Spark has: "
            f"{message[:300]}",
            location=sink.location,
            hint=f"Formats with an adapter: {', '.join(known_formats())}. For others Spark needs the package "
            "of the data source (spark.jars.packages), or spark.dataSource.register in a definition.",
            sqlstate="42704",
        ) from None


_EMPTY_IT = (
    "To make it a mirror of this store, empty it and run `taut sinks --forget {name}`, or use another sink."
)


def require_own(
    name: str,
    published: Published | None,
    status: SinkStatus | None,
    incarnation: str,
    tables: Mapping[TableName, LakeTable],
) -> None:
    """Refuse a sink that shows something else than checkpoints of this store.

    Args:
        tables: the lake's tables that the sink mirrors.
        incarnation: of the store.

    Raises:
        SinkError: `SINK_OF_ANOTHER_STORE`; `SINK_AHEAD_OF_STORE`, it shows a checkpoint of this store that
            neither the store nor the lake knows.
    """
    if published is None or _is_own(name, published, status, tables):
        return
    transaction = published.transaction
    delivered = None if status is None else status.delivered
    origins = {incarnation} | ({delivered.incarnation} if delivered is not None else set())
    hint = _EMPTY_IT.format(name=name)
    parameters = {
        "sink": name,
        "incarnation": transaction.incarnation,
        "checkpoint": str(transaction.checkpoint),
    }
    if transaction.sink == name and transaction.incarnation in origins:
        raise SinkError(
            "SINK_AHEAD_OF_STORE",
            f"Sink {name} shows checkpoint {transaction.checkpoint}, which neither this store nor the lake "
            "knows: both may be older copies",
            hint=hint,
            parameters=parameters,
            sqlstate="55000",
        )
    raise SinkError(
        "SINK_OF_ANOTHER_STORE",
        f"Sink {name} shows checkpoint {transaction.checkpoint} of store {transaction.incarnation}, "
        f"delivered as sink {transaction.sink}; this is store {incarnation}",
        hint=hint,
        parameters=parameters,
        sqlstate="55000",
    )


def _is_own(
    name: str, published: Published, status: SinkStatus | None, tables: Mapping[TableName, LakeTable]
) -> bool:
    transaction = published.transaction
    if transaction.sink != name:
        return False
    if status is not None:
        delivered = status.delivered
        # A lower number of the same store is an older copy of the sink: deltas start from what it shows.
        if (
            delivered is not None
            and delivered.incarnation == transaction.incarnation
            and delivered.checkpoint >= transaction.checkpoint
        ):
            return True
        if status.intent is not None and status.intent.transaction == transaction:
            return True
    return _is_of_lake(published, tables)


def _is_of_lake(published: Published, tables: Mapping[TableName, LakeTable]) -> bool:
    """Whether the lake has every version that the sink shows of the tables that it mirrors."""
    versions = {name: version for name, version in published.versions.items() if name in tables}
    return bool(versions) and all(tables[name].goes_back_to(version) for name, version in versions.items())
