"""`taut maintain`."""

from __future__ import annotations

import argparse
import sys

from tautochrone.cli.events import json_events, line_events
from tautochrone.cli.options import options_of
from tautochrone.cli.running_job import check_not_running, ownership_of
from tautochrone.errors import SettingsError
from tautochrone.model import events

__all__ = ["maintain"]


def maintain(arguments: argparse.Namespace) -> int:
    """Maintain the tables now, also while a run works; to compact, take the job over.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
        MetaError: `JOB_RUNNING`, with `--compact`.
    """
    if arguments.compact and arguments.dry_run:
        raise SettingsError("CONFLICTING_OPTIONS", "--compact takes the job over, which --dry-run excludes")
    from tautochrone.app.locate import locate
    from tautochrone.app.open import Project
    from tautochrone.runtime.job.ownership import Heartbeat
    from tautochrone.runtime.loop.takeover import take_over
    from tautochrone.runtime.maintenance.maintain import Maintenance

    emit = json_events if arguments.json else line_events
    options, ownership = options_of(arguments), ownership_of(arguments)
    located = locate(options)
    if arguments.compact:
        check_not_running(located[1], ownership, emit)
    with Project(options, emit, short_lived=True, located=located) as project:
        job = project.job()
        job.ownership = ownership
        maintenance = Maintenance(job)
        with Heartbeat(job.journal, job.settings.lease_ms, job.emit) as heartbeat:
            if arguments.compact:
                # Compaction moves main, so only an owner may do it: a concurrent run's commit would fail.
                take_over(job, owned=heartbeat.start)
            done = maintenance.run(dry_run=arguments.dry_run)
    versions, files = sum(expired.versions for expired in done), sum(expired.files for expired in done)
    orphans = sum(len(orphans_found.files) for orphans_found in maintenance.orphans.results)
    emit(
        events.Maintained(
            tables=len(done),
            versions=versions,
            files=files,
            orphans=orphans,
            dry_run=arguments.dry_run,
        )
    )
    if not arguments.json and not versions and not orphans and not maintenance.failed:
        sys.stderr.write("nothing to do\n")
    return 1 if maintenance.failed else 0
