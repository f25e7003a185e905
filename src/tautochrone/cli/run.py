"""`taut run`."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from tautochrone.cli.listen import first_words, listening
from tautochrone.cli.options import names_of, options_of
from tautochrone.cli.restart import Restarts
from tautochrone.cli.running_job import ask_first, ownership_of
from tautochrone.errors import EnvironmentProblemError, SettingsError

if TYPE_CHECKING:
    from tautochrone.app.locate import Options
    from tautochrone.model.events import Emit
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec
    from tautochrone.runtime.job.running_job import Ownership

__all__ = ["run"]

_NOT_STARTED = ("JVM_NOT_STARTED", "SPARK_NOT_STARTED")


def run(arguments: argparse.Namespace) -> int:
    """One-shot, or continuous until Ctrl-C."""
    selected = names_of(arguments.refresh), names_of(arguments.full_refresh)
    if arguments.full_refresh_all and any(selected):
        raise SettingsError("CONFLICTING_OPTIONS", "--full-refresh-all excludes --refresh and --full-refresh")
    from tautochrone.app.locate import locate

    options = options_of(arguments)
    located = locate(options)
    pipeline = located[0].name
    # Said before the imports that take a second and the JVM that takes six.
    first_words(arguments)("starting", pipeline=pipeline, master=located[1].spark.master)
    restarts = Restarts()
    ownership = ownership_of(arguments)
    if restarts.deaths:
        # Whoever took the job over since the first start is not fenced off by an old request.
        ownership = replace(ownership, takeover=False)
    ask_first(located[1], ownership, first_words(arguments))
    with listening(arguments, pipeline) as events:
        try:
            state, anew = _execute(arguments, options, located, selected, restarts, ownership, events)
        except EnvironmentProblemError as error:
            if not (restarts.deaths and error.error_class in _NOT_STARTED):
                raise
            # What killed the one before may still be there.
            time.sleep(_told(restarts, events, error))
            state, anew = 1, True
    if anew and not arguments.embedded:
        restarts.begin_anew()
    return state


def _execute(
    arguments: argparse.Namespace,
    options: Options,
    located: tuple[PipelineSpec, Settings],
    selected: tuple[list[str], list[str]],
    restarts: Restarts,
    ownership: Ownership,
    events: Emit,
) -> tuple[int, bool]:
    """The exit status, and whether the run is to begin anew because its Spark died."""
    from tautochrone.app.open import Project
    from tautochrone.runtime.job.selection import select
    from tautochrone.runtime.loop.run import Run, RunState

    with Project(options, events, located=located) as project:
        job = project.job()
        job.ownership = ownership
        selection = select(job.topology, *selected, everything=arguments.full_refresh_all)
        execution, stopping = Run(job, selection), threading.Event()

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            # The second Ctrl-C is meant: let Python end the process.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            stopping.set()
            execution.stop()
            # Not from here: the signal may have interrupted this very thread while it wrote.
            threading.Thread(target=events, args=("stopping",)).start()

        signal.signal(signal.SIGINT, on_signal)
        signal.signal(signal.SIGTERM, on_signal)
        if arguments.continuous:
            state = execution.continuously(project.settings.interval_ms)
        else:
            state = execution.once()
        anew = False
        if arguments.continuous and execution.died is not None:
            anew = not stopping.wait(_told(restarts, events, execution.died))
    return {RunState.COMPLETED: 0, RunState.FAILED: 1, RunState.CANCELED: 130}[state], anew


def _told(restarts: Restarts, events: Emit, died: EnvironmentProblemError) -> float:
    """Tell that a new Spark will be started; seconds until then, more each time one dies."""
    wait_s = restarts.died()
    reason = f"[{died.error_class}] {died.message}"
    events("spark_restarting", attempt=restarts.deaths, in_s=wait_s, reason=reason)
    return wait_s
