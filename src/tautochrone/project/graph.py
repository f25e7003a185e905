"""The resolved graph of a project: what each flow reads, its properties, the order of refreshes.

Of a source that several streaming tables read, each by a query of its own, people are told: every flow is a
stream that determines the end of its source at its own moment. A cut takes what each has committed, so in one
checkpoint the tables are at different positions of the source.

Which datasets a job runs follows from the `[jobs]` of `tautochrone.toml`. A dataset belongs to one job with
all of its flows. Datasets that no job names belong to the default job, which has the pipeline's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError, SettingsError
from tautochrone.model.definitions import DatasetKind, FlowInputs
from tautochrone.model.names import TableName, is_file_table
from tautochrone.model.near_names import near_names_hint
from tautochrone.project.definitions import Definitions, Flow, QueryListener
from tautochrone.project.identity import DescribedPlan
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, relations_of
from tautochrone.spark.analysis.file_relations import FileReads, file_relations, with_file_tables

__all__ = [
    "UNSTABLE_FUNCTION",
    "Graph",
    "Invariant",
    "ResolvedFlow",
    "SharedSource",
    "datasets_of",
    "evaluate_over_files",
    "shared_sources",
]


UNSTABLE_FUNCTION = "a Python function that makes another query each time it runs"
"""The reason of `ResolvedFlow.deterministic` for a function that asks for the time or a random number."""


def evaluate_over_files(
    flow: Flow,
    session: SparkSession,
    catalog: str,
    pipeline: str,
    listener: QueryListener | None = None,
    *,
    with_dropped: bool = False,
) -> tuple[DataFrame, FileReads]:
    """A flow's query, and how it reads files.

    Args:
        catalog: the lake's; the rest is as of `Flow.evaluate`.
        pipeline: the flow's.
    """
    names: set[tuple[str, ...]] = set()

    def listen(query: JavaObject) -> None:
        names.update(relations_of(query))
        if listener is not None:
            listener(query)

    frame = flow.evaluate(session, listen, with_dropped=with_dropped)
    return frame, FileReads(
        catalog=catalog, pipeline=pipeline, flow=flow.name, conf=flow.conf, sql_names=names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFlow:
    """A flow and the properties of its analysed plan.

    Attributes:
        pipeline: the flow's.
        schema: the query's schema, before the lake widens types.
        inputs: lake tables and other sources, also those that it reads through views and subqueries.
        views: the pipeline's views that the query reads.
        streaming: the query is a stream.
        stateful: a streaming query that keeps state; `stateful_reason` names the node.
        linear: f(A ∪ Δ) = f(A) ∪ f(Δ) and all leaves are lake tables; else `linear_reason` is
            the reason.
        deterministic: the same inputs give the same rows; else `deterministic_reason` names the
            function.
        passes_on: the table whose rows a stream passes on unchanged; None when it changes them.
        sources: what a stream reads from outside the lake (`spark.sources.registry`).
        fingerprint: the identity of the definition (`project.identity`);
            the same in every process, free of layout and comments.
        evaluated: what it evaluated to; None for streams.
    """

    flow: Flow
    pipeline: str
    schema: StructType
    inputs: FlowInputs
    views: frozenset[TableName] = frozenset()
    streaming: bool
    stateful: bool
    stateful_reason: str = ""
    linear: bool
    linear_reason: str = ""
    deterministic: bool
    deterministic_reason: str = ""
    passes_on: TableName | None = None
    sources: frozenset[str] = frozenset()
    fingerprint: str
    evaluated: DescribedPlan | None = field(default=None, repr=False, compare=False)

    @property
    def file_tables(self) -> frozenset[TableName]:
        """The tables that hold the rows of the files which the query reads (`model.names`)."""
        return frozenset(filter(is_file_table, self.inputs.batch))

    def follows_files(self, versions: Collection[TableName]) -> bool:
        """Whether each table of files has a version at a checkpoint. Otherwise the files are read."""
        return self.file_tables <= {*versions}

    def evaluate(
        self,
        session: SparkSession,
        versions: Collection[TableName] | None = None,
        *,
        with_dropped: bool = False,
    ) -> DataFrame:
        """The query in a session, over the tables that hold the rows of its files.

        Args:
            session: in it the tables that the query reads exist.
            versions: the tables that have one at a checkpoint; see `follows_files`. None: all have.
            with_dropped: see `Flow.evaluate`.

        Raises:
            DefinitionError: as of `Flow.evaluate`; `FILE_COLUMNS_CHANGED`, the inferred columns are not those
                of the tables.
        """
        if not self.file_tables or not (versions is None or self.follows_files(versions)):
            return self.flow.evaluate(session, with_dropped=with_dropped)
        frame, reads = self.evaluate_over_files(session, with_dropped=with_dropped)
        tables = [relation.table for relation in file_relations(analyzed_plan(frame), reads)]
        if not self.file_tables.issuperset(tables):
            raise DefinitionError(
                "FILE_COLUMNS_CHANGED",
                f"Flow {self.flow.name} reads files whose columns or types changed a moment ago",
                sqlstate="55000",
                location=str(self.flow.location),
                hint="the next run takes them; a schema in the definition makes them the same for all files",
            )
        return with_file_tables(frame, reads)

    def evaluate_over_files(
        self, session: SparkSession, *, with_dropped: bool = False
    ) -> tuple[DataFrame, FileReads]:
        """The query over the files themselves, and how it reads them."""
        catalog = next(iter(self.file_tables)).catalog
        return evaluate_over_files(self.flow, session, catalog, self.pipeline, with_dropped=with_dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A query that must return no row. The job that writes `checked_with` checks it."""

    name: str
    query: ResolvedFlow
    checked_with: TableName

    @property
    def tables(self) -> frozenset[TableName]:
        """Lake tables and clocks that it reads."""
        return self.query.inputs.tables | self.query.inputs.clocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """All flows resolved.

    `flows` is keyed by flow name; `order` lists the tables (streaming tables and materialized
    views) so that each comes after those it reads; `schemas` are as the lake stores them and also
    hold those of the views and external tables that were read. `analysis_session` is the session in
    which everything was resolved: all tables exist in it, empty, so that a flow can be planned in it.
    """

    definitions: Definitions
    flows: Mapping[str, ResolvedFlow]
    order: tuple[TableName, ...]
    schemas: Mapping[TableName, StructType]
    external: frozenset[TableName] = field(default=frozenset())
    invariants: tuple[Invariant, ...] = ()
    analysis_session: SparkSession | None = field(default=None, repr=False, compare=False)

    def flows_of(self, target: TableName) -> tuple[ResolvedFlow, ...]:
        """The resolved flows that write `target`, in the order of definition."""
        return tuple(self.flows[flow.name] for flow in self.definitions.flows_of(target))

    def inputs(self, target: TableName) -> FlowInputs:
        """The inputs of all flows of `target`."""
        parts = [flow.inputs for flow in self.flows_of(target)]
        return FlowInputs(
            batch=frozenset().union(*(part.batch for part in parts)),
            stream=frozenset().union(*(part.stream for part in parts)),
            external_streams=any(part.external_streams for part in parts),
            unversioned=tuple(dict.fromkeys(text for part in parts for text in part.unversioned)),
            clocks=frozenset().union(*(part.clocks for part in parts)),
        )

    def only(self, tables: Collection[TableName]) -> Graph:
        """The same project with only some tables to refresh and check."""
        return replace(
            self,
            order=tuple(table for table in self.order if table in tables),
            invariants=tuple(invariant for invariant in self.invariants if invariant.checked_with in tables),
        )

    def readers(self, table: TableName) -> tuple[TableName, ...]:
        """The tables and sinks whose flows read `table`, in order of the graph."""
        targets = [*self.order, *self.definitions.sinks]
        return tuple(name for name in targets if table in self.inputs(name).tables)

    def downstream(self, table: TableName) -> tuple[TableName, ...]:
        """All tables and sinks that depend on `table`, nearest first."""
        dependents: dict[TableName, None] = {}
        queue = [table]
        while queue:
            for reader in self.readers(queue.pop(0)):
                if reader not in dependents:
                    dependents[reader] = None
                    queue.append(reader)
        return tuple(dependents)


