"""Whether a job can take over tables that Spark's own pipelines built. Reads only.

A materialized view must equal its query over the inputs as they are now. Of a streaming table nothing can
be recomputed: its rows may be older than what its sources still hold. There the proof is that Spark's
checkpoint folders and the table's own versions name the same batches, so that going on from there neither
repeats nor misses a row. A streaming table that reads another one must also have read it to its end, or
the two would not stand at one instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import LakeError, TableMissingError, TautochroneError
from tautochrone.ingest.adoption_check import stream_position
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.model.adoptable import AdoptableTable
from tautochrone.model.lake import Fork
from tautochrone.model.names import TableName, Version
from tautochrone.model.read_points import NEWEST
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job.clock_table import ClockTable
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.refresh.verify import Sessions, nondeterminism, recompute
from tautochrone.runtime.streams.streams import Streams
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["Action", "Finding", "Reached", "Survey"]

_AGAIN = "run `spark-pipelines run` once more, so that it brings all tables to one state, then adopt"


class Action(StrEnum):
    """What adoption does with a dataset."""

    ADOPT = "adopt"
    REBUILD = "rebuild"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Reached:
    """Where a flow stands: the folder that proves it, and its last batch (None: none yet)."""

    folder: CheckpointFolder
    batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What becomes of one dataset and why. `fork` is the table as it was looked at, None when there is
    none; `reached` has the flows of a streaming table by name; `error` is there when it is refused."""

    dataset: TableName
    action: Action
    reason: str
    fork: Fork | None = None
    table: AdoptableTable | None = None
    reached: Mapping[str, Reached] = field(default_factory=dict)
    error: LakeError | None = None


