"""The checks of `taut doctor` that need Spark: it starts, it sees the catalog, the definitions fit
together, and the Kafkas and databases that they read, and the sinks, answer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.app.finding import Finding, State, check, skipped
from tautochrone.app.locate import Options
from tautochrone.app.open import Project, log_event
from tautochrone.errors import SinkError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import catalog_unreachable_error, start_session
from tautochrone.model.counts import counted
from tautochrone.model.reason import Reason
from tautochrone.model.sink import SinkDeclaration
from tautochrone.model.source import SetsTablesAside
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.project.settings import Settings, confs_without_project
from tautochrone.project.sinks import sink_declarations
from tautochrone.project.spec import PipelineSpec
from tautochrone.runtime.delivery.check_sinks import MirroredTable, mirrored_tables
from tautochrone.runtime.streams.change_logs import change_log_of, refused_tables
from tautochrone.sinks import compare_mirrored_tables, examine_sink, has_adapter
from tautochrone.sinks.common.existing import ExistingTable
from tautochrone.spark.session.settings import SparkSettings
from tautochrone.spark.sources.kafka import KafkaOptions, KafkaSource, check_cluster
from tautochrone.spark.sources.registry import sources_of

__all__ = ["spark_health_findings"]


def spark_health_findings(
    options: Options, located: tuple[PipelineSpec, Settings] | None
) -> Iterator[Finding]:
    """See the module docstring. Without a project only whether Spark starts."""
    with ExitStack() as exit_stack:
        if located is None:
            folder = exit_stack.enter_context(tempfile.TemporaryDirectory())
            spark, catalog = _spark_without_project(options), CatalogSettings.default(folder)
        else:
            spark, catalog = located[1].spark, located[1].catalog
        sessions: list[SparkSession] = []

        def session() -> str:
            started = time.monotonic()
            sessions.append(start_session(replace(spark, short_lived=True), catalog))
            exit_stack.callback(sessions[0].stop)
            return f"Spark {sessions[0].version} on {spark.master} in {time.monotonic() - started:.1f} s"

        finding = check("session", session)
        yield finding
        if located is None:
            return
        if not sessions:
            for name in ("catalog", "definitions", "kafka", "captures", "sinks"):
                yield skipped(name, "needs session")
            return
        yield check("catalog", lambda: _catalog(sessions[0], catalog))
        project = exit_stack.enter_context(Project(options, log_event, base=sessions[0], located=located))
        analysed: list[tuple[Definitions, Graph]] = []

        def definitions() -> str:
            analysed.append(project.analysed())
            loaded, graph = analysed[0]
            return f"{counted(len(graph.order), 'dataset')}, {counted(len(loaded.flows), 'flow')}"

        yield check("definitions", definitions)
        if not analysed:
            for name in ("kafka", "captures", "sinks"):
                yield skipped(name, "needs definitions")
            return
        yield from _kafkas(sessions[0], *analysed[0])
        yield from _captures(project, analysed[0][1])
        yield from _sinks(*analysed[0], project.settings)


def _spark_without_project(options: Options) -> SparkSettings:
    conf = confs_without_project(options.conf)
    if options.master is not None:
        conf["spark.master"] = options.master
    spark = SparkSettings(conf=conf)
    return replace(spark, master=conf.get("spark.master", spark.master))


def _catalog(session: SparkSession, catalog: CatalogSettings) -> str:
    file = catalog.sqlite_file
    if file is not None and not Path(file).exists():
        return f"{catalog.name} in {file}, made by the first run"
    try:
        count = len(session.sql(f"SHOW NAMESPACES IN `{catalog.name}`").collect())
    except Exception as error:
        if isinstance(error, PySparkException) or hasattr(error, "java_exception"):
            raise catalog_unreachable_error(catalog.name, error) from error
        raise
    return f"{catalog.name} ({catalog.kind}) answers, {count} namespaces"


def _kafkas(session: SparkSession, definitions: Definitions, graph: Graph) -> Iterator[Finding]:
    """One finding for each cluster, with all its topics that flows read."""
    clusters: dict[tuple[tuple[str, str], ...], KafkaOptions] = {}
    assert graph.analysis_session is not None
    for flow in definitions.flows:
        sources = sources_of(flow.evaluate(graph.analysis_session))
        for options in (source.read for source in sources if isinstance(source, KafkaSource)):
            client = {k: v for k, v in options.values.items() if k.startswith("kafka.")}
            key = tuple(sorted(client.items()))
            known_topics = clusters[key].topics if key in clusters else frozenset[str]()
            merged = {**client, "subscribe": ",".join(sorted(options.topics | known_topics))}
            clusters[key] = KafkaOptions(merged)
    if not clusters:
        yield skipped("kafka", "no flow streams from Kafka")
    for cluster in clusters.values():
        yield check("kafka", lambda cluster=cluster: _kafka(session, cluster))  # type: ignore[misc]


def _captures(project: Project, graph: Graph) -> Iterator[Finding]:
    """One finding for each database whose change log is read, and for each table that is set aside."""
    logs = [(flow, log) for flow in graph.flows.values() if (log := change_log_of(graph, flow)) is not None]
    if not logs:
        yield skipped("captures", "no flow reads the change log of a database")
    for flow, log in logs:
        yield check("captures", lambda log=log: f"{log.name}: {log.check_prerequisites()}")  # type: ignore[misc]
        aside = dict(log.set_aside()) if isinstance(log, SetsTablesAside) else {}

        def compared(flow: ResolvedFlow = flow, aside: dict[str, Reason] = aside) -> str:
            if project.has_lake:
                aside.update(refused_tables(graph, project.lake, flow.flow.target))
            return f"{counted(len(aside), 'table')} are set aside"

        finding = check("captures", compared)
        if finding.state is State.FAILED:
            # A catalog that does not answer must not end the other checks.
            yield finding
        for reason in aside.values():
            yield _set_aside_finding(log.name, reason)
        log.close()


def _set_aside_finding(log: str, reason: Reason) -> Finding:
    values = reason.params
    return Finding(
        check="captures",
        state=State.FAILED,
        detail=f"{log}: {values['relation']} is set aside, and the others go on. {values['text']}",
        error=str(values["error"]),
        hint=str(values["hint"]),
    )


def _sinks(definitions: Definitions, graph: Graph, settings: Settings) -> Iterator[Finding]:
    """One finding for each sink with an adapter: whether it can have its tables and lets us in. Nothing is
    written to it."""
    declared = sink_declarations(definitions, graph, settings.sinks, has_adapter)
    if not declared:
        yield skipped("sinks", "no sink of the project has an adapter")
    for sink in declared:
        finding = check("sinks", lambda sink=sink: _sink(sink, graph))  # type: ignore[misc]
        yield finding
        if finding.state is State.OK:
            yield from _tables_of_sink(sink, graph)


def _tables_of_sink(sink: SinkDeclaration, graph: Graph) -> Iterator[Finding]:
    """One finding for each table that the sink's system has, or will have."""
    comparisons: list[ExistingTable | SinkError] = []

    def compared() -> str:
        comparisons.extend(compare_mirrored_tables(sink, graph.schemas))
        return ""

    finding = check("sinks", compared)
    if finding.state is State.FAILED:
        yield finding
    for comparison in comparisons:

        def shown(comparison: ExistingTable | SinkError = comparison) -> str:
            if isinstance(comparison, SinkError):
                raise comparison
            return f"{sink.name}: {comparison}"

        yield check("sinks", shown)


def _sink(sink: SinkDeclaration, graph: Graph) -> str:
    try:
        mirrored = mirrored_tables(sink, graph.schemas)
        answer = examine_sink(sink.name, sink.format, sink.options)
    except SinkError as error:
        error.location = error.location or sink.location or None
        raise
    tables = [f"{mirror.table.without_catalog} is {_shown(mirror)}" for mirror in mirrored]
    return "; ".join([f"{sink.name}: {answer or f'the adapter of {sink.format} cannot be asked'}", *tables])


def _shown(mirror: MirroredTable) -> str:
    key = f", key {', '.join(mirror.key)}" if mirror.key else ""
    return f"{mirror.shown_as or mirror.format}{key}"


def _kafka(session: SparkSession, cluster: KafkaOptions) -> str:
    brokers = check_cluster(session, cluster)
    topics = ", ".join(sorted(cluster.topics)) or "none by name"
    return f"{cluster.brokers} answers, {brokers} broker{'s' * (brokers != 1)}; topics: {topics}"