@dataclass(frozen=True, slots=True)
class SharedSource:
    """A source with the tables that read it and the locations of their flows."""

    source: str
    tables: tuple[TableName, ...]
    locations: tuple[str, ...]

    @property
    def reason(self) -> str:
        return (
            f"each of their flows reads the {self.source} on its own, up to its own position: in one "
            "checkpoint they are not consistent with each other"
        )

    @property
    def hint(self) -> str:
        return "read it once into one streaming table, and make the others from that"


def shared_sources(graph: Graph) -> list[SharedSource]:
    """The sources that flows into different streaming tables of the graph read. Several flows into one table
    are no problem, whatever their positions."""
    readers: dict[str, dict[TableName, list[str]]] = {}
    for resolved in graph.flows.values():
        flow = resolved.flow
        dataset = graph.definitions.datasets.get(flow.target)
        if dataset is None or dataset.kind is not DatasetKind.STREAMING_TABLE:
            continue
        for source in resolved.sources:
            readers.setdefault(source, {}).setdefault(flow.target, []).append(str(flow.location))
    return [
        SharedSource(
            source, tuple(tables), tuple(location for locations in tables.values() for location in locations)
        )
        for source, tables in sorted(readers.items())
        if len(tables) > 1
    ]


def datasets_of(
    job: str, jobs: Mapping[str, Sequence[str]], definitions: Definitions, graph: Graph
) -> frozenset[TableName]:
    """The tables that `job` refreshes: all when the project names no jobs.

    Args:
        jobs: by name the datasets as `[jobs]` gives them: names with or without their database, `*` for any
            part.

    Raises:
        SettingsError: `JOB_NOT_FOUND`, `JOB_HAS_NO_DATASETS`, `DATASET_IN_TWO_JOBS`, `DATASET_NOT_FOUND`.
    """
    if not jobs:
        return frozenset(graph.order)
    default_job = definitions.spec.name
    if job not in jobs and job != default_job:
        raise SettingsError(
            "JOB_NOT_FOUND",
            f"The project has no job {job}",
            hint=near_names_hint(job, [*jobs, default_job], "its jobs are"),
        )
    owner = _owners(jobs, graph)
    for table in graph.order:
        # Bad records are committed together with their batch.
        source = _written_with(table, definitions)
        if source is not None:
            owner.pop(table, None)
            if source in owner:
                owner[table] = owner[source]
    job_tables = frozenset(table for table in graph.order if owner.get(table, default_job) == job)
    if not job_tables:
        raise SettingsError(
            "JOB_HAS_NO_DATASETS",
            f"Job {job} has no datasets: other jobs name them all",
            hint=f"choose one with --job: {', '.join(jobs)}",
        )
    return job_tables


