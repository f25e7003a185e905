"""`taut maintain`."""

from __future__ import annotations

import argparse
import sys

from tautochrone.cli.events import json_events, line_events
from tautochrone.cli.options import options_of

__all__ = ["maintain"]


def maintain(arguments: argparse.Namespace) -> int:
    """Maintain the tables now, beside a run that may be going on."""
    from tautochrone.runtime.maintain import Maintenance
    from tautochrone.service.open import Project

    events = json_events if arguments.json else line_events
    with Project(options_of(arguments), events, short_lived=True) as project:
        maintenance = Maintenance(project.job())
        done = maintenance.run(dry_run=arguments.dry_run)
    versions, files = sum(one.versions for one in done), sum(one.files for one in done)
    orphans = sum(len(found.files) for found in maintenance.orphans.found)
    events(
        "maintained",
        tables=len(done),
        versions=versions,
        files=files,
        orphans=orphans,
        dry_run=arguments.dry_run,
    )
    if not arguments.json and not versions and not orphans and not maintenance.failed:
        sys.stderr.write("nothing to do\n")
    return 1 if maintenance.failed else 0
