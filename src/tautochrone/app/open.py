"""Opening a project: from a spec file to a session, a store, a server and a job.

Errors that show without Spark (spec, settings) are reported before the six
seconds that Spark takes to start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.app.job_queries import JobQueries
from tautochrone.app.locate import Options, locate
from tautochrone.app.publications import published_as
from tautochrone.app.query_runner import SparkQueryRunner
from tautochrone.app.serving import announced
from tautochrone.app.storage import Identity, check_storage, identify, lake_id
from tautochrone.app.stores import existing_store, project_store, require_release
from tautochrone.app.target_roots import TargetRoots
from tautochrone.errors import DefinitionError, ForeignTableError
from tautochrone.iceberg.sessions.spark_sessions import empty_session, lake_conf, start_session
from tautochrone.iceberg.tables.catalog import IcebergLake
from tautochrone.meta import Store
from tautochrone.metaservice.openlineage import OpenLineage, transport_to
from tautochrone.metaservice.server import EmbeddedServer
from tautochrone.model import events
from tautochrone.model.catalog import Lookup
from tautochrone.model.closeable import Closeable
from tautochrone.model.effects import Effects
from tautochrone.model.foreign import ForeignSource
from tautochrone.model.names import TableName, quoted
from tautochrone.model.query import QueryRunner
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import SnapshotPosition
from tautochrone.project.analyse import analyse
from tautochrone.project.auto_cdc import with_snapshot_columns
from tautochrone.project.deferred_frames import existing_tables
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, datasets_of, shared_sources
from tautochrone.project.loading import load_definitions, settings_to_evaluate_with, with_quarantines
from tautochrone.project.settings import Settings, SinksOff
from tautochrone.project.sinks import sink_declarations, stream_sinks, without_sinks
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.sqltext import NameScope
from tautochrone.project.validate import mapped_datasets, mapping_reason
from tautochrone.redaction import redacted
from tautochrone.rest_catalog.metadata import metadata_source
from tautochrone.rest_catalog.read_points import ReadPoints
from tautochrone.runtime.job.effects import effects_from_environment
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.monitor import RunMonitor
from tautochrone.runtime.job.ownership import Ownership
from tautochrone.runtime.job.topology import JobTopology
from tautochrone.runtime.streams.change_logs import check_light_logs
from tautochrone.runtime.streams.flow_settings import check_bad_records, check_limits, check_recreated_topics
from tautochrone.sinks import has_adapter
from tautochrone.sources.foreign import ForeignTables, spark_schema
from tautochrone.spark.session.factory import stop_session, use_database
from tautochrone.spark.session.jars import Artifact, missing, resolve
from tautochrone.spark.session.java import find_java

__all__ = ["LocalReadPointServer", "Project", "log_event"]

_log = logging.getLogger(__name__)


def log_event(event: events.Event) -> None:
    """A listener for commands whose answer is something else than events."""
    _log.debug("%s", event)


T = TypeVar("T")


def _ingested(graph: Graph) -> frozenset[TableName]:
    """The tables of which a flow reads from outside the lake."""
    return frozenset(name for name in graph.order if graph.inputs(name).external_streams)


def _redacting(emit: events.Emit) -> events.Emit:
    """A listener that gets events without secrets."""

    def redacting(event: events.Event) -> None:
        emit(event.map_texts(redacted))

    return redacting


class LocalReadPointServer(Closeable):
    """This process's own REST catalog (see `model.catalog.ReadPointServer`)."""

    def __init__(self, store: Store, settings: Settings, queries: Callable[[], QueryRunner]) -> None:
        self.read_points = ReadPoints(store)
        source = metadata_source(settings.catalog)
        self._server = EmbeddedServer(
            self.read_points,
            source,
            store=store,
            queries=queries,
            published_as=partial(published_as, settings, store),
        )

    @property
    def uri(self) -> str:
        return self._server.uri

    @property
    def instance(self) -> str:
        """By which `/healthz` tells this server from others."""
        return self._server.instance

    @property
    def key(self) -> str:
        """What queries must show."""
        return self._server.key

    def show(self, read_point: str, lookup: Lookup) -> None:
        self.read_points.register(read_point, lookup)

    def close(self) -> None:
        self._server.close()
        self.read_points.unregister_all()


