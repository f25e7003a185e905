"""Checks whether a job can adopt tables that Spark's own pipelines built. Reads only.

A materialized view must equal its query over the current inputs. A streaming table cannot be recomputed: its
sources may no longer have its rows. Instead Spark's checkpoint folders and the table's versions must name the
same batches, so that the flow continues without repeating or missing a row. A streaming table that reads
another one must have read it to its end, so that both are at the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import LakeError, TableMissingError, TautochroneError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import source_offsets, stream_position
from tautochrone.model.catalog import NEWEST, AdoptableTable, job_read_point
from tautochrone.model.counts import counted
from tautochrone.model.lake import Fork
from tautochrone.model.names import TableName, Version, describe_input, is_file_table, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.job.job import ClockTable, Job
from tautochrone.runtime.streams.streams import Streams
from tautochrone.runtime.views.verify import Sessions, nondeterminism, recompute
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["Action", "Finding", "FlowProgress", "Survey"]

_RUN_SPARK_AGAIN = (
    "run `spark-pipelines run` once more, so that it brings all tables to one state, then adopt"
)


class Action(StrEnum):
    """What adoption does with a dataset."""

    ADOPT = "adopt"
    REBUILD = "rebuild"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """A flow's checkpoint folder and the last batch in it; None: no batch yet."""

    folder: CheckpointFolder
    batch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What adoption does with one dataset, and why.

    Attributes:
        fork: the table at the survey; None: it does not exist.
        reached: the flows of a streaming table, by name.
        error: why the dataset is refused.
    """

    dataset: TableName
    action: Action
    reason: Reason
    fork: Fork | None = None
    table: AdoptableTable | None = None
    reached: Mapping[str, FlowProgress] = field(default_factory=dict)
    error: LakeError | None = None


class Survey:
    """Checks every dataset of a job at the newest versions of all tables.

    Args:
        rebuild: materialized views that the next run rebuilds.
        now_us: the time that `now()` stands for, in microseconds since 1970.
    """

    def __init__(self, job: Job, rebuild: frozenset[TableName], now_us: int) -> None:
        self._job = job
        self._rebuild = rebuild
        self._streams = Streams(job)
        self._tables: dict[TableName, AdoptableTable] = {}
        self._forks: dict[TableName, Fork] = {}
        self._sessions = Sessions(job.base, job.read_points, job.definitions)
        self._read_point = job_read_point("adopt", job.name)
        self.outside = self._outside_versions(now_us)
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
        findings: dict[TableName, Finding] = {}
        for name in self._job.graph.order:
            findings[name] = self._finding(name, findings)
        return list(findings.values())

    def _finding(self, name: TableName, before: Mapping[TableName, Finding]) -> Finding:
        # A foreign table at the time when somebody else built the view is not known any more.
        rebuilt = [
            i
            for i in sorted(self._job.topology.inputs(name))
            if is_shadow_table(i) or (i in before and _is_rebuilt(before[i]))
        ]
        fork, table = self._forks.get(name), self._tables.get(name)
        reached: dict[str, FlowProgress] = {}
        try:
            self._require_unowned(name)
            if name in self._rebuild or (rebuilt and self._job.topology.is_view(name)):
                reason = (
                    Reason.of(ReasonCode.REBUILD_REQUESTED)
                    if name in self._rebuild
                    else Reason.of(ReasonCode.INPUT_IS_REBUILT, input=describe_input(rebuilt[0]))
                )
                return Finding(dataset=name, action=Action.REBUILD, reason=reason, fork=fork, table=table)
            self._require_table(name)
            if self._job.topology.is_view(name):
                reason = self._check_view(name)
            else:
                reached, reason = self._check_stream(name)
        except LakeError as error:
            error.location = str(self._job.definitions.datasets[name].location)
            reason = Reason.of(ReasonCode.ADOPTION_REFUSED, error_class=error.error_class, text=str(error))
            return Finding(dataset=name, action=Action.REFUSE, reason=reason, error=error)
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
        fork, expected = self._forks.get(name), self._job.graph.schemas[name].simpleString()
        if fork is None:
            hint = _RUN_SPARK_AGAIN
            if self._job.topology.is_view(name):
                hint = f"{_RUN_SPARK_AGAIN}, or let the next run build it: --rebuild {name.table}"
            raise LakeError(
                "ADOPTION_TABLE_MISSING",
                f"The catalog has no Iceberg table {name}",
                hint=hint,
                sqlstate="55000",
            )
        stored = str(self._job.lake.schema(name).simpleString())
        if stored != expected:
            raise LakeError(
                "ADOPTION_COLUMNS_DIFFER",
                f"{name} has the columns {stored}, its definition gives {expected}",
                hint=self._or_rebuild(name),
                sqlstate="55000",
            )

    def _check_view(self, view: TableName) -> Reason:
        # The first run makes the tables of files; until then a query reads the files themselves.
        absent = sorted(
            name
            for name in self._job.topology.inputs(view) - self._versions.keys()
            if not is_file_table(name)
        )
        if absent:
            raise LakeError(
                "ADOPTION_TABLE_MISSING",
                f"{view} reads {absent[0]}, which does not exist",
                hint=_RUN_SPARK_AGAIN,
                sqlstate="55000",
            )
        (flow,) = self._job.topology.flows(view)
        if not flow.deterministic:
            raise self._unprovable_error(view, f"its query is not deterministic: {flow.deterministic_reason}")
        try:
            versions = self._versions
            session = self._sessions.at(self._read_point, view.catalog, flow)
            missing, unexpected = recompute(session, self._job.definitions, self._job.graph, view, versions)
        except (PySparkException, Py4JError) as error:
            raise self._unprovable_error(view, f"its query fails: {problem_of(error).message}") from error
        except TautochroneError as error:
            raise self._unprovable_error(view, f"its query fails: {error.message}") from error
        if (missing, unexpected) == (0, 0):
            return Reason.of(ReasonCode.ROWS_EQUAL_QUERY)
        nondeterministic = nondeterminism(self._job.graph, flow, view.catalog)
        if nondeterministic:
            raise self._unprovable_error(
                view, f"its query has several right answers: {'; '.join(nondeterministic)}"
            )
        raise LakeError(
            "ADOPTION_ROWS_DIFFER",
            f"{view} differs from its query: {counted(missing, 'row')} missing, {unexpected} unexpected",
            hint=self._or_rebuild(view),
            sqlstate="55000",
        )

    def _check_stream(self, name: TableName) -> tuple[dict[str, FlowProgress], Reason]:
        batches = self._tables[name].stream_batches()
        reached = {
            flow.flow.name: self._flow_progress(name, flow, batches)
            for flow in self._job.topology.flows(name)
        }
        batches_text = ", ".join(
            f"{flow} at batch {position.batch}" if position.batch is not None else f"{flow} not started"
            for flow, position in reached.items()
        )
        return reached, Reason.of(ReasonCode.POSITIONS_AGREE, batches=batches_text)

    def _flow_progress(self, name: TableName, flow: ResolvedFlow, batches: Mapping[str, int]) -> FlowProgress:
        folder, is_ours = self._streams.spark_folder(name, flow)
        stream = stream_position(folder.state(), batches)
        problem = stream.problem
        if problem is None and flow.stateful and stream.batch is not None:
            if not is_ours:
                problem = f"it keeps state, which cannot be moved here from {folder.path}"
            elif not folder.has_state(stream.batch + 1):
                problem = f"it keeps state, and the state after batch {stream.batch} is missing"
        if problem is not None:
            raise LakeError(
                "ADOPTION_POSITION_UNKNOWN",
                f"Flow {flow.flow.name} of {name}: {problem} ({folder.path})",
                hint=f"{_RUN_SPARK_AGAIN}; if that does not help, move the table away and let "
                "`taut run` build it",
                sqlstate="55000",
            )
        offsets = None if stream.batch is None else folder.offsets(stream.batch)
        for source in sorted(flow.inputs.stream):
            self._require_read(name, flow, source, source_offsets(offsets) if offsets else [])
        return FlowProgress(folder, stream.batch)

    def _require_read(
        self, name: TableName, flow: ResolvedFlow, source: TableName, offsets: list[str]
    ) -> None:
        version = self._versions.get(source)
        if version is None:
            raise LakeError(
                "ADOPTION_TABLE_MISSING",
                f"{name} reads {source}, which does not exist",
                hint=_RUN_SPARK_AGAIN,
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
            hint=_RUN_SPARK_AGAIN,
            sqlstate="55000",
        )

    # -- helpers ----------------------------------------------------------------------------------

    def _outside_versions(self, now_us: int) -> dict[TableName, Version]:
        """Versions of clocks and of external tables that exist."""
        job = self._job
        versions = {name: ClockTable(name, job.base).version_at(now_us) for name in job.topology.clocks}
        for name in job.external_tables():
            try:
                versions[name] = job.lake.load(name).current_version()
            except TableMissingError:
                # Its readers are refused, with its name.
                continue
        return versions

    def _or_rebuild(self, name: TableName) -> str:
        if self._job.topology.is_view(name):
            return f"{_RUN_SPARK_AGAIN}, or let the next run rebuild it: --rebuild {name.table}"
        return f"{_RUN_SPARK_AGAIN}, or move the table away and let `taut run` build it"

    def _unprovable_error(self, view: TableName, reason: str) -> LakeError:
        hint = f"let the next run rebuild it: --rebuild {view.table}"
        return LakeError(
            "ADOPTION_NOT_PROVABLE",
            f"{view} cannot be compared with its query: {reason}",
            hint=hint,
            sqlstate="55000",
        )


def _is_rebuilt(finding: Finding) -> bool:
    return finding.action is Action.REBUILD