class Survey:
    """Looks at every dataset of a job, at the newest versions of all tables.

    Args:
        rebuild: materialized views that are not to be taken over as they are.
        now_us: the time that `now()` stands for, in microseconds since 1970.
    """

    def __init__(self, job: Job, rebuild: frozenset[TableName], now_us: int) -> None:
        self._job = job
        self._rebuild = rebuild
        self._streams = Streams(job)
        self._tables: dict[TableName, AdoptableTable] = {}
        self._forks: dict[TableName, Fork] = {}
        self._sessions = Sessions(job.base, job.read_points, job.definitions)
        self._read_point = f"adopt-{job.name}"
        self.outside = self._outside(now_us)
        job.read_points.show(self._read_point, lambda table: self._versions.get(table, NEWEST))

    @property
    def _versions(self) -> dict[TableName, Version]:
        return {**self.outside, **{name: fork.version for name, fork in self._forks.items()}}

    def findings(self) -> list[Finding]:
        """One for each dataset, inputs before their readers."""
        for name in self._job.graph.order:
            if self._job.lake.exists(name):
                self._tables[name] = self._job.lake.adoptable(name)
                self._forks[name] = self._tables[name].fork()
        found: dict[TableName, Finding] = {}
        for name in self._job.graph.order:
            found[name] = self._finding(name, found)
        return list(found.values())

    def _finding(self, name: TableName, before: Mapping[TableName, Finding]) -> Finding:
        rebuilt = [
            i for i in sorted(self._job.topology.inputs(name)) if i in before and _is_rebuilt(before[i])
        ]
        fork, table = self._forks.get(name), self._tables.get(name)
        reached: dict[str, Reached] = {}
        try:
            self._require_unowned(name)
            if name in self._rebuild or (rebuilt and self._job.topology.is_view(name)):
                asked = "a rebuild was asked for" if name in self._rebuild else f"it reads {rebuilt[0]}"
                reason = f"{asked}: the next run computes it"
                return Finding(dataset=name, action=Action.REBUILD, reason=reason, fork=fork, table=table)
            self._require_table(name)
            if self._job.topology.is_view(name):
                reason = self._proven_view(name)
            else:
                reached, reason = self._proven_stream(name)
        except LakeError as error:
            error.location = str(self._job.definitions.datasets[name].location)
            return Finding(dataset=name, action=Action.REFUSE, reason=str(error), error=error)
        return Finding(
            dataset=name, action=Action.ADOPT, reason=reason, fork=fork, table=table, reached=reached
        )

    def _require_unowned(self, name: TableName) -> None:
        fork = self._forks.get(name)
        if (
            fork is not None
            and fork.commit_metadata is not None
            and fork.commit_metadata.pipeline != self._job.spec.name
        ):
            raise LakeError(
                "TABLE_OF_ANOTHER_PIPELINE",
                f"{name} is written by pipeline {fork.commit_metadata.pipeline}",
                hint="one dataset has one producing pipeline; if this one was renamed: "
                f"`taut adopt --from-pipeline {fork.commit_metadata.pipeline}`",
                sqlstate="55000",
            )

    def _require_table(self, name: TableName) -> None:
        fork, wanted = self._forks.get(name), self._job.graph.schemas[name].simpleString()
        if fork is None:
            hint = _AGAIN
            if self._job.topology.is_view(name):
                hint = f"{_AGAIN}, or let the next run build it: --rebuild {name.table}"
            raise LakeError(
                "ADOPTION_TABLE_MISSING",
                f"The catalog has no Iceberg table {name}",
                hint=hint,
                sqlstate="55000",
            )
        stored = str(self._job.lake.schema(name).simpleString())
        if stored != wanted:
            raise LakeError(
                "ADOPTION_COLUMNS_DIFFER",
                f"{name} has the columns {stored}, its definition gives {wanted}",
                hint=self._or_rebuild(name),
                sqlstate="55000",
            )

    def _proven_view(self, view: TableName) -> str:
        absent = sorted(self._job.topology.inputs(view) - self._versions.keys())
        if absent:
            raise LakeError(
                "ADOPTION_TABLE_MISSING",
                f"{view} reads {absent[0]}, which is not there",
                hint=_AGAIN,
                sqlstate="55000",
            )
        (flow,) = self._job.topology.flows(view)
        if not flow.deterministic:
            raise self._unprovable(view, f"its query is not deterministic: {flow.deterministic_reason}")
        try:
            versions = self._versions
            session = self._sessions.at(self._read_point, view.catalog, flow)
            found = recompute(session, self._job.definitions, self._job.graph, view, versions)
        except (PySparkException, Py4JError) as error:
            raise self._unprovable(view, f"its query fails: {problem_of(error).message}") from error
        except TautochroneError as error:
            raise self._unprovable(view, f"its query fails: {error.message}") from error
        if found == (0, 0):
            return "its rows equal its query"
        several = nondeterminism(self._job.graph, flow, view.catalog)
        if several:
            raise self._unprovable(view, f"its query has several right answers: {'; '.join(several)}")
        raise LakeError(
            "ADOPTION_ROWS_DIFFER",
            f"{view} differs from its query: {found[0]} rows are missing, {found[1]} are unexpected",
            hint=self._or_rebuild(view),
            sqlstate="55000",
        )

    def _proven_stream(self, name: TableName) -> tuple[dict[str, Reached], str]:
        batches = self._tables[name].stream_batches()
        reached = {
            flow.flow.name: self._reached(name, flow, batches) for flow in self._job.topology.flows(name)
        }
        told = ", ".join(
            f"{flow} at batch {at.batch}" if at.batch is not None else f"{flow} not begun"
            for flow, at in reached.items()
        )
        return reached, f"folders and table agree: {told}"

    def _reached(self, name: TableName, flow: ResolvedFlow, batches: Mapping[str, int]) -> Reached:
        folder, is_ours = self._streams.spark_folder(name, flow)
        stand = stream_position(folder.state(), batches)
        problem = stand.problem
        if problem is None and flow.stateful and stand.batch is not None:
            if not is_ours:
                problem = f"it keeps state, which cannot be moved here from {folder.path}"
            elif not folder.has_state(stand.batch + 1):
                problem = f"it keeps state, and the state after batch {stand.batch} is not there"
        if problem is not None:
            raise LakeError(
                "ADOPTION_POSITION_UNKNOWN",
                f"Flow {flow.flow.name} of {name}: {problem} ({folder.path})",
                hint=f"{_AGAIN}; if that does not help, move the table away and let `taut run` build it",
                sqlstate="55000",
            )
        offsets = None if stand.batch is None else folder.offsets(stand.batch)
        for source in sorted(flow.inputs.stream):
            self._require_read(name, flow, source, source_offsets(offsets) if offsets else [])
        return Reached(folder, stand.batch)

    def _require_read(
        self, name: TableName, flow: ResolvedFlow, source: TableName, offsets: list[str]
    ) -> None:
        version = self._versions.get(source)
        if version is None:
            raise LakeError(
                "ADOPTION_TABLE_MISSING",
                f"{name} reads {source}, which is not there",
                hint=_AGAIN,
                sqlstate="55000",
            )
        table = self._job.lake.adoptable(source)
        if any(table.has_read(offset, version) for offset in offsets):
            return
        if not offsets and not self._job.lake.load(source).row_count(version):
            return
        raise LakeError(
            "ADOPTION_STREAM_BEHIND",
            f"Flow {flow.flow.name} of {name} has not read {source} to its end",
            hint=_AGAIN,
            sqlstate="55000",
        )

    # -- inside -----------------------------------------------------------------------------------

    def _outside(self, now_us: int) -> dict[TableName, Version]:
        """Versions of what the pipeline only reads; what is not there has none."""
        job = self._job
        found = {name: ClockTable(name, job.base).version_at(now_us) for name in job.topology.clocks}
        for name in job.external_tables():
            try:
                found[name] = job.lake.load(name).current_version()
            except TableMissingError:
                # Whoever reads it is refused, with its name.
                continue
        return found

    def _or_rebuild(self, name: TableName) -> str:
        if self._job.topology.is_view(name):
            return f"{_AGAIN}, or let the next run compute it anew: --rebuild {name.table}"
        return f"{_AGAIN}, or move the table away and let `taut run` build it"

    def _unprovable(self, view: TableName, why: str) -> LakeError:
        hint = f"let the next run compute it anew: --rebuild {view.table}"
        return LakeError(
            "ADOPTION_NOT_PROVABLE",
            f"{view} cannot be compared with its query: {why}",
            hint=hint,
            sqlstate="55000",
        )


def _is_rebuilt(finding: Finding) -> bool:
    return finding.action is Action.REBUILD
