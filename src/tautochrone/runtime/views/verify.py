"""The oracle: a view recomputed by plain Spark at a checkpoint, compared both ways as multisets.

A table of AUTO CDC flows is recomputed by one merge of all events.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.errors import CheckpointUnavailableError, DefinitionError, QueryError
from tautochrone.ingest.staging import align
from tautochrone.meta import Store
from tautochrone.model.auto_cdc import DELETE_COLUMN, SEQUENCE_COLUMN, TOMBSTONE_RETENTION, TRUNCATE_COLUMN
from tautochrone.model.catalog import ReadPointServer
from tautochrone.model.counts import counted
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import (
    CheckpointNumber,
    TableName,
    Version,
    describe_clock,
    describe_files,
    describe_input,
    is_shadow_table,
)
from tautochrone.model.reason import ReasonCode
from tautochrone.model.verdict import Verdict
from tautochrone.project.definitions import Definitions
from tautochrone.project.graph import Graph, ResolvedFlow
from tautochrone.runtime.job.pinned import pinned
from tautochrone.runtime.merges.event_merges import auto_cdc_of, input_of, rows_of_all_events
from tautochrone.runtime.merges.snapshot_events import current_rows
from tautochrone.runtime.refresh.sessions import session_at
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.current_time import reads_current_time, with_fixed_time
from tautochrone.spark.execute.engine import with_total_order
from tautochrone.spark.execute.multiset_diff import diff_sizes
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.sources.stream_as_batch import stream_as_batch
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["Sessions", "nondeterminism", "recompute", "verify"]

_READ_FILES = {ReasonCode.FILE_COLUMNS_CHANGED, ReasonCode.FILES_NOT_TAKEN_IN}


class Sessions:
    """Sessions for recomputations: all views whose flows have the same settings share one per read point.

    Args:
        base: of which the sessions are made.
        read_points: serves the read points that they show.
        definitions: of the views.
    """

    def __init__(self, base: SparkSession, read_points: ReadPointServer, definitions: Definitions) -> None:
        self._base, self._read_points, self._definitions = base, read_points, definitions
        self._sessions: dict[tuple[object, ...], SparkSession] = {}

    def at(self, read_point: str, catalog: str, flow: ResolvedFlow) -> SparkSession:
        """The session that shows `read_point` as `catalog` to the flow of a view."""
        conf, database = flow.flow.conf, self._definitions.scope.namespace[0]
        key = (read_point, catalog, *sorted(conf.items()))
        if key not in self._sessions:
            self._sessions[key] = session_at(
                self._base, self._read_points, read_point, catalog, database, conf
            )
        return self._sessions[key]


def verify(
    base: SparkSession,
    store: Store,
    read_points: ReadPointServer,
    definitions: Definitions,
    graph: Graph,
    views: Sequence[TableName],
    number: int | None,
) -> Generator[Verdict, None, None]:
    """Check `views` at checkpoint `number`, or each at the newest one where it is complete.

    Raises:
        CheckpointUnavailableError: `number` is not a published checkpoint.
        DefinitionError: a query cannot be analyzed.
        QueryError: a query fails, with Spark's class; `LAKE_FILE_MISSING`.
    """
    if number is not None:
        store.checkpoints.get(number)
    newest = {status.dataset: status.checkpoint for status in store.datasets.statuses()}
    sessions = Sessions(base, read_points, definitions)
    computed = [
        view
        for view in views
        if definitions.datasets[view].kind is DatasetKind.MATERIALIZED_VIEW
        or auto_cdc_of(graph.flows_of(view)) is not None
    ]
    checkpoints = {
        view: newest.get(view) if number is None else CheckpointNumber(number) for view in computed
    }
    with ExitStack() as pins:
        # A run that goes on expires versions meanwhile.
        for read in sorted({each for each in checkpoints.values() if each is not None}):
            pins.enter_context(pinned(store, read, "verify"))
        for view, checkpoint in checkpoints.items():
            if checkpoint is None:
                yield _unknown(view, None, "it was never built")
            else:
                yield _verdict(sessions, store, definitions, graph, view, checkpoint)


def _verdict(
    sessions: Sessions,
    store: Store,
    definitions: Definitions,
    graph: Graph,
    view: TableName,
    checkpoint: CheckpointNumber,
) -> Verdict:
    flow = graph.flows_of(view)[0]
    if not flow.deterministic:
        return _unknown(view, checkpoint, f"its query is not deterministic: {flow.deterministic_reason}")
    versions = store.checkpoints.versions_at(checkpoint)
    if view not in versions:
        raise CheckpointUnavailableError(
            "CHECKPOINT_INCOMPLETE", f"{view} has no version at checkpoint {checkpoint}"
        )
    untold = _untold_input(flow, versions)
    if untold is not None:
        return _unknown(view, checkpoint, f"checkpoint {checkpoint} does not tell {untold}")
    shadow_tables = sorted(filter(is_shadow_table, flow.inputs.tables))
    session = sessions.at(f"checkpoint-{checkpoint}", view.catalog, flow)
    try:
        missing, unexpected = recompute(session, definitions, graph, view, versions)
    except DefinitionError as error:
        if not flow.file_tables and not shadow_tables:
            raise
        # Spark lists the folder before its table takes its place. A shadow table may be a new one.
        return _unknown(view, checkpoint, f"its query cannot be analyzed now: {error.message}")
    except (PySparkException, Py4JJavaError) as error:
        problem = problem_of(error)
        if not shadow_tables:
            raise QueryError(
                problem.error_class,
                f"{view} at checkpoint {checkpoint} cannot be recomputed: {problem.message}",
                sqlstate=problem.sqlstate,
                hint=problem.hint,
                location=str(flow.flow.location),
            ) from error
        # Their data files are others', who may have removed them since.
        what = f"{describe_input(shadow_tables[0])} at that checkpoint cannot be read now"
        return _unknown(view, checkpoint, f"{what}: {problem.message}")
    equal: bool | None = missing == unexpected == 0
    why_unknown = None if equal else _why_unknown(store, graph, flow, view, checkpoint)
    return Verdict(
        dataset=view,
        checkpoint=checkpoint,
        equal=equal if why_unknown is None else None,
        missing=missing,
        unexpected=unexpected,
        reason=why_unknown,
    )


def _why_unknown(
    store: Store, graph: Graph, flow: ResolvedFlow, view: TableName, checkpoint: CheckpointNumber
) -> str | None:
    """Why a view may rightly differ from its recomputation, or None."""
    refreshes = (r for r in store.history.refreshes(view) if r.checkpoint <= checkpoint)
    last = next((r.refresh for r in refreshes if r.refresh is not None), None)
    counts = () if last is None else last.expectations
    late = sum(count.violations for count in counts if count.name == TOMBSTONE_RETENTION)
    if late:
        return f"{counted(late, 'event')} came too late for it, which the property {TOMBSTONE_RETENTION} says"
    # The store carries an older version of a table of files on, where the cut names none.
    if flow.file_tables and last is not None and last.reason.code in _READ_FILES:
        return f"it was computed from the files as they were then: {last.reason}"
    if flow.streaming:
        session = graph.analysis_session
        assert session is not None
        flows = graph.flows_of(view)
        if any(reads_current_time(analyzed_plan(each.flow.evaluate(session))) for each in flows):
            return "its flow asks for the time, which each event has from its own merge"
        return None
    nondeterministic = nondeterminism(graph, flow, view.catalog)
    if nondeterministic:
        return f"its query has several right answers: {'; '.join(nondeterministic)}"
    return None


def _untold_input(flow: ResolvedFlow, versions: Mapping[TableName, Version]) -> str | None:
    """What the recomputation would take from today because the checkpoint has no version of it, or None."""
    missing_clocks = sorted(flow.inputs.clocks - versions.keys())
    if missing_clocks:
        return f"{describe_clock(missing_clocks[0])}, which its query asks for"
    missing_files = sorted(flow.file_tables - versions.keys())
    if missing_files:
        return f"the rows of {describe_files(missing_files[0])}, which its query reads"
    return None


def recompute(
    session: SparkSession,
    definitions: Definitions,
    graph: Graph,
    view: TableName,
    versions: Mapping[TableName, Version],
) -> tuple[int, int]:
    """Rows of the view's query that the view lacks, and rows of the view that its query does not give.

    Where plain Spark may take tied rows in any order, the order of all columns is right too.

    Args:
        session: shows the view and what it reads at one read point, with the settings of the view's flow.
        versions: of that read point; clocks among them tell the query's `now()`.
    """
    flows = graph.flows_of(view)
    flow = flows[0]
    definitions.prepare(session, frozenset().union(*(flow.views for flow in flows)))
    if auto_cdc_of(flows) is not None:
        auto_cdc = auto_cdc_of(flows)
        if auto_cdc is not None and auto_cdc.snapshots_of is not None:
            snapshot = session.table(input_of(flow).sql)
            rows = stream_as_batch(session, analyzed_plan(flow.evaluate(session)), snapshot)
            rows = rows.drop(SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
            stored = current_rows(session.table(view.sql), auto_cdc)
            return diff_sizes(align(rows, stored.schema, flow.flow.name), stored)
        inputs = {name: session.table(name.sql) for name in map(input_of, flows)}
        merged = rows_of_all_events(flows, inputs, graph.schemas[view], definitions.datasets[view])
        return diff_sizes(merged, session.table(view.sql))
    actual_query = with_fixed_time(flow.evaluate(session, versions), versions)
    expected = align(actual_query, graph.schemas[view], flow.flow.name)
    stored = session.table(view.sql)
    sizes = diff_sizes(expected, stored)
    if any(sizes) and (ordered := with_total_order(expected, view.catalog)) is not None:
        # Spark may number tied rows in another order than the view.
        with_ties_broken = diff_sizes(ordered, stored)
        return with_ties_broken if not any(with_ties_broken) else sizes
    return sizes


def _unknown(view: TableName, checkpoint: CheckpointNumber | None, reason: str) -> Verdict:
    return Verdict(dataset=view, checkpoint=checkpoint, equal=None, missing=0, unexpected=0, reason=reason)


def nondeterminism(graph: Graph, flow: ResolvedFlow, catalog: str) -> Sequence[str]:
    """Why the recomputation may rightly differ; asked only when it does."""
    assert graph.analysis_session is not None
    return plan_of(flow.evaluate(graph.analysis_session), catalog).nondeterminism
