"""`--wait` and `--takeover`: what a command does with a job that another process runs.

Checked before Spark starts, so that a cron job that starts too early costs no JVM.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tautochrone.cli.options import duration_ms
from tautochrone.errors import MetaError

if TYPE_CHECKING:
    from tautochrone.model.events import Emit
    from tautochrone.project.settings import Settings
    from tautochrone.runtime.job.ownership import Ownership

__all__ = ["add_ownership", "check_not_running", "ownership_of"]

_FOREVER = -1


def add_ownership(parser: argparse.ArgumentParser) -> None:
    """The two flags, which exclude each other."""
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
    """The flags as a value."""
    from tautochrone.runtime.job.ownership import Ownership

    return Ownership(
        takeover=arguments.takeover, wait_ms=None if arguments.wait == _FOREVER else arguments.wait
    )


def check_not_running(settings: Settings, ownership: Ownership, emit: Emit) -> None:
    """Check that no other process runs the job, from the store alone; the takeover checks again.

    Raises:
        MetaError: `JOB_RUNNING`.
    """
    if ownership.takeover:
        return
    from tautochrone.app.stores import existing_store

    try:
        store = existing_store(settings, emit)
    except MetaError as error:
        if error.error_class == "META_STORE_MISSING":
            # Nothing has run yet, so no process runs the job.
            return
        raise
    with store:
        ownership.require_free(store, settings.job, emit)
