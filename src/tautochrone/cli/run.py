"""`taut run` and `taut serve`: the commands that work until they are stopped.

A continuous run restarts itself when Spark has died, and when the definitions no longer fit a source: the
same process with a new program image. Much of Python's side of Spark belongs to the Java process that died:
sessions, streams and the threads that serve them, objects that definitions hold. A new image has none of it,
and for supervisors of the process it is still the same one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING

from tautochrone.cli.options import check_not_running, names_of, options_of, ownership_of
from tautochrone.cli.output import listening, plain_listener, release_stdout
from tautochrone.errors import (
    EnvironmentProblemError,
    SettingsError,
    SourceLoginRefusedError,
    TautochroneError,
)
from tautochrone.model import events
from tautochrone.model.backoff import Backoff
from tautochrone.model.reason import Reason
from tautochrone.model.run_report import RunEnd

if TYPE_CHECKING:
    from tautochrone.app.locate import Options
    from tautochrone.app.open import Project
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec
    from tautochrone.runtime.job.job import Job
    from tautochrone.runtime.job.ownership import Ownership
    from tautochrone.runtime.loop.run import Run

__all__ = ["Restarts", "check_refresh_options", "run", "serve"]

_NOT_STARTED = ("JVM_NOT_STARTED", "SPARK_NOT_STARTED")
_RESTARTS_VARIABLE = "_TAUT_RESTARTS"
"""Passes the number of restarts in a row from one program image to the next."""
_FULL_REFRESHES_VARIABLE = "_TAUT_FULL_REFRESHES_LEFT"
"""Passes on which full refreshes have not happened yet, as a JSON list of names."""
_RESTART_BACKOFF = Backoff(first_s=1.0, longest_s=60.0)
_STABLE_AFTER_S = 600.0
"""The restart of a run that went on for so long does not count as in a row with the one before."""


def run(arguments: argparse.Namespace) -> int:
    """One-shot, or continuous until Ctrl-C."""
    check_refresh_options(arguments)
    selected = names_of(arguments.refresh), names_of(arguments.full_refresh)
    from tautochrone.app.launch import launch
    from tautochrone.app.locate import locate
    from tautochrone.app.unchanged import News, definitions_of, end_without_news, last_run

    options = options_of(arguments)
    located = locate(options)
    restarts = Restarts()
    program = _program_of(arguments, located, restarts)
    # Before they are loaded: a file may change meanwhile, and the start of the JVM changes the environment.
    definitions = definitions_of(*located) if arguments.continuous else None
    last = None if program is None else last_run(located[1], program)
    starting = events.Starting(pipeline=located[0].name, master=located[1].spark.master)
    if last is None:
        # Printed before the imports, which take a second, and the JVM, which takes six.
        plain_listener(arguments)(starting)
    ownership = ownership_of(arguments)
    if restarts.in_a_row:
        # A restart must not fence off a process that took the job over since the first start.
        ownership = replace(ownership, takeover=False)
    if last is not None:
        news = end_without_news(located[1], last, ownership, plain_listener(arguments))
        if news is News.NONE:
            return 0
        if isinstance(news, Reason):
            starting = replace(starting, reason=news)
        spark = replace(located[1].spark, short_lived=news is News.LITTLE)
        located = located[0], replace(located[1], spark=spark)
        plain_listener(arguments)(starting)
    check_not_running(located[1], ownership, plain_listener(arguments))
    launch(located[1])
    with listening(arguments, starting) as emit:
        try:
            state, restart = _execute(
                arguments, options, located, selected, restarts, ownership, emit, program, definitions
            )
        except EnvironmentProblemError as error:
            if not (restarts.in_a_row and error.error_class in _NOT_STARTED):
                raise
            # The cause of the last failure may still be there.
            time.sleep(_announce_restart(restarts, emit, error))
            state, restart = 1, True
    if restart and not arguments.embedded:
        restarts.restart_process()
    return state


def _program_of(
    arguments: argparse.Namespace, located: tuple[PipelineSpec, Settings], restarts: Restarts
) -> str | Reason | None:
    """What a run depends on besides its sources, if it is to do only what is new, and then end."""
    if arguments.continuous or arguments.refresh or arguments.full_refresh or arguments.full_refresh_all:
        return None
    if restarts.in_a_row:
        return None
    from tautochrone.app.unchanged import program_of

    return program_of(*located)


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
    program: str | Reason | None = None,
    definitions: str | Reason | None = None,
) -> tuple[int, bool]:
    """The exit status, and whether the process must be restarted: its Spark died, or definitions must be
    loaded anew."""
    from tautochrone.app.alarms import AlarmLoop, evaluate_and_notify
    from tautochrone.app.open import Project
    from tautochrone.app.unchanged import run_and_remember
    from tautochrone.runtime.job.topology import select
    from tautochrone.runtime.loop.run import Run, RunState

    with (
        _recording_failed_start(located[1]) as begins,
        Project(options, emit, located=located, renews_roots=True) as project,
    ):
        full = None if arguments.full_refresh_all else selected[1]
        if restarts.full_refreshes_left is not None:
            full = restarts.full_refreshes_left
        job = project.job(full, ownership=ownership)
        selection = select(job.topology, *selected, everything=arguments.full_refresh_all)
        if restarts.full_refreshes_left is not None:
            # What was rebuilt before the restart is not rebuilt again.
            selection = selection.with_full_refreshes(restarts.full_refreshes_left)
        may_restart = arguments.continuous and not arguments.embedded

        def definitions_load(failure: TautochroneError) -> bool:
            return _definitions_load(options, project, located, emit, failure)

        execution = Run(job, selection, definitions_load if may_restart else None)
        begins(job)
        stopping = _stop_on_signals(execution, emit)
        number_before = _newest_checkpoint(job)
        if arguments.continuous:
            assert definitions is not None
            project.announce(definitions)
            with AlarmLoop(job.store, project.settings.alarm_targets):
                state = execution.continuously(project.settings.interval_ms)
        elif program is None:
            state = execution.once()
        else:
            state = run_and_remember(job, program, execution, emit)
        if not arguments.continuous and project.settings.alarm_targets:
            evaluate_and_notify(job.store, project.settings.alarm_targets)
        restart = False
        restarts.full_refreshes_left = sorted(map(str, execution.full_refreshes_left))
        if arguments.continuous and execution.died is not None:
            restart = not stopping.wait(_announce_restart(restarts, emit, execution.died))
        elif execution.outdated is not None:
            # Definitions that made a checkpoint since they were loaded are no failure in a row.
            wait_s = restarts.count(anew=_newest_checkpoint(job) != number_before)
            emit(events.DefinitionsReloading(in_s=wait_s, error=str(execution.outdated)))
            restart = not stopping.wait(wait_s)
    return {RunState.COMPLETED: 0, RunState.FAILED: 1, RunState.CANCELED: 130}[state], restart


@contextlib.contextmanager
def _recording_failed_start(settings: Settings) -> Iterator[Callable[[Job], None]]:
    """An error that ends a run before it owns its job is written into the store: otherwise people would see
    the end of an earlier run there. What is yielded is called with the job, once there is one."""
    jobs: list[Job] = []
    from tautochrone.app.alarms import evaluate_and_notify
    from tautochrone.app.stores import existing_store

    try:
        yield jobs.append
    except Exception as error:
        # This error is reported in any case; a store that cannot be written to must not hide it.
        with contextlib.suppress(TautochroneError), existing_store(settings) as store:
            if not any(job.journal.fence for job in jobs):
                store.jobs.record_failed_start(settings.job, RunEnd.by(error))
            if settings.alarm_targets:
                evaluate_and_notify(store, settings.alarm_targets)
        raise


def _newest_checkpoint(job: Job) -> int | None:
    newest = job.store.checkpoints.latest_done(job.name)
    return None if newest is None else int(newest.number)


def _stop_on_signals(execution: Run, emit: events.Emit) -> threading.Event:
    """Let SIGINT and SIGTERM end the run in order; what is returned is set by the first of them."""
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
    return stopping


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


@dataclass(slots=True)
class Restarts:
    """How often the run was restarted in a row, and how long to wait before the next start.

    Attributes:
        full_refreshes_left: full refreshes that had not happened before the restart; None: no run has begun.
    """

    in_a_row: int = field(default_factory=lambda: int(os.environ.get(_RESTARTS_VARIABLE) or 0))
    full_refreshes_left: list[str] | None = field(
        default_factory=lambda: json.loads(os.environ.get(_FULL_REFRESHES_VARIABLE) or "null")
    )
    folder: str = field(default_factory=os.getcwd)
    _since: float = field(default_factory=time.monotonic)

    def count(self, *, anew: bool = False) -> float:
        """Count one more, or the first one `anew`; seconds until it may happen."""
        anew = anew or time.monotonic() - self._since >= _STABLE_AFTER_S
        self.in_a_row = 1 if anew else self.in_a_row + 1
        return _RESTART_BACKOFF.wait_s(self.in_a_row)

    def restart_process(self) -> None:
        """Replace this program by itself, with the arguments that it was started with. Does not return."""
        os.environ[_RESTARTS_VARIABLE] = str(self.in_a_row)
        os.environ[_FULL_REFRESHES_VARIABLE] = json.dumps(self.full_refreshes_left)
        os.chdir(self.folder)
        release_stdout()
        sys.stderr.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def serve(arguments: argparse.Namespace) -> int:
    """The MetaService as a process, until it is told to stop."""
    from tautochrone.app import serve as service
    from tautochrone.metaservice.http.logs import log_to_stderr

    log_to_stderr(as_json=arguments.log_format == "json")
    address = service.ListenAddress(arguments.host, arguments.port)
    service.run(options_of(arguments), address, meta_url=arguments.meta, proxies=arguments.proxy)
    return 0
