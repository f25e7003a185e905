"""What a run of a job does to the lake, without Spark: takeover, ingestion, refreshes of views with states.

Each function mirrors one of `tautochrone.runtime` step by step, and a process may die between any two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.meta.simulation.virtual_lake import (
    GROUPS,
    Batch,
    Run,
    VirtualTable,
    query,
    source_rows,
    weight,
)

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetEntry, Store, StoreRelation
from tautochrone.model.checkpoint import Checkpoint, RefreshMode
from tautochrone.model.lake import ChangeKind, CommitMetadata, Fork
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.source_position import SparkPosition

if TYPE_CHECKING:
    from tests.meta.simulation.simulation import Simulation

__all__ = ["KilledError", "Process", "ingest", "refresh", "take_over"]

_FOLD_AFTER = 4
_FLOW = "f"
_NO_FENCE = Fence(0)


class KilledError(Exception):
    """The process died here."""


@dataclass(eq=False)
class Process:
    """One running instance of a job. What it knows of the store is what it was told.

    `pending` is what it was about to write when it died; `faults` is how often the store had been replaced
    when it started. `incarnation` and `newest` are as of `runtime.job.job.Journal`.
    """

    job: str
    store: Store
    pipeline: str
    faults: int
    fence: Fence = _NO_FENCE
    incarnation: str | None = None
    newest: int = 0
    target: Checkpoint | None = None
    done: dict[TableName, Version] = field(default_factory=dict)
    cut: dict[TableName, Version] | None = None
    observations: dict[TableName, int] = field(default_factory=dict)
    idle: bool = False
    pending: Callable[[], object] | None = None

    def commit_metadata(self, **fields: object) -> CommitMetadata:
        return CommitMetadata(
            pipeline=self.pipeline,
            job=self.job,
            fence=self.fence,
            store=self.incarnation or self.store.incarnation,
            **fields,  # type: ignore[arg-type]
        )


def act(simulation: Simulation, process: Process, action: Callable[[], Version | None]) -> Version | None:
    """One durable step; the process may die before it, and then another may find it half done."""
    if simulation.dies():
        process.pending = action
        raise KilledError
    return action()


# -- takeover ---------------------------------------------------------------------------------------


def take_over(simulation: Simulation, process: Process) -> None:
    """As `runtime.loop.takeover`: registers, raises the fence, then makes every table its own."""
    lake, store, entries = simulation.lake, process.store, simulation.entries[process.job]
    # Imported here: a revision is carried out by whoever takes over, and takes jobs over itself.
    from tests.meta.simulation.revising import finish_revisions

    existing = {entry.name: lake[entry.name] for entry in entries if entry.name in lake.tables}
    seen = max((table.fork().fence for table in existing.values()), default=Fence(0))
    _check_store(simulation, process, existing)
    store.jobs.start_run(process.pipeline, process.job, entries)
    roots = [entry.name for entry in entries if entry.is_root]
    process.fence = store.jobs.take_over(process.job, at_least=seen, ingests=roots)
    process.incarnation = store.incarnation
    finish_revisions(simulation, process)
    for table in existing.values():
        act(simulation, process, lambda table=table: _settle(simulation, process, table))  # type: ignore[misc]
    _identify(simulation, process)
    for entry in entries:
        if entry.name not in existing:
            lake.create(entry.name, process.commit_metadata())
            if entry.is_root:
                simulation.times.take(entry.name, lake[entry.name].main, simulation.random)
    _identify(simulation, process)
    reported = store.roots.reported(process.job)
    for name in roots:
        known, main = reported.get(name), lake[name].main
        if known is None or lake[name].change_between(known, main) is not ChangeKind.NONE:
            store.roots.report(process.job, process.fence, {name: main})


def _check_store(
    simulation: Simulation, process: Process, existing: Mapping[TableName, VirtualTable]
) -> None:
    """As `runtime.job.reconcile_store`: with the tables of all jobs of the pipeline."""
    store, job = process.store, process.job
    known = {
        name: identity
        for name, identity in store.datasets.table_ids(job).items()
        if name in simulation.lake.inputs
    }
    changed = [name for name in known if name in existing and existing[name].identity != known[name]]
    if changed or (known and not known.keys() & existing.keys()):
        raise MetaError("META_STORE_OF_ANOTHER_LAKE", "as runtime.reconcile_store")
    ours = simulation.tables_of(process.pipeline)
    relation = store.recovery.compare(job, {table.name: table.says() for table in ours}).relation
    lake = {table.name: table.history() for table in ours}
    if relation is StoreRelation.EMPTY:
        if any(version.checkpoint is not None for versions in lake.values() for version in versions):
            store.recovery.rebuild(lake)
    elif relation is not StoreRelation.CURRENT:
        store.recovery.reconcile(job, lake)


def _identify(simulation: Simulation, process: Process) -> None:
    tables = [simulation.lake.tables.get(entry.name) for entry in simulation.entries[process.job]]
    now = {table.name: table.identity for table in tables if table is not None}
    if now != process.store.datasets.table_ids(process.job):
        process.store.datasets.record_table_ids(process.job, process.fence, now)


def _settle(simulation: Simulation, process: Process, table: VirtualTable) -> Version:
    if table.prepared is not None:
        if table.prepared.fork.version == table.main:
            simulation.times.take(table.name, table.commit_prepared(process.fence), simulation.random)
        else:
            table.prepared = None
    before = table.main
    table.raise_fence(process.commit_metadata())
    simulation.times.take_back(table.name, table.main, before)
    return table.main


# -- ingestion --------------------------------------------------------------------------------------


def ingest(simulation: Simulation, process: Process, name: TableName) -> None:
    """Prepare beside main, commit, report. The position that the table remembers is where it goes on."""
    table, job = simulation.lake[name], process.job
    observed_ms, fork = simulation.now, table.fork()
    simulation.sources.latest = max(simulation.sources.latest, observed_ms)
    position = None if fork.commit_metadata is None else fork.commit_metadata.positions.get(_FLOW)
    begin, end = 0 if position is None else int(position.offsets), simulation.sources.rows.get(name, 0)
    if end > begin:
        next_position = SparkPosition(query_id=_FLOW, batch_id=end, offsets=str(end), commit="")
        old, new, before = table.newest.rows, source_rows(end), source_rows(begin)
        rows = {group: old[group] + new[group] - before[group] for group in GROUPS}
        commit_metadata = process.commit_metadata(positions={_FLOW: next_position})
        batch = Batch(fork, rows, {name: end}, commit_metadata)
        act(simulation, process, lambda: table.prepare(batch))

        def commit() -> Version:
            version = table.commit_prepared(process.fence)
            simulation.times.take(name, version, simulation.random)
            return version

        version = act(simulation, process, commit)
        assert version is not None
        act(simulation, process, lambda: process.store.roots.report(job, process.fence, {name: version}))
    process.observations[name] = observed_ms


# -- views ------------------------------------------------------------------------------------------


def refresh(
    simulation: Simulation,
    process: Process,
    entry: DatasetEntry,
    number: CheckpointNumber,
    versions: Mapping[TableName, Version],
) -> Version:
    """As `runtime.views.refresh_view` refreshes a view."""
    table, lake = simulation.lake[entry.name], simulation.lake
    fork = table.fork()
    inputs = {name: versions[name] for name in sorted(entry.inputs)}
    commit_metadata = process.commit_metadata(
        checkpoint=number,
        mode=str(RefreshMode.FULL),
        definition=entry.definition,
        inputs={str(name): version for name, version in inputs.items()},
    )
    if fork.commit_metadata is not None and _is_committed(fork.commit_metadata, commit_metadata):
        return fork.version
    if fork.commit_metadata is None or fork.commit_metadata.definition != entry.definition:
        return _compute(simulation, process, table, fork, commit_metadata, inputs)
    old = {TableName.parse(name): Version(version) for name, version in fork.commit_metadata.inputs.items()}
    changes = {
        name: lake[name].change_between(old[name], version) if name in old else ChangeKind.UNKNOWN
        for name, version in inputs.items()
    }
    if set(changes.values()) == {ChangeKind.NONE}:
        return _same_rows(process, table, fork.version)
    state = _state_of(simulation, fork)
    if state is None or ChangeKind.UNKNOWN in changes.values() or simulation.random.random() < 0.3:
        return _compute(simulation, process, table, fork, commit_metadata, inputs)
    delta = {
        group: sum(
            weight(name) * (lake.rows(name, now)[group] - lake.rows(name, old[name])[group])
            for name, now in inputs.items()
        )
        for group in GROUPS
    }
    return _follow(simulation, process, table, state, fork, commit_metadata, delta)


def _is_committed(commit_metadata: CommitMetadata, expected: CommitMetadata) -> bool:
    """Whether a view's rows are those of the checkpoint already, as `RefreshTask.is_committed` tells."""
    return (
        commit_metadata.checkpoint == expected.checkpoint
        and commit_metadata.store == expected.store
        and commit_metadata.definition == expected.definition
        and commit_metadata.inputs == expected.inputs
    )


