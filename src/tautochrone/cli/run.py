"""`taut run`."""

from __future__ import annotations

import argparse
import signal
import threading
from types import FrameType

from tautochrone.cli.listen import first_words, listening
from tautochrone.cli.options import names_of, options_of
from tautochrone.cli.ownership import ask_first, ownership_of
from tautochrone.errors import SettingsError

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """One-shot, or continuous until Ctrl-C."""
    selected = names_of(arguments.refresh), names_of(arguments.full_refresh)
    if arguments.full_refresh_all and any(selected):
        raise SettingsError("CONFLICTING_OPTIONS", "--full-refresh-all excludes --refresh and --full-refresh")
    from tautochrone.service.locate import locate

    options = options_of(arguments)
    located = locate(options)
    pipeline = located[0].name
    # Said before the imports that take a second and the JVM that takes six.
    first_words(arguments)("starting", pipeline=pipeline, master=located[1].spark.master)
    ownership = ownership_of(arguments)
    ask_first(located[1], ownership, first_words(arguments))
    with listening(arguments, pipeline) as events:
        from tautochrone.runtime.run import Run, RunState
        from tautochrone.runtime.selection import select
        from tautochrone.service.open import Project

        with Project(options, events, located=located) as project:
            job = project.job()
            job.ownership = ownership
            selection = select(job, *selected, everything=arguments.full_refresh_all)
            execution = Run(job, selection)

            def on_signal(_number: int, _frame: FrameType | None) -> None:
                # The second Ctrl-C is meant: let Python end the process.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                execution.stop()
                # Not from here: the signal may have interrupted this very thread while it wrote.
                threading.Thread(target=events, args=("stopping",)).start()

            signal.signal(signal.SIGINT, on_signal)
            signal.signal(signal.SIGTERM, on_signal)
            if arguments.continuous:
                state = execution.continuously(project.settings.interval_ms)
            else:
                state = execution.once()
    return {RunState.COMPLETED: 0, RunState.FAILED: 1, RunState.CANCELED: 130}[state]