def _written_with(table: TableName, definitions: Definitions) -> TableName | None:
    """The table whose job writes this one, which no file declares; None: files declare it."""
    source: TableName | None = None
    while True:
        dataset = definitions.datasets[source or table]
        following = dataset.bad_records_of or dataset.events_of
        if following is None:
            return source
        source = following


def _owners(jobs: Mapping[str, Sequence[str]], graph: Graph) -> dict[TableName, str]:
    """The job of each table that some job names."""
    owner: dict[TableName, str] = {}
    for name, patterns in jobs.items():
        for pattern in patterns:
            matches = [table for table in graph.order if _matches(table, pattern)]
            if not matches:
                raise SettingsError(
                    "DATASET_NOT_FOUND",
                    f"Job {name} has a dataset {pattern}, and nothing is called so",
                    hint=near_names_hint(pattern, [table.table for table in graph.order], "there are"),
                )
            for table in matches:
                if owner.setdefault(table, name) != name:
                    raise SettingsError(
                        "DATASET_IN_TWO_JOBS",
                        f"{table} is given to job {owner[table]} and to job {name}",
                        hint="one job brings a dataset up to date",
                    )
    return owner


def _matches(table: TableName, pattern: str) -> bool:
    text = pattern.lower()
    names = (table.table, ".".join((*table.namespace, table.table)), str(table))
    return any(fnmatchcase(name.lower(), text) for name in names)