def _same_rows(process: Process, table: VirtualTable, main: Version) -> Version:
    """The version that readers know already, when main only carries fences on top of it."""
    shown = {status.dataset: status.checkpoint for status in process.store.datasets.statuses()}.get(
        table.name
    )
    known = None if shown is None else process.store.checkpoints.versions_at(shown).get(table.name)
    if known is None or table.change_between(known, main) is not ChangeKind.NONE:
        return main
    return known


def _origin(simulation: Simulation, commit_metadata: CommitMetadata) -> dict[TableName, int]:
    """How much of each source a view has; a refresh that mixes instants shows here."""
    origin: dict[TableName, int] = {}
    for name, version in commit_metadata.inputs.items():
        for source, rows in simulation.lake.origin(TableName.parse(name), version).items():
            assert origin.setdefault(source, rows) == rows, f"{name} reads {source} at another instant"
    return origin


def _compute(
    simulation: Simulation,
    process: Process,
    table: VirtualTable,
    fork: Fork,
    commit_metadata: CommitMetadata,
    inputs: Mapping[TableName, Version],
) -> Version:
    """All rows anew; sometimes with a state, from which the next change can be followed."""
    rows = query({name: simulation.lake.rows(name, version) for name, version in inputs.items()})
    if simulation.random.random() < 0.8:
        state = _state_table(simulation, process, table)
        run = _last_run(state.commit_metadata) + 1
        log = tuple(Run(run, group, rows[group]) for group in GROUPS)
        state_version = _write_state(simulation, process, state, commit_metadata, log)
        commit_metadata = replace(commit_metadata, companions={str(state.name): state_version})
    return _commit_view(simulation, process, table, fork, commit_metadata, rows)


