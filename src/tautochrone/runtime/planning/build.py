"""Builds what a plan changes, beside what is deployed.

    1. survey: which views change, and what stands above them; nothing is written
    2. record the build, with the tables that it will create
    3. per view, after those that it reads: evaluate it at the base checkpoint, over what is built already and
       what is deployed; its rows become a version of its own table, on a branch
    4. check the invariants over these versions
    5. record what was built

A run of the job may go on meanwhile: main of no table moves. A process that dies leaves a record, by which
`drop_build` deletes the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError, MetaError, RefreshError
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.effects import Step
from tautochrone.model.lake import CommitMetadata
from tautochrone.model.names import TableName, Version, describe_input, is_clock, is_file_table
from tautochrone.model.project_build import BuildState, BuiltState, BuiltTable, ProjectBuild
from tautochrone.model.project_plan import DatasetPlan, DefinitionChange, ProjectPlan, Treatment
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.redaction import redacted
from tautochrone.runtime.job.job import ClockTable, Job
from tautochrone.runtime.job.pinned import pinned
from tautochrone.runtime.loop.invariants import Checked, check_invariants
from tautochrone.runtime.loop.refresh_checkpoint import refresh_context, refresh_task, upstream_of
from tautochrone.runtime.planning.build_views import views_of_build
from tautochrone.runtime.planning.drop_build import drop_build
from tautochrone.runtime.refresh.history import RefreshHistory
from tautochrone.runtime.refresh.sessions import CheckpointViews, SessionPool
from tautochrone.runtime.views.changes import Changes
from tautochrone.runtime.views.choose_mode import keeps_state
from tautochrone.runtime.views.incremental import IncrementalRefresh
from tautochrone.runtime.views.plans import Plans
from tautochrone.runtime.views.refresh_view import checked_rows, flagged_rows
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["BuildPrice", "BuildSurvey", "build", "survey"]

_LEASE_MS = 3_600_000
"""The pin of the base is renewed while the build lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPrice:
    """What is known beforehand of what a build costs.

    Attributes:
        views: how many are computed.
        rows: that their deployed tables have together, as far as these tell.
        duration_ms: of their newest refreshes that computed all rows.
        unmeasured: views of which no such refresh is known.
    """

    views: int
    rows: int
    duration_ms: int
    unmeasured: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSurvey:
    """What a build will compute, in this order.

    Attributes:
        base: the checkpoint at which it does.
        altered: streaming tables that get columns at the next run: they are read with these, as NULL.
        unwritten: streaming tables that the next run creates: they are read without a row.
    """

    base: Checkpoint
    views: tuple[DatasetPlan, ...]
    altered: tuple[TableName, ...] = ()
    unwritten: tuple[TableName, ...] = ()

    @property
    def price(self) -> BuildPrice:
        """See `BuildPrice`."""
        durations = [view.duration_ms for view in self.views]
        return BuildPrice(
            views=len(self.views),
            rows=sum(view.rows or 0 for view in self.views),
            duration_ms=sum(duration or 0 for duration in durations),
            unmeasured=durations.count(None),
        )


def survey(job: Job, planned: ProjectPlan) -> BuildSurvey:
    """Which views a build of a plan computes. Writes nothing.

    Raises:
        DefinitionError: `BUILD_NOT_POSSIBLE`, a streaming table reads a view that changes; or what the run
            will refuse.
        MetaError: `BUILD_WITHOUT_BASE`, nothing was published that the views could be computed at.
    """
    for refusal in planned.refusals:
        if refusal.is_certain:
            raise DefinitionError(
                refusal.error_class, refusal.text, hint=refusal.hint, location=refusal.location
            )
    changed = {part.dataset for part in planned.datasets if _is_redefined(part)}
    inputs = {name: job.topology.inputs(name) for name in job.graph.order}
    above = {name for name in job.graph.order if changed & upstream_of(name, inputs)}
    views = [part for part in planned.datasets if part.dataset in changed | above]
    _require_streams(planned, [part.dataset for part in views])
    number = planned.checkpoint
    if number is None:
        raise MetaError(
            "BUILD_WITHOUT_BASE",
            f"Job {job.name} has published no checkpoint at which views could be computed",
            hint="`taut run` publishes the first one",
            sqlstate="55000",
        )
    altered = tuple(part.dataset for part in planned.datasets if part.treatment is Treatment.ALTER)
    read = {name for view in views for name in job.topology.inputs(view.dataset)}
    unwritten = [
        part.dataset
        for part in planned.datasets
        if part.treatment is Treatment.CREATE and part.dataset in read
    ]
    return BuildSurvey(
        base=job.store.checkpoints.get(number),
        views=tuple(views),
        altered=altered,
        unwritten=tuple(unwritten),
    )


_ROWS_STAY = (Treatment.LEAVE, Treatment.RETIRE, Treatment.ALTER, Treatment.FOLLOW, Treatment.CREATE)
"""What a run does with a streaming table that then has the rows of the base, and perhaps more."""


