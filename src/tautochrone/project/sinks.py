"""Which tables are delivered to which sinks, and which flows Spark writes to a sink itself.

Deliveries follow from `create_sink` with append flows, from the table properties `tautochrone.sinks` and
`tautochrone.publish`, and from the sections `[sinks.NAME]` of `tautochrone.toml`. A sink of `create_sink`
whose format has no adapter is written by Spark's streaming queries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset
from tautochrone.model.names import TableName
from tautochrone.model.sink import PUBLICATIONS, DeliveryPolicy, SinkDeclaration
from tautochrone.project.definitions import Definitions, Sink, is_view
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.settings import SinkSettings
from tautochrone.project.table_properties import is_misspelt

__all__ = [
    "PUBLISH_PROPERTY",
    "SINKS_PROPERTY",
    "StreamSink",
    "sink_declarations",
    "stream_sinks",
    "without_sinks",
]


SINKS_PROPERTY = "tautochrone.sinks"
"""The property with the names of sinks, separated by commas."""
PUBLISH_PROPERTY = "tautochrone.publish"
"""The property with the formats in which a table is published, separated by commas."""

HasAdapter = Callable[[str], bool]


def sink_declarations(
    definitions: Definitions, graph: Graph, settings: Mapping[str, SinkSettings], has_adapter: HasAdapter
) -> tuple[SinkDeclaration, ...]:
    """All sinks of the project that are delivered through an adapter, by name.

    Raises:
        DefinitionError: `SINK_NOT_DECLARED`, a table names a sink that nothing declares;
            `SINK_DECLARED_TWICE`; `SINK_TABLE_NOT_FOUND`, a key is for another table;
            `SINK_KEY_AMBIGUOUS`, a table has two;
            `SINK_FLOW_TRANSFORMS`, `SINK_SOURCE_EXTERNAL`: an append flow that cannot
            be delivered as the changes of one table; `INVALID_SINKS`, the property on a dataset
            that cannot have it.
    """
    created = {sink.name.table: sink for sink in definitions.sinks.values()}
    tables: dict[str, dict[TableName, bool]] = {}
    for dataset in definitions.datasets.values():
        for name in _publications_of(dataset, settings):
            tables.setdefault(name, {})[dataset.name] = False
        for name in _names_of(dataset):
            if name not in created and name not in settings:
                raise DefinitionError(
                    "SINK_NOT_DECLARED",
                    f"Dataset {dataset.name} names the sink {name}, which nothing declares",
                    location=str(dataset.location),
                    hint=f"Declare it: [sinks.{name}] in tautochrone.toml, or create_sink(). Declared are: "
                    + (", ".join(sorted({*created, *_declared(settings)})) or "none"),
                    sqlstate="42704",
                )
            tables.setdefault(name, {})[dataset.name] = False
    for sink in definitions.sinks.values():
        if has_adapter(sink.format):
            for flow in graph.flows_of(sink.name):
                tables.setdefault(sink.name.table, {}).setdefault(_source_of(flow, definitions), True)
    return tuple(
        _declaration(name, created.get(name), settings.get(name, SinkSettings()), listed)
        for name, listed in sorted(tables.items())
    )


def without_sinks(definitions: Definitions) -> tuple[Definitions, frozenset[str]]:
    """The definitions without sinks and publications, and the names of these."""
    names = {sink.table for sink in definitions.sinks}
    datasets = {}
    for name, dataset in definitions.datasets.items():
        names.update(_names_of(dataset), _listed(dataset, PUBLISH_PROPERTY, "formats"))
        properties = {
            key: value
            for key, value in dataset.properties.items()
            if key not in (SINKS_PROPERTY, PUBLISH_PROPERTY)
        }
        datasets[name] = replace(dataset, properties=properties)
    flows = tuple(flow for flow in definitions.flows if flow.target not in definitions.sinks)
    return replace(definitions, datasets=datasets, flows=flows, sinks={}), frozenset(names)


def _declared(settings: Mapping[str, SinkSettings]) -> set[str]:
    """Publications have settings without being declared."""
    return {name for name, section in settings.items() if section.origin}


def _publications_of(dataset: Dataset, settings: Mapping[str, SinkSettings]) -> list[str]:
    """The names of the publications that take a table."""
    formats = set(_listed(dataset, PUBLISH_PROPERTY, "formats"))
    unknown = sorted(formats - PUBLICATIONS.keys())
    if unknown:
        raise _invalid_sink_error(
            dataset, f"is published as {', '.join(unknown)}", f"Formats are {', '.join(PUBLICATIONS)}."
        )
    names = [
        sink
        for name, sink in PUBLICATIONS.items()
        if name in formats or _takes(settings.get(sink, SinkSettings()), dataset)
    ]
    if names and is_view(dataset):
        if formats:
            raise _invalid_sink_error(
                dataset, f"is a {dataset.kind} and has no files to publish", "Publish a table."
            )
        return []
    return names


def _takes(publication: SinkSettings, dataset: Dataset) -> bool:
    if publication.publishes_format is None:
        return publication.publishes_all
    return publication.publishes_all or publication.publishes_format == dataset.format


def _names_of(dataset: Dataset) -> tuple[str, ...]:
    return _listed(dataset, SINKS_PROPERTY, "sinks")


def _listed(dataset: Dataset, property_name: str, what: str) -> tuple[str, ...]:
    """The names in a property, separated by commas."""
    for key in dataset.properties:
        if is_misspelt(key, property_name):
            hint = f"Did you mean '{property_name}'?"
            raise _invalid_sink_error(dataset, f"has a property '{key}'", hint)
    text = dataset.properties.get(property_name)
    if text is None:
        return ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(names):
        raise _invalid_sink_error(
            dataset, f"has '{property_name}' = '{text}'", f"Write names of {what} with commas between."
        )
    if is_view(dataset):
        raise _invalid_sink_error(
            dataset, f"is a {dataset.kind} and has no rows to deliver", "Mirror a table."
        )
    return names


def _invalid_sink_error(dataset: Dataset, problem: str, hint: str) -> DefinitionError:
    text = f"Dataset {dataset.name} {problem}"
    return DefinitionError("INVALID_SINKS", text, location=str(dataset.location), hint=hint)


def _source_of(flow: ResolvedFlow, definitions: Definitions) -> TableName:
    """The table whose new rows an append flow passes on unchanged."""
    location, name = str(flow.flow.location), flow.flow.name
    if flow.passes_on is None:
        raise DefinitionError(
            "SINK_FLOW_TRANSFORMS",
            f"The flow {name} into the sink {flow.flow.target.table} changes the rows that it reads",
            location=location,
            hint="Make its query a streaming table, and let the flow read that table as it is: "
            'spark.readStream.table("name").',
            sqlstate="0A000",
        )
    if flow.passes_on not in definitions.datasets:
        raise DefinitionError(
            "SINK_SOURCE_EXTERNAL",
            f"The flow {name} reads {flow.passes_on}, which no dataset of the project is",
            location=location,
            hint="Only datasets have versions at each checkpoint; read the table into one.",
            sqlstate="0A000",
        )
    return flow.passes_on


def _declaration(
    name: str, created: Sink | None, settings: SinkSettings, tables: Mapping[TableName, bool]
) -> SinkDeclaration:
    if created is not None and settings.format not in (None, created.format):
        raise DefinitionError(
            "SINK_DECLARED_TWICE",
            f"The sink {name} is created with the format {created.format} and set to {settings.format} at "
            f"{settings.origin}",
            location=str(created.location),
            hint="Leave the format out of one of the two.",
        )
    format_name = settings.format if created is None else created.format
    if format_name is None:
        raise DefinitionError(
            "SINK_NOT_DECLARED",
            f"The sink {name} has no format",
            location=settings.origin,
            hint=f'[sinks.{name}] format = "…" in tautochrone.toml',
            sqlstate="42704",
        )
    options = {**({} if created is None else created.options), **settings.options}
    return SinkDeclaration(
        name=name,
        format=format_name,
        tables=tuple(sorted(tables)),
        options=options,
        key=settings.key or _split_names(options.get("key", "")),
        keys=_keys(name, settings, tables),
        insert_only=frozenset(table for table, only_inserts in tables.items() if only_inserts),
        policy=settings.policy,
        attempts=settings.attempts,
        catch_up_ms=settings.catch_up_ms,
        location=settings.origin if created is None else str(created.location),
    )


def _keys(
    sink: str, settings: SinkSettings, tables: Collection[TableName]
) -> dict[TableName, tuple[str, ...]]:
    """The keys of tables that have one of their own."""
    keys: dict[TableName, tuple[str, ...]] = {}
    for text, columns in settings.keys.items():
        named = [table for table in tables if text in (table.table, table.without_catalog, str(table))]
        if len(named) != 1:
            goes = "several of its tables are" if named else "no table of it is"
            raise DefinitionError(
                "SINK_TABLE_NOT_FOUND",
                f"The sink {sink} has a key for {text}, and {goes} called so",
                location=settings.origin,
                hint="Its tables: " + ", ".join(sorted(table.without_catalog for table in tables)),
                sqlstate="42704",
            )
        (table,) = named
        if keys.get(table, columns) != columns:
            both = " and ".join(f"({', '.join(key)})" for key in (keys[table], columns))
            raise DefinitionError(
                "SINK_KEY_AMBIGUOUS",
                f"The sink {sink} has two keys for {table.without_catalog}: {both}",
                location=settings.origin,
                hint=f"Leave one of them in [sinks.{sink}.keys]; {table.table} and {table.without_catalog} "
                "are the same table.",
                sqlstate="42712",
            )
        keys[table] = columns
    return keys


def _split_names(text: str) -> tuple[str, ...]:
    parts: Iterable[str] = (part.strip() for part in text.split(","))
    return tuple(part for part in parts if part)


_FILE_FORMATS = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
_FUNCTION_FORMATS = frozenset({"foreach", "foreachbatch"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSink:
    """A sink that Spark itself writes.

    Attributes:
        target: the sink's name as flows resolve it.
        options: of Spark's data source; they may hold secrets.
        flows: each runs as a query of its own; none when no flow writes the sink.
    """

    name: str
    target: TableName
    format: str
    options: Mapping[str, str] = field(repr=False)
    flows: tuple[ResolvedFlow, ...]
    location: str

    @property
    def inputs(self) -> frozenset[TableName]:
        """Lake tables that the flows read."""
        return frozenset[TableName]().union(*(flow.inputs.tables for flow in self.flows))


def stream_sinks(
    definitions: Definitions,
    graph: Graph,
    settings: Mapping[str, SinkSettings],
    has_adapter: Callable[[str], bool],
) -> tuple[StreamSink, ...]:
    """All of them, by name.

    Raises:
        DefinitionError: `SINK_FORMAT_NEEDS_FUNCTION`, `SINK_FILES_TAKE_ONE_FLOW`,
            `SINK_POLICY_NEEDS_ADAPTER`, `SINK_DECLARED_TWICE`.
    """
    return tuple(
        _stream_sink(sink, graph, settings.get(sink.name.table, SinkSettings()))
        for _, sink in sorted(definitions.sinks.items())
        if not has_adapter(sink.format)
    )


def _stream_sink(sink: Sink, graph: Graph, settings: SinkSettings) -> StreamSink:
    flows = graph.flows_of(sink.name)
    _check_stream_sink(sink, flows, settings)
    return StreamSink(
        name=sink.name.table,
        target=sink.name,
        format=sink.format,
        options={**sink.options, **settings.options},
        flows=flows,
        location=str(sink.location),
    )


def _check_stream_sink(sink: Sink, flows: Sequence[ResolvedFlow], settings: SinkSettings) -> None:
    name = sink.name.table
    if sink.format.lower() in _FUNCTION_FORMATS:
        raise DefinitionError(
            "SINK_FORMAT_NEEDS_FUNCTION",
            f"The sink {name} has the format {sink.format}, and create_sink takes no function",
            location=str(sink.location),
            hint="Write a Python data source with a streamWriter, register it with "
            "spark.dataSource.register, and give its name as the format.",
            sqlstate="0A000",
        )
    if len(flows) > 1 and sink.format.lower() in _FILE_FORMATS:
        raise DefinitionError(
            "SINK_FILES_TAKE_ONE_FLOW",
            f"The sink {name} writes {sink.format} files and has the flows "
            + ", ".join(flow.flow.name for flow in flows)
            + "; Spark keeps one log of batches in the folder and would skip the batches of all but one",
            location=str(flows[1].flow.location),
            hint="Give each flow a sink with a path of its own, or unite their queries in one flow.",
            sqlstate="0A000",
        )
    if settings.policy is not DeliveryPolicy.RETRY:
        raise DefinitionError(
            "SINK_POLICY_NEEDS_ADAPTER",
            f"The sink {name} has the policy {settings.policy}, but the format {sink.format} is written by "
            "Spark's own streaming queries",
            location=settings.origin,
            hint="Leave the policy out; only formats with an adapter have one.",
            sqlstate="0A000",
        )
    if settings.format is not None and settings.format.lower() != sink.format.lower():
        raise DefinitionError(
            "SINK_DECLARED_TWICE",
            f"The sink {name} is created with the format {sink.format} and set to {settings.format} at "
            f"{settings.origin}",
            location=str(sink.location),
            hint="Leave the format out of one of the two.",
        )
