"""`taut run`."""

from __future__ import annotations

import argparse
import signal
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

from tautochrone.cli.listen import listening, plain_listener
from tautochrone.cli.options import names_of, options_of
from tautochrone.cli.restart import Restarts
from tautochrone.cli.running_job import check_not_running, ownership_of
from tautochrone.errors import (
    EnvironmentProblemError,
    SettingsError,
    SourceLoginRefusedError,
    TautochroneError,
)
from tautochrone.model import events

if TYPE_CHECKING:
    from tautochrone.app.locate import Options
    from tautochrone.app.open import Project
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec
    from tautochrone.runtime.job.ownership import Ownership

__all__ = ["check_refresh_options", "run"]

_NOT_STARTED = ("JVM_NOT_STARTED", "SPARK_NOT_STARTED")


def run(arguments: argparse.Namespace) -> int:
    """One-shot, or continuous until Ctrl-C."""
    check_refresh_options(arguments)
    selected = names_of(arguments.refresh), names_of(arguments.full_refresh)
    from tautochrone.app.locate import locate

    options = options_of(arguments)
    located = locate(options)
    # Printed before the imports, which take a second, and the JVM, which takes six.
    starting = events.Starting(pipeline=located[0].name, master=located[1].spark.master)
    plain_listener(arguments)(starting)
    restarts = Restarts()
    ownership = ownership_of(arguments)
    if restarts.in_a_row:
        # A restart must not fence off a process that took the job over since the first start.
        ownership = replace(ownership, takeover=False)
    check_not_running(located[1], ownership, plain_listener(arguments))
    with listening(arguments, starting) as emit:
        try:
            state, restart = _execute(arguments, options, located, selected, restarts, ownership, emit)
        except EnvironmentProblemError as error:
            if not (restarts.in_a_row and error.error_class in _NOT_STARTED):
                raise
            # The cause of the last failure may still be there.
            time.sleep(_announce_restart(restarts, emit, error))
            state, restart = 1, True
    if restart and not arguments.embedded:
        restarts.restart_process()
    return state


def check_refresh_options(arguments: argparse.Namespace) -> None:
    """Refuse options of which one makes the other meaningless, with Spark's class.

    Raises:
        SettingsError: `CONFLICTING_PIPELINE_REFRESH_OPTIONS`.
    """
    everything = arguments.command == "run" and arguments.full_refresh_all
    if everything and (arguments.refresh or arguments.full_refresh):
        raise SettingsError(
            "CONFLICTING_PIPELINE_REFRESH_OPTIONS",
            "--full-refresh-all excludes --refresh and --full-refresh",
            hint="--full-refresh-all computes every dataset anew; leave the other option out",
        )


def _execute(
    arguments: argparse.Namespace,
    options: Options,
    located: tuple[PipelineSpec, Settings],
    selected: tuple[list[str], list[str]],
    restarts: Restarts,
    ownership: Ownership,
    emit: events.Emit,
) -> tuple[int, bool]:
    """The exit status, and whether the process must be restarted: its Spark died, or definitions must be
    loaded anew."""
    from tautochrone.app.open import Project
    from tautochrone.runtime.job.topology import select
    from tautochrone.runtime.loop.run import Run, RunState

    with Project(options, emit, located=located) as project:
        full = None if arguments.full_refresh_all else selected[1]
        if restarts.full_refreshes_left is not None:
            full = restarts.full_refreshes_left
        job = project.job(full)
        job.ownership = ownership
        selection = select(job.topology, *selected, everything=arguments.full_refresh_all)
        if restarts.full_refreshes_left is not None:
            # What was rebuilt before the restart is not rebuilt again.
            selection = selection.with_full_refreshes(restarts.full_refreshes_left)
        may_restart = arguments.continuous and not arguments.embedded

        def definitions_load(failure: TautochroneError) -> bool:
            return _definitions_load(options, project, located, emit, failure)

        execution = Run(job, selection, definitions_load if may_restart else None)
        stopping = threading.Event()

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            # A second Ctrl-C ends the process at once.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            stopping.set()
            execution.stop()
            # From another thread: the signal may have interrupted this one while it wrote.
            threading.Thread(target=emit, args=(events.Stopping(),)).start()

        signal.signal(signal.SIGINT, on_signal)
        signal.signal(signal.SIGTERM, on_signal)
        if arguments.continuous:
            state = execution.continuously(project.settings.interval_ms)
        else:
            state = execution.once()
        restart = False
        restarts.full_refreshes_left = sorted(map(str, execution.full_refreshes_left))
        if arguments.continuous and execution.died is not None:
            restart = not stopping.wait(_announce_restart(restarts, emit, execution.died))
        elif execution.outdated is not None:
            wait_s = restarts.count()
            emit(events.DefinitionsReloading(in_s=wait_s, error=str(execution.outdated)))
            restart = not stopping.wait(wait_s)
    return {RunState.COMPLETED: 0, RunState.FAILED: 1, RunState.CANCELED: 130}[state], restart


def _definitions_load(
    options: Options,
    project: Project,
    located: tuple[PipelineSpec, Settings],
    emit: events.Emit,
    failure: TautochroneError,
) -> bool:
    """Whether a run that is started now could load its definitions, and they would differ from those of this
    run. Those stay as they are."""
    from tautochrone.app.locate import locate
    from tautochrone.app.open import Project

    def quiet(_event: events.Event) -> None:
        """The new run reports what it loads."""

    try:
        if isinstance(failure, SourceLoginRefusedError):
            spec, settings = locate(options)
            # The settings that Spark was started with do not change with a file.
            new = {name: text for name, text in settings.confs.items() if text != located[1].confs.get(name)}
            if not new:
                return False
            located = replace(spec, configuration={**spec.configuration, **new}), settings
        Project(options, quiet, base=project.base, located=located).analysed()
    except TautochroneError as error:
        emit(events.DefinitionsNotReloaded(error=str(error), hint=error.hint))
        return False
    return True


def _announce_restart(restarts: Restarts, emit: events.Emit, died: EnvironmentProblemError) -> float:
    """Announce that a new Spark will be started; seconds until then, more after each death."""
    wait_s = restarts.count()
    reason = f"[{died.error_class}] {died.message}"
    emit(events.SparkRestarting(attempt=restarts.in_a_row, in_s=wait_s, reason=reason))
    return wait_s
