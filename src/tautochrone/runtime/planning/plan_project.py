"""A plan of the next run of a job, from its definitions, the store and the metadata of its tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.model.project_plan import (
    ColumnChange,
    ColumnChangeKind,
    DatasetPlan,
    DefinitionChange,
    InvariantPlan,
    PinnedVersions,
    ProjectPlan,
    SinkAction,
    SinkPlan,
    Treatment,
)
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.takeover import retired_datasets
from tautochrone.runtime.planning.plan_sinks import plan_sinks
from tautochrone.runtime.planning.plan_tables import TablePlanner

__all__ = ["plan_project"]

_REWRITES = (Treatment.BUILD, Treatment.COMPARE, Treatment.CLEAR)


def plan_project(
    job: Job,
    full: Collection[TableName] = (),
    full_sinks: Collection[TableName] = (),
    *,
    has_lake: bool = True,
) -> ProjectPlan:
    """What the next run does. Nothing is written, and no row is read.

    Args:
        job: analysed and not taken over.
        full: datasets that a full refresh will rebuild.
        full_sinks: sinks to which all rows are sent again.
        has_lake: whether its catalog may be asked; otherwise there are no tables yet.

    Raises:
        DefinitionError: sinks that do not fit together.
        LakeError: a table cannot be read.
    """

    def exists(table: TableName) -> bool:
        return has_lake and job.lake.exists(table)

    job.tables = {table: job.lake.load(table) for table in job.graph.order if exists(table)}
    planner = TablePlanner(job, full, exists)
    datasets = planner.plan()
    sinks = plan_sinks(job, planner.foretold, full_sinks)
    latest = job.store.checkpoints.latest_published(job.name)
    retired = [_retired(job, table, exists) for table in retired_datasets(job)]
    return ProjectPlan(
        job=job.name,
        checkpoint=None if latest is None else latest.number,
        datasets=tuple(_with_sinks(_with_origin(job, datasets, retired), sinks) + retired),
        flows=tuple(planner.flows()),
        sinks=tuple(sinks),
        invariants=tuple(_invariants(job)),
        pins=tuple(_pins(job, [part.dataset for part in datasets if part.treatment in _REWRITES])),
    )


def _retired(job: Job, table: TableName, exists: Callable[[TableName], bool]) -> DatasetPlan:
    entry = next(entry for entry in job.store.datasets.registered(job.name) if entry.name == table)
    details = job.store.datasets.details(table)
    columns = () if details is None else details.columns
    stored = job.lake.load(table) if exists(table) else None
    return DatasetPlan(
        dataset=table,
        kind=DatasetKind(entry.kind),
        change=DefinitionChange.REMOVED,
        treatment=Treatment.RETIRE,
        reason=Reason.of(ReasonCode.DATASET_NOT_DEFINED),
        columns=tuple(
            ColumnChange(name=column.name, kind=ColumnChangeKind.KEPT, before=column.type)
            for column in columns
        ),
        rows=None if stored is None else stored.row_count(stored.current_version()),
        location=None if details is None else details.location,
    )


def _with_origin(
    job: Job, datasets: Sequence[DatasetPlan], retired: Sequence[DatasetPlan]
) -> list[DatasetPlan]:
    """New datasets with the definition of one that goes have its name: they were renamed."""
    definitions = {entry.definition: entry.name for entry in job.store.datasets.registered(job.name)}
    gone = {part.dataset for part in retired}

    def origin(planned: DatasetPlan) -> TableName | None:
        name = definitions.get(job.topology.fingerprint(planned.dataset))
        return name if name in gone and planned.change is DefinitionChange.NEW else None

    return [replace(planned, renamed_from=origin(planned)) for planned in datasets]


def _with_sinks(datasets: Iterable[DatasetPlan], sinks: Sequence[SinkPlan]) -> list[DatasetPlan]:
    def names(table: TableName) -> tuple[str, ...]:
        return tuple(
            sink.sink
            for sink in sinks
            if sink.action is not SinkAction.RETIRE and table in {*sink.sent_whole, *sink.changed}
        )

    return [replace(planned, sinks=names(planned.dataset)) for planned in datasets]


def _invariants(job: Job) -> list[InvariantPlan]:
    checked = job.store.invariants.last_check(job.name)
    known = {} if checked is None else checked.definitions
    registered = {entry.name for entry in job.store.invariants.registered(job.name)}
    plans = []
    for invariant in job.graph.invariants:
        stored = known.get(invariant.name)
        if stored != invariant.query.fingerprint:
            is_new = invariant.name not in registered
            change = DefinitionChange.NEW if is_new else DefinitionChange.CHANGED
            location = str(invariant.query.flow.location)
            plans.append(InvariantPlan(invariant=invariant.name, change=change, location=location))
    gone = registered - {invariant.name for invariant in job.graph.invariants}
    return plans + [InvariantPlan(invariant=name, change=DefinitionChange.REMOVED) for name in sorted(gone)]


def _pins(job: Job, rewritten: Collection[TableName]) -> list[PinnedVersions]:
    pins = []
    for pin in job.store.pins.live():
        tables = tuple(sorted(pin.versions.keys() & {*rewritten}))
        if tables:
            pins.append(
                PinnedVersions(
                    owner=pin.owner,
                    checkpoint=pin.checkpoint,
                    expires_at_ms=pin.expires_at_ms,
                    datasets=tables,
                )
            )
    return pins
