"""Runs foreign queries as views over changing tables, compares them with plain Spark, records the modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from pyspark.sql import SparkSession
from tests.sql.testbed import ViewTestbed
from tests.support.harness import Happened

from tautochrone.model.checkpoint import RefreshMode, worst_mode
from tautochrone.model.names import TableName
from tautochrone.model.verdict import Verdict
from tautochrone.runtime.job.topology import select
from tautochrone.runtime.loop.run import Run
from tautochrone.runtime.views.verify import nondeterminism, verify

from .changing_tables import SPARK_ERRORS, ChangingTables
from .suite import ForeignQuery, Suite

__all__ = ["Outcome", "analysable", "run_as_views", "succeeds"]

PROPERTIES = "TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')"

_UNSTORABLE = ("interval", "void", "variant", "time(", "char(", "geo")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one query was refreshed.

    Attributes:
        query: of the suite.
        mode: the worst one over all refreshes after the first build.
        reason: of a refresh with that mode, where it is `diff` or `full`: its code and its text.
        changed: whether the view's rows changed at all.
        is_deterministic: whether the query has only one right result.
        error: what failed that does not fail in plain Spark.
    """

    query: ForeignQuery
    mode: RefreshMode = RefreshMode.NO_DATA
    reason: str = ""
    changed: bool = False
    is_deterministic: bool = True
    error: str = ""


def analysable(session: SparkSession, queries: Iterable[ForeignQuery]) -> Iterator[ForeignQuery]:
    """The queries that plain Spark accepts and whose rows a table can hold, with distinct column names."""
    for query in queries:
        try:
            frame = session.sql(query.sql)
            names = [name.lower() for name in frame.columns]
            if any(word in frame.schema.simpleString() for word in _UNSTORABLE):
                continue
        except (*SPARK_ERRORS, ValueError):
            continue
        if len(set(names)) < len(names):
            columns = ", ".join(f"c{number}" for number in range(len(names)))
            query = replace(query, sql=f"SELECT * FROM ({query.sql}) AS named ({columns})")
        yield query


def succeeds(session: SparkSession, query: ForeignQuery) -> bool:
    """Whether plain Spark runs a query over the rows that are there now."""
    try:
        session.sql(query.sql).collect()
    except (*SPARK_ERRORS, ValueError, OverflowError):
        return False
    return True


def run_as_views(
    testbed: ViewTestbed, suite: Suite, *, most: int, changes: int, seed: int
) -> dict[str, Outcome]:
    """Define views over the suite's tables, change these several times, and compare after each change."""
    # More than half of the queries are refused by plain Spark: functions and syntax of the other engine.
    queries = suite.queries[:: max(1, len(suite.queries) // (3 * most))]
    names = sorted(_tables_of(queries))
    tables = ChangingTables(testbed, (suite.tables[name] for name in names), seed)
    session = testbed.external_session
    session.sql("USE lake")
    queries = list(islice(analysable(session, queries), most))
    tables.fill(_tables_of(queries))
    outcomes: dict[str, Outcome] = {}
    for number, query in enumerate(queries):
        if succeeds(session, query):
            testbed.view(f"q{number}", query.sql, PROPERTIES)
            outcomes[f"q{number}"] = Outcome(query)
    pipeline = testbed.pipeline
    with pipeline.opened() as (job, happened):
        run = Run(job, select(job.topology, (), (), everything=False))
        run.once()
        _record(outcomes, session, Happened(happened), is_build=True)
        for _ in range(changes):
            tables.change()
            before = len(happened)
            run.again()
            _record(outcomes, session, Happened(happened[before:]))
            _compare(outcomes, testbed)
        for view in job.topology.derived_tables:
            (flow,) = job.graph.flows_of(view)
            if not flow.deterministic or nondeterminism(job.graph, flow, view.catalog):
                outcomes[view.table] = replace(outcomes[view.table], is_deterministic=False)
    return outcomes


def _tables_of(queries: Iterable[ForeignQuery]) -> set[str]:
    return {name for query in queries for name in query.tables}


def _record(
    outcomes: dict[str, Outcome], session: SparkSession, happened: Happened, *, is_build: bool = False
) -> None:
    for refresh in happened.of("refresh"):
        name = refresh["dataset"].rsplit(".", 1)[-1]
        outcome = outcomes[name]
        if is_build:
            continue
        mode = worst_mode([outcome.mode, RefreshMode(refresh["mode"])])
        changed = outcome.changed or refresh["rows_inserted"] + refresh["rows_deleted"] > 0
        reason = outcome.reason
        if mode in (RefreshMode.DIFF, RefreshMode.FULL) and outcome.mode is not mode:
            reason = f"{refresh['reason_code']}: {refresh['reason']}"
        outcomes[name] = replace(outcome, mode=mode, changed=changed, reason=reason)
    for failure in happened.of("refresh_failed"):
        name = failure["dataset"].rsplit(".", 1)[-1]
        if not succeeds(session, outcomes[name].query):
            # Plain Spark fails on these rows as well, such as by an overflow.
            continue
        outcomes[name] = replace(outcomes[name], error=str(failure["error"]))


def _compare(outcomes: dict[str, Outcome], testbed: ViewTestbed) -> None:
    job = testbed.pipeline.job
    views = [view for view in job.topology.derived_tables if not outcomes[view.table].error]
    try:
        verdicts = _verdicts(testbed, views)
    except SPARK_ERRORS:
        verdicts = []
        for view in views:
            try:
                verdicts += _verdicts(testbed, [view])
            except SPARK_ERRORS as error:
                text = f"cannot be compared: {str(error)[:300]}"
                outcomes[view.table] = replace(outcomes[view.table], error=text)
    for verdict in verdicts:
        if verdict.equal is False:
            outcome = outcomes[verdict.dataset.table]
            problem = f"{verdict.missing} rows missing, {verdict.unexpected} unexpected ({outcome.mode})"
            outcomes[verdict.dataset.table] = replace(outcome, error=problem)


def _verdicts(testbed: ViewTestbed, views: Sequence[TableName]) -> list[Verdict]:
    """One call shares its sessions among the views."""
    job, session = testbed.pipeline.job, testbed.pipeline.session
    return list(verify(session, job.store, job.read_points, job.definitions, job.graph, views, None))
