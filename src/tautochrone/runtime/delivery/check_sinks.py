"""What is wrong with the sinks of a project, as far as it can be known without asking their systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JJavaError

from tautochrone.errors import DefinitionError, SinkError
from tautochrone.model.sink import SinkDeclaration
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph
from tautochrone.project.queries import PythonQuery
from tautochrone.project.settings import SinkSettings
from tautochrone.project.sinks import StreamSink, sink_declarations, stream_sinks
from tautochrone.sinks import check_sink, has_adapter, known_formats

__all__ = ["check_sinks", "key_missing"]


def check_sinks(
    session: Any, definitions: Definitions, graph: Graph, settings: Mapping[str, SinkSettings]
) -> None:
    """Refuse sinks that a run could not open. Nothing is connected to.

    Raises:
        DefinitionError: as `sink_declarations` and `stream_sinks`; `SINK_FORMAT_UNKNOWN`, Spark has no data
            source of this name.
        SinkError: `SINK_FORMAT_UNKNOWN`, no adapter has this format; what is wrong with the options;
            `SINK_NEEDS_KEY`.
    """
    locations = {sink.name.table: str(sink.location) for sink in definitions.sinks.values()}
    for declaration in sink_declarations(definitions, graph, settings, has_adapter):
        try:
            needs_key = check_sink(declaration.name, declaration.format, declaration.options)
            if needs_key and not declaration.key:
                raise key_missing(declaration)
        except SinkError as error:
            # A sink that only the settings declare is in no definition file.
            error.location = error.location or locations.get(declaration.name)
            raise
    for sink in stream_sinks(definitions, graph, settings, has_adapter):
        # A registration belongs to the session of one query, which is not this one.
        if sink.format.lower() not in _registered_sources(sink):
            _require_data_source(session, sink)


def key_missing(declaration: SinkDeclaration) -> SinkError:
    return SinkError(
        "SINK_NEEDS_KEY",
        f"Sink {declaration.name} ({declaration.format}) needs to know which columns identify a row",
        hint=f'[sinks.{declaration.name}] key = ["id"] in tautochrone.toml',
        location=declaration.location or None,
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