def _follow(
    simulation: Simulation,
    process: Process,
    table: VirtualTable,
    state: VirtualTable,
    fork: Fork,
    commit_metadata: CommitMetadata,
    delta: Mapping[int, int],
) -> Version:
    """What changed on top of the newest run of each group; groups without a change are left alone."""
    assert fork.commit_metadata is not None
    state_version = Version(fork.commit_metadata.companions[str(state.name)])
    if state.main != state_version:
        # A refresh that died between its state and its view.
        last = _last_run(state.commit_metadata, state.merged_commit_metadata_at(state_version))
        state.roll_back(state_version, replace(commit_metadata, inputs={}, run=last))
    log = state.newest.log
    known, rows = _newest(log), dict(table.newest.rows)
    run = _last_run(state.commit_metadata) + 1
    for group in GROUPS:
        if delta[group]:
            rows[group] = known[group] + delta[group]
            log = (*log, Run(run, group, rows[group]))
    if len(log) > _FOLD_AFTER * len(GROUPS):
        last = {entry.group: entry.number for entry in sorted(log, key=lambda entry: entry.number)}
        log = tuple(Run(last[group], group, value) for group, value in _newest(log).items())
    version = _write_state(simulation, process, state, commit_metadata, log)
    commit_metadata = replace(commit_metadata, companions={str(state.name): version})
    return _commit_view(simulation, process, table, fork, commit_metadata, rows)


def _commit_view(
    simulation: Simulation,
    process: Process,
    table: VirtualTable,
    fork: Fork,
    commit_metadata: CommitMetadata,
    rows: Mapping[int, int],
) -> Version:
    origin = _origin(simulation, commit_metadata)
    if rows == table.newest.rows and origin == table.newest.origin:
        act(simulation, process, lambda: table.commit_metadata_only(fork, commit_metadata))
        return fork.version
    version = act(simulation, process, lambda: table.commit(fork, commit_metadata, rows, origin))
    assert version is not None
    return version


def _last_run(*metadata: CommitMetadata | None) -> int:
    """The highest run that a state ever had, as `runtime.refresh.states` tells it."""
    return max(0, *(commit_metadata.run or 0 for commit_metadata in metadata if commit_metadata is not None))


def _newest(log: tuple[Run, ...]) -> dict[int, int]:
    """Of each group the newest run. Of two with the same number anybody may win: here the older one."""
    newest: dict[int, Run] = {}
    for run in log:
        if run.group not in newest or run.number > newest[run.group].number:
            newest[run.group] = run
    return {group: run.value for group, run in newest.items()}


def _state_name(table: TableName) -> TableName:
    return TableName(table.catalog, ("_tautochrone",), f"{'__'.join(table.namespace)}__{table.table}__0")


def _state_table(simulation: Simulation, process: Process, table: VirtualTable) -> VirtualTable:
    name = _state_name(table.name)
    return simulation.lake.tables.get(name) or simulation.lake.create(name, process.commit_metadata())


def _state_of(simulation: Simulation, fork: Fork) -> VirtualTable | None:
    """The state that belongs to the view's rows, if it is there."""
    name = _state_name(fork.table)
    version = None if fork.commit_metadata is None else fork.commit_metadata.companions.get(str(name))
    state = simulation.lake.tables.get(name)
    return (
        state if state is not None and version is not None and state.goes_back_to(Version(version)) else None
    )


def _write_state(
    simulation: Simulation,
    process: Process,
    state: VirtualTable,
    commit_metadata: CommitMetadata,
    log: tuple[Run, ...],
) -> Version:
    fork = state.fork()
    run = _last_run(state.commit_metadata) + 1
    says = replace(commit_metadata, definition="state", inputs={}, companions={}, run=run)
    version = act(simulation, process, lambda: state.commit(fork, says, {}, {}, log))
    assert version is not None
    return version
