"""Arguments that several commands take: the options that open a project, names, durations, and what a command
does with a job that another process runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tautochrone.errors import MetaError, SettingsError

if TYPE_CHECKING:
    from tautochrone.app.locate import Options
    from tautochrone.app.open import Project
    from tautochrone.model.events import Emit
    from tautochrone.project.settings import Settings
    from tautochrone.runtime.job.job import Job
    from tautochrone.runtime.job.ownership import Ownership

__all__ = [
    "add_ownership",
    "check_not_running",
    "duration_ms",
    "names_of",
    "opened_job",
    "options_of",
    "ownership_of",
    "say_sinks_are_off",
]

_FOREVER = -1


def options_of(arguments: argparse.Namespace) -> Options:
    """Collect `--spec`, `--target`, `--conf`, `--set`, `--master`, `--interval`.

    Raises:
        SettingsError: a `--conf` or a `--set` without `=`.
    """
    from tautochrone.app.locate import Options

    return Options(
        spec=arguments.spec,
        conf=_pairs("--conf", "INVALID_CONF", getattr(arguments, "conf", [])),
        given=_pairs("--set", "INVALID_SETTING", getattr(arguments, "set", [])),
        master=getattr(arguments, "master", None),
        interval=getattr(arguments, "interval", None),
        job=getattr(arguments, "job", None),
        target=arguments.target,
    )


def _pairs(flag: str, error_class: str, texts: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            # The text itself is not shown: it may contain a secret.
            raise SettingsError(
                error_class, f"{flag} takes KEY=VALUE", hint="there is no = in what was given"
            )
        settings[key.strip()] = value
    return settings


def say_sinks_are_off(settings: Settings) -> None:
    """Say on stderr that this target delivers nothing, and why; for commands that show no events."""
    off = settings.sinks_off
    if off is not None:
        sys.stderr.write(f"sinks are off: {off.reason}\n")


def duration_ms(text: str) -> int:
    """A duration on the command line, in milliseconds; anything else is a usage error."""
    from tautochrone.project.setting_kinds import Duration

    try:
        return Duration().parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {Duration().description}") from None


def names_of(texts: list[str]) -> list[str]:
    """Names from options that repeat and take comma lists."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def add_ownership(parser: argparse.ArgumentParser) -> None:
    """`--wait` and `--takeover`, which exclude each other."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--wait",
        type=duration_ms,
        nargs="?",
        const=_FOREVER,
        default=0,
        metavar="10m",
        help="when another process runs the job, wait until it has ended (without a duration: however long)",
    )
    group.add_argument(
        "--takeover", action="store_true", help="when another process runs the job, fence it off: it ends"
    )


def ownership_of(arguments: argparse.Namespace) -> Ownership:
    """`--wait` and `--takeover` as a value."""
    from tautochrone.runtime.job.ownership import Ownership

    return Ownership(
        takeover=arguments.takeover, wait_ms=None if arguments.wait == _FOREVER else arguments.wait
    )


def check_not_running(settings: Settings, ownership: Ownership, emit: Emit) -> None:
    """Check that no other process runs the job, from the store alone; the takeover checks again. A store of
    an earlier release is migrated then, for which no other job that shares it may run either.

    Call it before Spark starts, so that a cron job that starts too early costs no JVM.

    Raises:
        MetaError: `JOB_RUNNING`.
    """
    from tautochrone.app.stores import existing_store

    try:
        store = existing_store(settings, emit, ownership=ownership)
    except MetaError as error:
        if error.error_class == "META_STORE_MISSING":
            # Nothing has run yet, so no process runs the job.
            return
        raise
    with store:
        ownership.require_free(store, settings.job, emit)


@contextmanager
def opened_job(arguments: argparse.Namespace, emit: Emit, *, changes: bool) -> Iterator[tuple[Project, Job]]:
    """The project and its job, for a command with the options of `add_ownership`.

    Args:
        changes: the command takes the job over. Then no other process may run it, which is known before Spark
            starts. Otherwise the store of another release is refused.

    Raises:
        MetaError: `JOB_RUNNING`, `META_STORE_OTHER_RELEASE`.
    """
    from tautochrone.app.locate import locate
    from tautochrone.app.stores import require_release

    options, ownership = options_of(arguments), ownership_of(arguments)
    located = locate(options)
    if changes:
        check_not_running(located[1], ownership, emit)
    else:
        require_release(located[1])
    from tautochrone.app.open import Project

    with Project(options, emit, short_lived=True, located=located) as project:
        job = project.job(ownership=ownership if changes else None)
        yield project, job