def _require_streams(planned: ProjectPlan, views: Sequence[TableName]) -> None:
    """Check that the streaming tables keep the rows of the base.

    Raises:
        DefinitionError: `BUILD_NOT_POSSIBLE`.
    """
    for part in planned.datasets:
        if part.kind is DatasetKind.MATERIALIZED_VIEW:
            continue
        if part.dataset in views or (part.is_changed and part.treatment not in _ROWS_STAY):
            raise DefinitionError(
                "BUILD_NOT_POSSIBLE",
                f"The streaming table {part.dataset} has no rows at the base that a build could read: "
                "it reads a view that changes",
                hint="its rows come from its flows: let `taut run` change it first, then build the views",
                sqlstate="0A000",
                location=part.location,
            )


def _is_redefined(part: DatasetPlan) -> bool:
    if part.kind is not DatasetKind.MATERIALIZED_VIEW or part.is_news:
        return False
    is_changed = part.change in (DefinitionChange.NEW, DefinitionChange.CHANGED)
    return is_changed or (part.treatment is Treatment.BUILD and not part.is_conditional)


def build(
    job: Job,
    surveyed: BuildSurvey,
    unit_tests: Callable[[Collection[TableName]], Sequence[str]],
    built: Callable[[BuiltTable, int], None],
) -> ProjectBuild:
    """Build what was surveyed. What an error leaves is dropped.

    Args:
        job: analysed, and not taken over; another process may run it.
        unit_tests: runs those of some views, and answers why they fail.
        built: called after each view, with the milliseconds that it took.

    Returns:
        The build; `problems` says which checks its rows did not pass.

    Raises:
        RefreshError: a query failed, or an expectation that nothing may violate is violated.
        MetaError: `BUILD_INPUT_MISSING`, the base has no version of an input; `BUILD_NOT_FOUND`, somebody
            dropped the build meanwhile.
        CheckpointUnavailableError: a revision took the base back.
        LakeError: a table cannot be written.
    """
    views = [part.dataset for part in surveyed.views]
    names = {entry.name for entry in job.store.datasets.registered()}
    ours = {name for other in job.store.builds.of_job(job.name) for name in other.created}
    created = tuple(
        name for name in views if not job.lake.exists(name) or (name in ours and name not in names)
    )
    begun = ProjectBuild(
        id=uuid4().hex[:8],
        job=job.name,
        base=surveyed.base.number,
        definitions=job.topology.fingerprints,
        created=created,
        views=views_of_build(surveyed.views),
    )
    effects, store = job.effects, job.store
    effects.perform(Step.META_BUILD, begun.id, lambda: store.builds.begin(begun))
    try:
        done = _Builder(job, surveyed, begun).build(views, built)
        problems = [*done.problems, *unit_tests(views)]
        finished = replace(done, state=BuildState.BUILT, problems=tuple(problems))
        effects.perform(Step.META_BUILT, begun.id, lambda: store.builds.finish(finished))
    except Exception:
        drop_build(store, job.lake, effects, begun)
        raise
    return store.builds.get(begun.id)


