"""Runs of this process that stand for processes of their own: which of them have ended.

A run that crashed in a test leaves its lease behind, and the process that would be gone is the test's.
"""

from __future__ import annotations

from tautochrone.model.jobs import RunProcess
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.job.ownership import Ownership, has_ended

__all__ = ["as_process", "ended"]

_ENDED: set[str] = set()


def as_process(job: Job) -> None:
    """Let the job see that runs of `ended` jobs have ended, as it would of processes."""
    job.ownership = Ownership(has_ended=_has_ended)


def ended(job: Job) -> None:
    """The process of this job would be gone now, however it ended."""
    _ENDED.add(job.ownership.run)


def _has_ended(process: RunProcess) -> bool:
    return process.run in _ENDED or has_ended(process)
