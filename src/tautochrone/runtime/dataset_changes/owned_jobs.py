"""The job that wrote a dataset, owned for as long as the dataset is dropped or renamed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tautochrone.model import events
from tautochrone.model.effects import Step
from tautochrone.model.names import Fence, TableName
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.journal import Journal
from tautochrone.runtime.job.ownership import Heartbeat
from tautochrone.runtime.loop.takeover import become_owner
from tautochrone.runtime.revision.revise import complete_pending
from tautochrone.runtime.streams.streams import Streams

__all__ = ["OwnedJob", "owned"]


@dataclass(frozen=True, slots=True)
class OwnedJob:
    """A job that no other process runs. Its journal has the fence."""

    journal: Journal


@contextmanager
def owned(job: Job, name: str, tables: Collection[TableName], *, registers: bool) -> Iterator[OwnedJob]:
    """Own the job `name` of the project within the block.

    Args:
        job: the project as it was opened.
        tables: of the job, whose fences must be lower. Those that do not exist count for nothing.
        registers: when it is the job that was opened, its datasets are registered as a run does. A store that
            still knows older definitions would take what they read for needed.

    Raises:
        MetaError: `JOB_RUNNING`.
    """
    highest = _highest_fence(job, tables)
    if name == job.name and registers:
        become_owner(job, max(highest, Streams(job).highest_fence()))
        journal = job.journal
    else:
        journal = Journal(job.store, name, job.effects, _take_over(job, name, highest))
        if name == job.name:
            job.journal.fence = journal.fence
    job.emit(events.Takeover(job=name, fence=int(journal.fence)))
    with Heartbeat(journal, job.settings.lease_ms, job.emit) as heartbeat:
        heartbeat.start()
        if name == job.name:
            complete_pending(job, journal.fence)
        yield OwnedJob(journal)


def _highest_fence(job: Job, tables: Collection[TableName]) -> Fence:
    names = {*tables, *job.graph.order}
    forks = (job.lake.load(name).fork() for name in sorted(names) if job.lake.exists(name))
    return Fence(max((fork.fence for fork in forks), default=0))


def _take_over(job: Job, name: str, highest: Fence) -> Fence:
    store = job.store
    return job.effects.perform(
        Step.META_TAKE_OVER,
        name,
        lambda: job.ownership.claim_when_free(
            store,
            name,
            job.emit,
            lambda claim: store.jobs.take_over(
                name, at_least=highest, lease_ms=job.settings.lease_ms, claim=claim
            ),
        ),
    )
