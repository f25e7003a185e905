"""What is known of a job that does not run and should: whether its process exists, its error, its last lines,
the command that goes on. Everybody who shows such a job shows this."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from tautochrone.model.jobs import JobStatus, Liveness
from tautochrone.runtime.job.ownership import has_ended, this_machine

__all__ = ["LastWords", "last_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """
    Attributes:
        process: what became of the process, one sentence without a full stop.
        error: why the last run ended, or could not begin.
        lines: the last lines that it wrote, the newest last.
        command: goes on where the job stopped.
    """

    process: str
    error: str | None
    hint: str | None
    lines: tuple[str, ...]
    command: str


def last_words(job: JobStatus) -> LastWords | None:
    """The last words of a job that is down; None for every other job."""
    if not job.liveness.is_down:
        return None
    end = job.end
    if job.liveness is Liveness.STOPPED and end is not None and end.at_ms < (job.started_ms or 0):
        # It is of the run before the one that was killed.
        end = None
    # A run that could not begin wrote no lines; those of the one that ended before would mislead.
    has_lines = job.liveness is Liveness.STOPPED or end is None or not end.before_takeover
    return LastWords(
        process=_process(job),
        error=None if end is None else end.error,
        hint=None if end is None else end.hint,
        lines=job.report.lines if job.report is not None and has_lines else (),
        command=job.command,
    )


def _process(job: JobStatus) -> str:
    if job.liveness is Liveness.FAILED:
        begun = job.end is None or not job.end.before_takeover
        return "its run ended with an error" if begun else "its last run could not begin"
    process = job.process
    if process is None or process.pid is None:
        return f"its process ({job.owner or 'unknown'}) ended without saying so, or cannot reach the store"
    name = f"its process {process.pid} on {process.host}"
    if has_ended(process):
        return f"{name} has ended without saying so: it was killed, or crashed"
    if process.machine is not None and process.machine == this_machine():
        return f"{name} exists: it hangs, is stopped, or cannot reach the store"
    return f"{name} ended without saying so, or cannot reach the store: {socket.gethostname()} cannot see it"