class _Builder:
    """Computes the views of one build."""

    def __init__(self, job: Job, surveyed: BuildSurvey, begun: ProjectBuild) -> None:
        self._job, self._base, self._build = job, surveyed.base, begun
        self._altered, self._unwritten = surveyed.altered, surveyed.unwritten
        self._views = CheckpointViews(job.definitions, job.graph)
        self._context = refresh_context(job, self._views, RefreshHistory(job.store.history.refreshes))
        self._plans = Plans(self._views, job.graph)
        self._changes = Changes(job.base, job.input_table, lambda _: False, self._plans.columns)
        self._sessions = SessionPool(
            job.base,
            job.read_points,
            f"build-{begun.id}",
            job.settings.catalog.name,
            job.definitions.scope.namespace[0],
            job.graph.order,
        )

    def build(self, views: Sequence[TableName], built: Callable[[BuiltTable, int], None]) -> ProjectBuild:
        """The build with all of its tables, and the invariants that do not hold."""
        with pinned(self._job.store, self._base.number, "build", lease_ms=_LEASE_MS):
            self._views.start(self._base.number)
            self._sessions.show(self._job.store.reads.published_versions(self._base.number))
            for name in self._altered:
                columns = self._job.lake.buildable(name).columns_with(self._job.graph.schemas[name])
                if columns is not None:
                    self._sessions.show_columns(name, columns)
            for name in self._unwritten:
                definition = self._job.topology.table_definition(name)
                self._sessions.show_unwritten(name, self._job.lake.buildable(name).unwritten(definition))
            for view in views:
                # Whoever drops the build meanwhile cannot see tables that come later.
                self._job.store.builds.get(self._build.id)
                started = time.monotonic()
                table = self._built(view)
                self._build = self._build.with_table(table)
                self._sessions.add(view, table.version)
                built(table, round((time.monotonic() - started) * 1000))
            checked = self._check_invariants()
        skipped = checked.skipped.items()
        notes = [str(Reason.of(ReasonCode.BUILT_OVER_NO_ROWS, table=str(name))) for name in self._unwritten]
        notes += [redacted(f"invariant {name} was not checked: {reason}") for name, reason in skipped]
        problems = [redacted(f"invariant {broken.name}: {broken.error}") for broken in checked.broken]
        return replace(self._build, problems=tuple(problems), notes=tuple(notes))

    def _built(self, view: TableName) -> BuiltTable:
        job, topology = self._job, self._job.topology
        (flow,) = topology.flows(view)
        inputs = self._inputs(view)
        if not job.lake.exists(view):
            job.lake.create(topology.table_definition(view), self._commit_metadata())
        replaced = job.lake.load(view).fork().commit_metadata
        session = self._sessions.session(str(view), flow.flow.conf)
        definition = topology.fingerprint(view)
        metadata = self._commit_metadata(
            checkpoint=self._base.number,
            definition=definition,
            inputs={str(name): version for name, version in inputs.items()},
        )
        states: Mapping[TableName, BuiltState] = {}
        try:
            incremental = self._with_states(view, session, inputs, metadata)
            if incremental is None:
                flagged = flagged_rows(self._context, session, flow, view, inputs)
            else:
                flagged, states = incremental.build_beside(self._build.branch)
            rows, violations = checked_rows(view, flagged, flow.flow.expectations)
            version = self._write(view, rows, metadata)
        except (PySparkException, Py4JJavaError) as error:
            problem = problem_of(error)
            raise RefreshError(
                problem.error_class,
                f"{view} could not be built: {problem.message}",
                sqlstate=problem.sqlstate,
                location=str(job.definitions.datasets[view].location),
                hint="nothing is left of the build, and nothing that is deployed was changed",
            ) from error
        return BuiltTable(
            table=view,
            version=version,
            definition=definition,
            replaces=None if replaced is None else replaced.definition,
            inputs=inputs,
            violations=violations,
            states=states,
        )

    def _with_states(
        self,
        view: TableName,
        session: SparkSession,
        inputs: Mapping[TableName, Version],
        metadata: CommitMetadata,
    ) -> IncrementalRefresh | None:
        """What computes the view's rows from its states; None: it keeps none, or reads a table that the next
        run changes, which only the session shows so."""
        job = self._job
        job.tables[view] = job.lake.load(view)
        task = refresh_task(job, view, inputs, {}, self._base.number, self._base.cut_at_ms, is_full=False)
        is_read_as_it_is = not inputs.keys() & {*self._altered, *self._unwritten}
        if not (is_read_as_it_is and task.flow.follows_files(inputs) and keeps_state(task, job.input_table)):
            return None
        plan = self._plans.of(view, session)
        if plan is None or not plan.layouts:
            return None
        return IncrementalRefresh(self._context, task, plan, metadata, self._changes, session)

    def _commit_metadata(self, **fields: object) -> CommitMetadata:
        # A build owns nothing: it says who does.
        owner = self._job.store.jobs.newest_fence(self._job.name)
        return replace(self._job.commit_metadata(**fields), fence=owner)

    def _write(self, view: TableName, rows: object, metadata: CommitMetadata) -> Version:
        definition = self._job.topology.table_definition(view)
        return self._job.lake.buildable(view).build(definition, rows, metadata, self._build.branch)

    def _inputs(self, view: TableName) -> dict[TableName, Version]:
        """The version of each input: built, or of the base. What no job writes and only the new definitions
        read has none there: it is read as it is now."""
        job, inputs = self._job, dict[TableName, Version]()
        for name in sorted(job.topology.inputs(view)):
            version = self._sessions.versions.get(name)
            if version is None and is_clock(name):
                version = ClockTable(name, job.base).version_at(self._base.cut_at_ms * 1000)
            if version is None and is_file_table(name):
                continue
            if version is None and name in job.external_tables() and job.lake.exists(name):
                version = job.lake.load(name).current_version()
            if version is None:
                raise MetaError(
                    "BUILD_INPUT_MISSING",
                    f"Checkpoint {self._base.number} has no version of {describe_input(name)}, "
                    f"which {view} reads",
                    hint="`taut status` says what is wrong with it; build again once a checkpoint has one",
                    sqlstate="55000",
                )
            self._sessions.add(name, version)
            inputs[name] = version
        return inputs

    def _check_invariants(self) -> Checked:
        job = self._job
        if not job.graph.invariants:
            return Checked()
        session = self._sessions.session("invariants", job.spec.configuration)
        versions: Mapping[TableName, Version] = self._sessions.versions
        return check_invariants(job.graph.invariants, self._views, job.store, job.name, session, versions)