class Project(Closeable):
    """An opened project. Use as a context manager; a Spark that it started stops at the end.

    Args:
        options: the command line's options.
        emit: the listener of events.
        base: a session whose catalog is the project's lake, instead of a Spark of its own.
        effects: performs the durable steps; chosen by the environment when absent.
        short_lived: tune a Spark that is started here for one answer.
        located: spec and settings, if the caller has loaded them.
        renews_roots: a run: if it reads the tables of another target, they are taken at a new checkpoint.
    """

    def __init__(
        self,
        options: Options,
        emit: events.Emit,
        *,
        base: SparkSession | None = None,
        effects: Effects | None = None,
        short_lived: bool = False,
        located: tuple[PipelineSpec, Settings] | None = None,
        renews_roots: bool = False,
    ) -> None:
        self.spec, self.settings = located or locate(options)
        self._identity = check_storage(self.spec, self.settings)
        self._emit = _redacting(emit)
        self._exit_stack = ExitStack()
        self._server: LocalReadPointServer | None = None
        self._analysed: tuple[Definitions, Graph] | None = None
        if base is None:
            self._download_jars()
            short_lived = short_lived or self.settings.spark.short_lived
            base = start_session(replace(self.settings.spark, short_lived=short_lived), self.settings.catalog)
            self._exit_stack.callback(stop_session, base)
        self.base = base
        self._located = self.spec
        # What only a starting Spark takes cannot be set while definitions are evaluated.
        self.spec = replace(self.spec, configuration=settings_to_evaluate_with(base, self.spec.configuration))
        self.effects: Effects = effects or effects_from_environment()
        self._foreign_sources: Mapping[TableName, ForeignSource] = {}
        self._foreign_tables = ForeignTables(self.base)
        self.lake = IcebergLake(
            self.base,
            self.settings.catalog.name,
            self.effects,
            self.settings.durability,
            self.settings.foreign_folders,
        )
        self._renews_roots = renews_roots
        self._roots: TargetRoots | None = None
        if self.settings.target is not None and self.settings.target.roots_from is not None:
            self._roots = TargetRoots(self.spec, self.settings, self._emit, renews=renews_roots)
            self._exit_stack.callback(self._roots.close)

    def _download_jars(self) -> None:
        """Before Spark starts for the first time: one event for each jar, as some are large."""

        def started(artifact: Artifact, number: int, total: int) -> None:
            self._emit(events.JarDownload(artifact=str(artifact), number=number, total=total))

        if missing(self.settings.spark.artifacts):
            resolve(self.settings.spark.artifacts, find_java(), started)

    def analysed(self, full: Collection[str] | None = ()) -> tuple[Definitions, Graph]:
        """Load the definitions and resolve the whole graph. Writes nothing.

        Args:
            full: names of the datasets that will be rebuilt; None: all are.

        Raises:
            DefinitionError: what does not fit together.
            SettingsError: a rate limit that cannot be enforced, a quarantine that is impossible.
        """
        definitions = self._loaded(full)
        graph = analyse(definitions, self.base, self.settings.catalog.name, self._external_schema)
        if self._roots is not None and self._roots.take_also(_ingested(graph)):
            definitions = self._loaded(full)
            graph = analyse(definitions, self.base, self.settings.catalog.name, self._external_schema)
        check_light_logs(graph)
        check_limits(self._of_flows(self.settings.limits), graph)
        check_bad_records(self._of_flows(self.settings.bad_records), graph)
        check_recreated_topics(self._of_flows(self.settings.recreated_topics), graph)
        sink_declarations(graph.definitions, graph, self.settings.sinks, has_adapter)
        stream_sinks(graph.definitions, graph, self.settings.sinks, has_adapter)
        # Analysis decides the kind of some datasets.
        self._analysed = graph.definitions, graph
        return self._analysed

    def graphs_of_rename(self, names: Mapping[TableName, TableName]) -> tuple[Graph, Graph]:
        """The project when tables of the lake get other names: with the fingerprints that its queries had
        when they read the former ones, and with those that they have now. Writes nothing.

        Args:
            names: the new names by the former ones.

        Raises:
            DefinitionError: as of `analysed`.
        """
        definitions, catalog = self._loaded(()), self.settings.catalog.name
        former = {new: old for old, new in names.items()}

        def schema(name: TableName) -> StructType | None:
            # A rename that died may have renamed the table already.
            before = self._external_schema(former[name]) if name in former else None
            return before or self._external_schema(name)

        before = analyse(definitions, self.base, catalog, schema, former)
        return before, analyse(definitions, self.base, catalog, schema)

    def _loaded(self, full: Collection[str] | None) -> Definitions:
        """The definitions of all files. What is not done as it is written is reported."""
        catalog = self.settings.catalog.name
        # Files are imported in a session that cannot write: the real catalog would create its file.
        import_session = empty_session(self.base, catalog)
        use_database(import_session, catalog, self.spec.database or "default", create=True)
        with existing_tables(self._session_of_lake()):
            definitions = load_definitions(
                self.spec, import_session, catalog, self.settings.other_catalogs, self.settings.confs
            )
        self._foreign_sources = definitions.scope.foreign.sources
        self._report_settings(definitions)
        if self.settings.sinks_off is not None:
            definitions = self._without_sinks(definitions, self.settings.sinks_off)
        if self._roots is not None:
            definitions = self._roots.without_roots(definitions)
        definitions = with_quarantines(definitions, self.settings.bad_records)
        return with_snapshot_columns(
            definitions,
            partial(self._session_for_snapshots, import_session),
            self._external_schema,
            partial(self._snapshot_position, definitions.scope, full),
        )

    def _without_sinks(self, definitions: Definitions, off: SinksOff) -> Definitions:
        definitions, names = without_sinks(definitions)
        if names or off.names:
            self._emit(events.SinksOff(sinks=sorted({*names, *off.names}), reason=off.reason))
        return definitions

    def _of_flows(self, settings: Mapping[str, T]) -> Mapping[str, T]:
        """Settings by flow, without those of flows that another target runs."""
        flows = frozenset[str]() if self._roots is None else self._roots.flows
        return {name: setting for name, setting in settings.items() if name not in flows}

    def _report_settings(self, definitions: Definitions) -> None:
        """What of the settings and definitions is not done as it is written."""
        for setting in self.settings.ignored:
            self._emit(
                events.SettingIgnored(
                    setting=setting.name,
                    value=setting.text,
                    origin=setting.origin,
                    reason=setting.reason,
                )
            )
        catalog = self.settings.catalog.name
        for other_catalog, location in definitions.scope.mapped.items():
            reason = Reason.of(ReasonCode.CATALOG_MAPPED, catalog=other_catalog, lake_catalog=catalog)
            self._emit(events.CatalogMapped(catalog=other_catalog, location=location, reason=reason))
        for dataset in mapped_datasets(definitions, self.settings.other_formats):
            self._emit(
                events.TableFormatMapped(
                    dataset=str(dataset.name),
                    format=dataset.format,
                    location=str(dataset.location),
                    reason=mapping_reason(dataset),
                )
            )

    def _session_of_lake(self) -> Callable[[], SparkSession]:
        """A session on the lake's tables as they are now. Its catalog is opened when it is asked for."""
        session = self.base.newSession()
        for key, value in lake_conf(self.settings.catalog).items():
            session.conf.set(key, value)
        database = quoted(self.settings.catalog.name, self.spec.database or "default")

        def opened() -> SparkSession:
            # Not by PySpark: while a definition file runs, its methods are those for definition files.
            session._jsparkSession.sql(f"USE {database}")  # noqa: SLF001
            return session

        return opened

    def store(self) -> Store:
        """The store, for a command that reads it. It is closed with the project.

        Raises:
            MetaError: `META_STORE_MISSING`, `META_STORE_OTHER_RELEASE`.
        """
        return self._exit_stack.enter_context(existing_store(self.settings, self._emit))

    def _store_of_job(self, ownership: Ownership | None) -> Store:
        """The store, created as needed."""
        if ownership is None:
            require_release(self.settings)
        Path(self.settings.storage).mkdir(parents=True, exist_ok=True)
        store = project_store(self.settings, self._emit, ownership=ownership)
        return self._exit_stack.enter_context(store)

    def open_read_point_server(self, store: Store) -> LocalReadPointServer:
        """Start a REST catalog of this process. It is closed with the project."""
        server = LocalReadPointServer(store, self.settings, partial(self._query_runner, store))
        self._exit_stack.callback(server.close)
        self._server = server
        return server

    def _query_runner(self, store: Store) -> QueryRunner:
        """What answers `taut query` and `taut verify` while this process runs, over its Spark."""
        runner: SparkQueryRunner
        if self._analysed is None or self._server is None:
            runner = SparkQueryRunner(self.spec, self.settings, store, base=self.base)
        else:
            runner = JobQueries(self.spec, self.settings, store, self.base, self._server, *self._analysed)
        self._exit_stack.callback(runner.close)
        return runner

    def announce(self, definitions: str | Reason) -> None:
        """Let `taut query` and `taut verify` ask this process for as long as it runs, after `job`.

        Args:
            definitions: of `definitions_of`, from before the definitions were loaded.
        """
        assert self._server is not None
        server = self._server
        self._exit_stack.enter_context(
            announced(
                self._located,
                self.settings,
                server.uri,
                server.instance,
                has_spark=True,
                key=server.key,
                definitions=None if isinstance(definitions, Reason) else definitions,
            )
        )

    def identify(self) -> Identity:
        """Make the storage, and write down whose it is, before anything else is written there."""
        Path(self.settings.storage).mkdir(parents=True, exist_ok=True)
        self._identity = identify(self.spec, self.settings, self._identity, self.effects)
        return self._identity

    def job(self, full: Collection[str] | None = (), *, ownership: Ownership | None = None) -> Job:
        """Everything that a run needs. The definitions are checked before anything is written.

        Args:
            full: see `analysed`.
            ownership: how the caller takes the job over. It brings the store to this release, which whoever
                leaves the job to another process must not.

        Raises:
            DefinitionError, SettingsError: as of `analysed`.
            MetaError: the store cannot be opened; `JOB_RUNNING`; without `ownership`
                `META_STORE_OTHER_RELEASE`.
        """
        definitions, all_jobs = self.analysed(full)
        graph = all_jobs.only(datasets_of(self.settings.job, self.settings.jobs, definitions, all_jobs))
        if self._roots is not None and self._renews_roots:
            self._roots.require_catalog(all_jobs.external)
        listeners, monitor = self._listeners(graph), self._monitor()

        def emit(event: events.Event) -> None:
            listeners(event)
            monitor.take(event.map_texts(redacted))

        self._report_definitions(definitions, graph, all_jobs)
        identity = self.identify()
        database = definitions.scope.namespace[0]
        use_database(self.base, self.settings.catalog.name, database, create=True)
        store = self._store_of_job(ownership)
        on_owned: Callable[[], None] = lambda: None  # noqa: E731
        if self._roots is not None and self._renews_roots:
            ingested = sorted(_ingested(graph))
            on_owned = partial(self._roots.show, self.lake, all_jobs.external, ingested, store)
        read_points = self.open_read_point_server(store)
        self._emit(events.Catalog(uri=read_points.uri, warehouse="strong"))
        return Job(
            spec=self.spec,
            settings=self.settings,
            base=self.base,
            lake=self.lake,
            journal=Journal(store, self.settings.job, self.effects),
            read_points=read_points,
            effects=self.effects,
            emit=emit,
            topology=JobTopology(
                definitions=definitions,
                graph=graph,
                sibling_tables=frozenset(all_jobs.order) - frozenset(graph.order),
            ),
            ownership=Ownership() if ownership is None else ownership,
            lake_id=lake_id(self.settings, identity),
            monitor=monitor,
            on_owned=on_owned,
        )

    def _monitor(self) -> RunMonitor:
        """What collects what the run says of itself."""
        is_local = "://" not in self.settings.storage
        return RunMonitor(self.settings.storage if is_local else None, self.settings.alarm_limits)

    def _report_definitions(self, definitions: Definitions, graph: Graph, all_jobs: Graph) -> None:
        self._emit(
            events.Graph(
                datasets=[
                    events.GraphDataset(dataset=str(name), kind=str(definitions.datasets[name].kind))
                    for name in graph.order
                ],
            )
        )
        for warning in definitions.warnings:
            self._emit(events.DefinitionWarning(location=str(warning.location), reason=warning.reason))
        for shared in shared_sources(all_jobs):
            if set(shared.tables).isdisjoint(graph.order):
                continue
            self._emit(
                events.SourceReadTwice(
                    source=shared.source,
                    datasets=[str(name) for name in shared.tables],
                    locations=list(shared.locations),
                    reason=shared.reason,
                    hint=shared.hint,
                )
            )

    def _listeners(self, graph: Graph) -> events.Emit:
        """Who gets the job's events: the caller, and OpenLineage if it is configured."""
        target = self.settings.openlineage
        if target is None:
            return self._emit
        catalog = self.settings.catalog
        lineage = OpenLineage(
            transport_to(target, self.spec.root),
            self._emit,
            pipeline=self.spec.name,
            lake=catalog.options.get("warehouse", catalog.name),
            inputs={name: graph.inputs(name).tables - {name} for name in graph.order},
        )
        self._exit_stack.callback(lineage.close)

        emit_lineage = _redacting(lineage)

        def emit_to_both(event: events.Event) -> None:
            self._emit(event)
            emit_lineage(event)

        return emit_to_both

    def close(self) -> None:
        self._exit_stack.close()

    @property
    def has_lake(self) -> bool:
        """Whether the catalog may be asked: reading one in a file would create the file, and a dry run writes
        nothing."""
        file = self.settings.catalog.sqlite_file
        return file is None or Path(file).exists()

    def _session_for_snapshots(self, import_session: SparkSession) -> SparkSession:
        """A session on the lake's tables, or, while there is no lake, the one in which files are imported."""
        if not self.has_lake:
            return import_session
        try:
            return self._session_of_lake()()
        except AnalysisException:
            # The lake has no such database yet.
            return import_session

    def _snapshot_position(
        self, scope: NameScope, full: Collection[str] | None, table: TableName, flow: str
    ) -> SnapshotPosition | None:
        """Which snapshot of a function a table of the lake has; None if it will be rebuilt."""
        rebuilt = [scope.find(tuple(name.split("."))) for name in full or ()]
        if full is None or str(table).lower() in (str(name).lower() for name in rebuilt):
            return None
        if self._external_schema(table) is None:
            return None
        metadata = self.lake.load(table).fork().commit_metadata
        position = None if metadata is None else metadata.positions.get(flow)
        return position if isinstance(position, SnapshotPosition) else None

    def _external_schema(self, name: TableName) -> StructType | None:
        if name in self._foreign_sources:
            foreign = self._foreign_tables.open(self._foreign_sources[name])
            try:
                return spark_schema(foreign.newest().fields)
            except ForeignTableError as error:
                # The definition that reads it is added where it is known.
                raise DefinitionError(
                    error.error_class, error.message, sqlstate=error.sqlstate, hint=error.hint
                ) from error
        shown = None if self._roots is None else self._roots.schema(name, self.lake)
        if shown is not None or not self.has_lake:
            return shown
        return self.lake.schema(name) if self.lake.exists(name) else None
