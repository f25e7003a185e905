"""Runs the forms of `taut serve`: queries, and revisions over the same Spark.

Revisions are those of `taut revise`; definitions are read anew for each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import Any

from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.app.query_runner import SparkQueryRunner
from tautochrone.metaservice.http.logs import FIELDS
from tautochrone.model.events import Event
from tautochrone.model.names import TableName
from tautochrone.model.revision import RevisionPlan
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import complete_pending, revise, survey

__all__ = ["Console"]

_log = logging.getLogger("tautochrone.serve")


class Console(SparkQueryRunner):
    """See `pages.forms`: both `Runner` and `Revisions`. Safe to share between threads.

    Args are those of `SparkQueryRunner`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._revising = Lock()

    def plan(self, request: RevisionRequest) -> RevisionPlan:
        """See `Revisions.plan`."""
        with self._job(request.named) as job:
            return survey(job, request)

    def carry_out(self, request: RevisionRequest, accepted: RevisionPlan) -> str:
        """See `Revisions.carry_out`."""
        with self._job(request.named) as job:
            complete_pending(job)
            return revise(job, request, accepted).id

    @contextmanager
    def _job(self, named: Sequence[TableName]) -> Iterator[Job]:
        """The job of the project that knows most about these tables. One revision at a time."""
        with self._revising:
            located = self._spec, replace(self._settings, job=self._job_of(named))
            with Project(Options(), _log_event, base=self._spark(), located=located) as project:
                yield project.job()

    def _job_of(self, named: Sequence[TableName]) -> str:
        """Clearing a table needs its definition, which only the job that writes it has."""
        own_jobs = {self._spec.name, *self._settings.jobs}
        owners = {status.dataset: status.job for status in self._store.datasets.statuses()}
        owners_of_named = [owners[name] for name in named if name in owners]
        jobs_reading_named = [
            owners[e.name] for e in self._store.datasets.registered() if e.inputs.intersection(named)
        ]
        candidates = (
            [job for job in (*owners_of_named, *jobs_reading_named) if job in own_jobs]
            if self._settings.jobs
            else []
        )
        return candidates[0] if candidates else self._settings.job


def _log_event(event: Event) -> None:
    _log.info("%s", event.name, extra={FIELDS: event.json_fields()})
