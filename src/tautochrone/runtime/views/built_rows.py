"""Views whose rows a plan built beside them: main gets these instead of a computation.

What the commit says is what the rows were computed from. So whatever came since is followed from there, as
after any other refresh, and a build that is applied late is right too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tautochrone.ingest.staging import expectation_counts
from tautochrone.model.catalog import LakeCatalog
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.names import TableName, Version
from tautochrone.model.project_build import BuildState, BuiltTable, ProjectBuild
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.refresh.states import state_definition
from tautochrone.runtime.refresh.task import RefreshContext, RefreshTask

__all__ = ["BuiltRows", "is_taken_over", "with_applied"]


def is_taken_over(lake: LakeCatalog, build: ProjectBuild) -> bool:
    """Whether no table has rows of a build beside main any more."""
    tables = [name for name in {*build.versions, *build.created} if lake.exists(name)]
    return all(lake.buildable(name).built_version(build.branch) is None for name in tables)


def with_applied(applied: Refresh, followed: Refresh) -> Refresh:
    """One refresh that gave a view built rows and then followed what came to its inputs since."""
    before = {count.name: count.change for count in applied.expectations}
    return replace(
        followed,
        rows_inserted=applied.rows_inserted + followed.rows_inserted,
        rows_deleted=applied.rows_deleted + followed.rows_deleted,
        nodes=(*(replace(node, node="built rows") for node in applied.nodes), *followed.nodes),
        expectations=tuple(
            replace(count, change=count.change + before.get(count.name, 0)) for count in followed.expectations
        ),
    )


class BuiltRows:
    """The decided builds of one job. Serves all checkpoints of a run, from several threads.

    Args:
        load: the job's builds; asked once, after the takeover.
        fingerprints: of all tables and invariants of the job: builds of other definitions are left alone.
    """

    def __init__(
        self,
        context: RefreshContext,
        load: Callable[[], Sequence[ProjectBuild]],
        fingerprints: Mapping[str, str],
    ) -> None:
        self._context = context
        self._fingerprints = fingerprints
        self._load = load
        self._loaded: tuple[ProjectBuild, ...] | None = None

    @property
    def decided(self) -> tuple[ProjectBuild, ...]:
        """The builds that the next checkpoint takes over."""
        if self._loaded is None:
            self._loaded = tuple(
                build
                for build in self._load()
                if build.state is BuildState.DECIDED and build.definitions == self._fingerprints
            )
        return self._loaded

    def keep(self, builds: Sequence[ProjectBuild]) -> None:
        """Forget all others: a checkpoint has taken them over."""
        self._loaded = tuple(builds)

    def apply(self, task: RefreshTask) -> RefreshTask | None:
        """Give main the built rows of a view.

        Rows that main does not get now are dropped: a later refresh would put them over newer ones.

        Returns:
            What is left to do; None: there are no rows, main has them, or a user asked for computed ones.

        Raises:
            ConflictError: somebody else moved the table.
        """
        table = self._context.lake.buildable(task.name)
        waiting = [
            (build, built)
            for build in self.decided
            if (built := build.table(task.name)) and table.built_version(build.branch) == built.version
        ]
        newest = None if task.is_full_requested or not waiting else waiting.pop()
        for build, built in waiting:
            self._drop_states(build, built)
            table.drop_build(build.branch)
        return None if newest is None else self._apply(task, *newest)

    def _apply(self, task: RefreshTask, build: ProjectBuild, built: BuiltTable) -> RefreshTask:
        inputs = {str(name): version for name, version in self._inputs(build, built).items()}
        metadata = replace(
            task.metadata_with(RefreshMode.FULL),
            inputs=inputs,
            companions=self._applied_states(task, build, built),
            violations=dict(built.violations),
            built=built.version,
        )
        rows_before = task.table.row_count(task.fork.version) or 0
        committed = self._context.lake.buildable(task.name).apply_build(
            task.fork, self._context.table_definition(task.name), build.branch, metadata
        )
        reason = Reason.of(ReasonCode.BUILD_APPLIED, plan=build.id, checkpoint=int(build.base))
        refresh = Refresh(
            mode=RefreshMode.FULL,
            reason=reason,
            rows_inserted=committed.rows_inserted,
            rows_deleted=rows_before,
            nodes=(NodeRefresh(node="query", mode=RefreshMode.FULL, reason=reason),),
            expectations=expectation_counts(task.expectations, task.violations_before, built.violations),
        )
        return replace(task, fork=task.table.fork(), applied=refresh)

    def _applied_states(self, task: RefreshTask, build: ProjectBuild, built: BuiltTable) -> dict[str, str]:
        """The versions of the view's states that belong to its built rows.

        Where one of them is missing none belongs to them, and the next change computes the view anew. Their
        tables get them first, because the view's commit names the versions.
        """
        lake, applied = self._context.lake, dict[str, str]()
        for name, state in built.states.items():
            table = lake.buildable(name)
            stored = self._context.load_table(name) if lake.exists(name) else None
            if stored is None:
                break
            fork = stored.fork()
            last = fork.commit_metadata
            if table.built_version(build.branch) == state.version:
                metadata = replace(
                    task.metadata_with(RefreshMode.FULL),
                    definition=state.definition,
                    # The stored rows have the number that was the next one when they were built.
                    run=1 + (0 if last is None or last.run is None else last.run),
                    runs=0,
                    built=state.version,
                )
                definition = state_definition(name, lake.schema(name), task.name)
                committed = table.apply_build(fork, definition, build.branch, metadata)
                applied[str(name)] = str(committed.version)
            elif last is not None and last.built == state.version:
                # The process that applied it died before the view's commit.
                applied[str(name)] = str(fork.version)
        if len(applied) == len(built.states):
            return applied
        self._drop_states(build, built)
        return {}

    def _drop_states(self, build: ProjectBuild, built: BuiltTable) -> None:
        for name in built.states:
            if self._context.lake.exists(name):
                self._context.lake.buildable(name).drop_build(build.branch)

    def _inputs(self, build: ProjectBuild, built: BuiltTable) -> dict[TableName, Version]:
        """The versions from which the rows were computed, where an input was built too the one that main got.

        An input that main did not get is left out: then the rows are compared.
        """
        versions: dict[TableName, Version] = {}
        for name, version in built.inputs.items():
            if build.table(name) is None:
                versions[name] = version
                continue
            for past in self._context.load_table(name).versions():
                if past.commit_metadata is not None and past.commit_metadata.built == version:
                    versions[name] = past.version
        return versions
