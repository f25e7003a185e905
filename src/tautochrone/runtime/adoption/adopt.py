"""Adopts tables that Spark's own pipelines built: `taut adopt`.

    1. survey every dataset; if one is refused, nothing is written
    2. register the topology, raise the fence
    3. per root: archive the sources' metadata, commit metadata and positions, report the version
    4. open a checkpoint of the surveyed versions
    5. per derived table: the same commit, naming the checkpoint and the inputs; record its version
    6. publish

A process that dies in between leaves some tables adopted and no published checkpoint. The next adoption
surveys again and repeats all steps. Every commit is a compare-and-set on the surveyed version, so the
adoption fails if another program still writes to a table.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from tautochrone.errors import LakeError, SettingsError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.meta.protocols.checkpoints import Checkpoints, NewCheckpoint, Roots
from tautochrone.model import events
from tautochrone.model.checkpoint import Checkpoint, CheckpointState, NodeRefresh, Refresh, RefreshMode
from tautochrone.model.effects import Step
from tautochrone.model.lake import Committed
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version, is_shadow_table
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import SparkPosition
from tautochrone.runtime.adoption.adoptable import Action, Finding, Survey
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.cut import tag_cut
from tautochrone.runtime.loop.takeover import become_owner

__all__ = ["Adoption"]


class Adoption:
    """One adoption of a job's tables: call `survey`, then `adopt_and_publish`.

    Args:
        rebuild: materialized views that the next run rebuilds instead, together with the views that read
            them.

    Raises:
        SettingsError: `ADOPTION_REBUILD_OF_STREAM`.
    """

    def __init__(self, job: Job, rebuild: Sequence[TableName] = ()) -> None:
        for name in rebuild:
            if name not in job.graph.order or not job.topology.is_view(name):
                raise SettingsError(
                    "ADOPTION_REBUILD_OF_STREAM",
                    f"{name} is no materialized view: its rows cannot be computed again from its inputs",
                    hint="move the table away and let `taut run` read its sources from the beginning",
                )
        self._job = job
        self._now_us = job.clock_us()
        self._survey = Survey(job, frozenset(rebuild), self._now_us)

    def survey(self) -> list[Finding]:
        """Check every dataset without writing. Empty when the job already owns its tables.

        Raises:
            LakeError: `ADOPTION_TOO_LATE`, the pipeline has checkpoints, and a table was written by others.
        """
        job = self._job
        if job.store.checkpoints.latest_published(job.name) is None:
            return self._survey.findings()
        for name in job.graph.order:
            if job.lake.exists(name) and job.lake.load(name).fork().commit_metadata is None:
                raise LakeError(
                    "ADOPTION_TOO_LATE",
                    f"{name} was not written by this pipeline, which has published checkpoints already",
                    hint="adopt before the first run; now rename the dataset, or move the table away",
                    location=str(job.definitions.datasets[name].location),
                    sqlstate="55000",
                )
        return []

    def adopt_and_publish(
        self, findings: Sequence[Finding], owned: Callable[[], None] = lambda: None
    ) -> CheckpointNumber:
        """Make the surveyed tables the job's own and publish them as its first checkpoint.

        Args:
            owned: called once this process owns the job.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job; nothing is written.
            LakeError: `ADOPTION_REFUSED`, a dataset was refused; nothing is written.
            ConflictError: a table moved since the survey.
        """
        _require_none_refused(findings)
        job = self._job
        metadata = [
            finding.fork.commit_metadata
            for finding in findings
            if finding.fork and finding.fork.commit_metadata
        ]
        become_owner(job, max((commit_metadata.fence for commit_metadata in metadata), default=Fence(0)))
        owned()
        versions = dict(self._survey.outside)
        roots = set(job.topology.root_tables)
        for finding in findings:
            if finding.dataset in roots:
                versions[finding.dataset] = self._adopt(finding, versions, None).version
                job.journal.record(Roots.report, {finding.dataset: versions[finding.dataset]})
        above = max(
            (
                int(commit_metadata.checkpoint) + 1
                for commit_metadata in metadata
                if commit_metadata.checkpoint
            ),
            default=0,
        )
        started = time.monotonic()
        checkpoint = self._open_checkpoint(versions, above)
        failed = [
            finding.dataset
            for finding in findings
            if finding.dataset not in roots and not self._adopt_derived(finding, versions, checkpoint.number)
        ]
        job.journal.record(Checkpoints.publish, checkpoint.number, round(time.time() * 1000))
        job.emit(
            events.Checkpoint(
                checkpoint=checkpoint.number,
                state=CheckpointState.PUBLISHED,
                job=job.name,
                failed=sorted(map(str, failed)),
                duration_ms=round((time.monotonic() - started) * 1000),
            )
        )
        return checkpoint.number

    def _open_checkpoint(self, roots: dict[TableName, Version], above: int) -> Checkpoint:
        """Open the checkpoint, or continue that of an interrupted adoption of the same cut."""
        job = self._job
        checkpoint = job.store.checkpoints.next_for(job.name)
        if checkpoint is not None and dict(checkpoint.roots) == roots:
            return checkpoint
        if checkpoint is not None:
            job.journal.abort(checkpoint.number)
            reason = Reason.of(ReasonCode.ADOPTION_INTERRUPTED)
            job.emit(events.CheckpointAborted(checkpoint=checkpoint.number, reason=reason))
            above = max(above, int(checkpoint.number) + 1)
        if job.settings.tag_external_tables:
            tagged = {name for name in job.external_tables() if not is_shadow_table(name)}
            external = {name: roots[name] for name in tagged & roots.keys()}
            tag_cut(job.lake_table, external, job.settings.external_table_tags_kept, job.emit)
        return job.journal.open(NewCheckpoint(roots, self._now_us // 1000, at_least=above))

    def _adopt_derived(
        self, finding: Finding, versions: dict[TableName, Version], number: CheckpointNumber
    ) -> bool:
        """Adopt a derived table; returns whether it has a version at the checkpoint."""
        job, name = self._job, finding.dataset
        if finding.table is not None:
            commit = self._adopt(finding, versions, number)
        if finding.action is Action.REBUILD:
            job.journal.record_failure(
                number, name, Reason.of(ReasonCode.LEFT_TO_BE_REBUILT, cause=str(finding.reason))
            )
            return False
        versions[name] = commit.version
        proof = Reason.of(ReasonCode.NODE_RULE, rule=str(finding.reason))
        node = NodeRefresh(node="query", mode=RefreshMode.NO_DATA, reason=proof)
        reason = Reason.of(ReasonCode.ADOPTED, proof=str(finding.reason))
        refresh = Refresh(mode=node.mode, reason=reason, nodes=(node,))
        job.journal.record_version(number, name, commit.version, refresh)
        return True

    def _adopt(
        self, finding: Finding, versions: dict[TableName, Version], number: CheckpointNumber | None
    ) -> Committed:
        """Make the commit that adopts a table.

        A view without a definition in its commit metadata is rebuilt by the next run; the mode FULL says
        that it has rows to replace.
        """
        job, name = self._job, finding.dataset
        assert finding.table is not None
        assert finding.fork is not None
        if finding.action is Action.REBUILD:
            commit_metadata = job.commit_metadata(mode=str(RefreshMode.FULL))
        elif number is None:
            commit_metadata = job.commit_metadata(positions=self._positions(finding))
        else:
            commit_metadata = job.commit_metadata(
                checkpoint=number,
                mode=str(RefreshMode.NO_DATA),
                definition=job.topology.fingerprint(name),
                positions=self._positions(finding),
                inputs={str(read): versions[read] for read in sorted(job.topology.inputs(name))},
            )
        done = finding.table.adopt(finding.fork, job.topology.table_definition(name), commit_metadata)
        job.emit(
            events.Adopted(
                dataset=str(name),
                action=str(finding.action),
                version=str(done.version),
                reason=finding.reason,
            )
        )
        return done

    def _positions(self, finding: Finding) -> dict[str, SparkPosition]:
        """Positions of a streaming table's flows. Archives the metadata of their sources."""
        positions: dict[str, SparkPosition] = {}
        for flow in self._job.topology.flows(finding.dataset):
            reached = finding.reached.get(flow.flow.name)
            if reached is not None and reached.batch is not None:
                positions[flow.flow.name] = self._job.effects.perform(
                    Step.INGEST_SOURCE_FILES,
                    str(finding.dataset),
                    partial(_archived_position, reached.folder, reached.batch, stateful=flow.stateful),
                )
        return positions


def _require_none_refused(findings: Sequence[Finding]) -> None:
    refused = [finding for finding in findings if finding.error is not None]
    if refused:
        raise LakeError(
            "ADOPTION_REFUSED",
            f"{len(refused)} of {len(findings)} datasets cannot be taken over, so none was: "
            f"{refused[0].reason}",
            hint="`taut adopt --dry-run` lists all",
            sqlstate="55000",
        )


def _archived_position(folder: CheckpointFolder, batch: int, *, stateful: bool) -> SparkPosition:
    return folder.position(folder.plan(batch), None, stateful=stateful)
