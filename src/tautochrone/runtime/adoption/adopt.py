"""Taking over tables that Spark's own pipelines built, as they are: `taut adopt`.

    1. survey: every dataset is looked at; one refusal, and nothing at all is written
    2. register the topology, raise the fence
    3. per root: archive what its sources remember, commit metadata and positions, report its version
    4. open the checkpoint: the versions that were surveyed
    5. per derived table: the same commit, naming the checkpoint and the inputs; record its version
    6. publish

A process that dies in between leaves tables that are ours beside tables that are not, and no published
checkpoint: adopting again surveys everything again and goes through all steps, each of which may be
repeated. Every commit is a compare-and-set on the version that was surveyed, so whoever still writes to a
table makes the adoption fail instead of being overlooked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from tautochrone.errors import LakeError, SettingsError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.model.checkpoint import Checkpoint
from tautochrone.model.effects import Step
from tautochrone.model.lake import Committed
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.source_position import SparkPosition
from tautochrone.runtime.adoption.adoptable import Action, Finding, Survey
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.loop.cut import Cut
from tautochrone.runtime.loop.external_tables import tag_cut
from tautochrone.runtime.loop.takeover import become_owner

__all__ = ["Adoption"]


class Adoption:
    """One adoption of a job's tables. Ask `survey`, then `complete`.

    Args:
        rebuild: materialized views that the next run computes anew instead, and with them the views
            that read them.

    Raises:
        SettingsError: `ADOPTION_REBUILD_OF_STREAM`.
    """

    def __init__(self, job: Job, rebuild: Sequence[TableName] = ()) -> None:
        for name in rebuild:
            if name not in job.graph.order or not job.topology.is_view(name):
                raise SettingsError(
                    "ADOPTION_REBUILD_OF_STREAM",
                    f"{name} is no materialized view: its rows cannot be computed anew from its inputs",
                    hint="move the table away and let `taut run` read its sources from the beginning",
                )
        self._job = job
        self._now_us = job.clock_us()
        self._survey = Survey(job, frozenset(rebuild), self._now_us)

    def survey(self) -> list[Finding]:
        """Look at everything and write nothing; empty when the job's tables are its own already.

        Raises:
            LakeError: `ADOPTION_TOO_LATE`, the pipeline runs, and a table of its is somebody else's.
        """
        job = self._job
        if job.store.latest_published(job.name) is None:
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

    def complete(
        self, findings: Sequence[Finding], owned: Callable[[], None] = lambda: None
    ) -> CheckpointNumber:
        """Make the surveyed tables the job's own and publish them as its first checkpoint.
        `owned` is called as soon as the job is ours.

        Raises:
            MetaError: `JOB_RUNNING`, another run has the job; nothing is written.
            LakeError: `ADOPTION_REFUSED`, a dataset was refused; nothing is written.
            ConflictError: a table moved since it was looked at.
        """
        refused = [finding for finding in findings if finding.error is not None]
        if refused:
            raise LakeError(
                "ADOPTION_REFUSED",
                f"{len(refused)} of {len(findings)} datasets cannot be taken over, so none was: "
                f"{refused[0].reason}",
                hint="`taut adopt --dry-run` lists all",
                sqlstate="55000",
            )
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
                job.journal.report({finding.dataset: versions[finding.dataset]})
        above = max(
            (
                int(commit_metadata.checkpoint) + 1
                for commit_metadata in metadata
                if commit_metadata.checkpoint
            ),
            default=0,
        )
        started = time.monotonic()
        checkpoint = self._opened(versions, above)
        failed = [
            finding.dataset
            for finding in findings
            if finding.dataset not in roots and not self._derived(finding, versions, checkpoint.number)
        ]
        job.journal.publish(checkpoint.number, round(time.time() * 1000))
        job.emit(
            "checkpoint",
            checkpoint=int(checkpoint.number),
            state="published",
            failed=sorted(map(str, failed)),
            duration_ms=round((time.monotonic() - started) * 1000),
        )
        return checkpoint.number

    def _opened(self, roots: dict[TableName, Version], above: int) -> Checkpoint:
        """The checkpoint of the adoption: that of an attempt that died, when it was of the same cut."""
        job = self._job
        target = job.store.open_target(job.name)
        if target is not None and dict(target.roots) == roots:
            return target
        if target is not None:
            job.journal.abort(target.number)
            reason = "an earlier adoption ended before it was complete, and tables moved since"
            job.emit("checkpoint_aborted", checkpoint=int(target.number), reason=reason)
            above = max(above, int(target.number) + 1)
        if job.settings.tag_external_tables:
            tag_cut(job, Cut(roots, {}, self._now_us, job.store.now_ms(), {}))
        return job.journal.open(roots, self._now_us // 1000, above)

    def _derived(
        self, finding: Finding, versions: dict[TableName, Version], number: CheckpointNumber
    ) -> bool:
        """Adopt a derived table for the checkpoint; whether it has a version there."""
        job, name = self._job, finding.dataset
        if finding.table is not None:
            done = self._adopt(finding, versions, number)
        if finding.action is Action.REBUILD:
            job.journal.failure(number, name, finding.reason)
            return False
        versions[name] = done.version
        node = NodeRefresh(node="query", mode=RefreshMode.NO_DATA, reason=finding.reason)
        refresh = Refresh(mode=node.mode, reason=f"taken over: {finding.reason}", nodes=(node,))
        job.journal.version(number, name, done.version, refresh)
        return True

    def _adopt(
        self, finding: Finding, versions: dict[TableName, Version], number: CheckpointNumber | None
    ) -> Committed:
        """The one commit that makes a table ours. Without a definition in its commit metadata a view is
        built anew; the mode says that there are rows to replace."""
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
            "adopted",
            dataset=str(name),
            action=str(finding.action),
            version=str(done.version),
            reason=finding.reason,
        )
        return done

    def _positions(self, finding: Finding) -> dict[str, SparkPosition]:
        """Positions of a streaming table's flows, with what their sources remember archived."""
        found: dict[str, SparkPosition] = {}
        for flow in self._job.topology.flows(finding.dataset):
            reached = finding.reached.get(flow.flow.name)
            if reached is not None and reached.batch is not None:
                found[flow.flow.name] = self._job.effects.perform(
                    Step.INGEST_SOURCE_FILES,
                    str(finding.dataset),
                    partial(_archived, reached.folder, reached.batch, stateful=flow.stateful),
                )
        return found


def _archived(folder: CheckpointFolder, batch: int, *, stateful: bool) -> SparkPosition:
    return folder.position(folder.plan(batch), None, stateful=stateful)
