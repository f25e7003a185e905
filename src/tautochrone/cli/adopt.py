"""`taut adopt`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tautochrone.cli.events import json_events, line_events
from tautochrone.cli.options import names_of, options_of
from tautochrone.cli.output import table
from tautochrone.cli.running_job import check_not_running, ownership_of
from tautochrone.errors import SettingsError
from tautochrone.model import events

if TYPE_CHECKING:
    from tautochrone.runtime.adoption.adoptable import Finding

__all__ = ["adopt"]


def adopt(arguments: argparse.Namespace) -> int:
    """Survey and show, and complete unless it is a dry run; 1 when a dataset is refused. With a warehouse its
    tables are copied before. Or hand over what the pipeline owned under another name.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
    """
    others = arguments.dry_run or arguments.rebuild or arguments.from_warehouse
    if arguments.from_pipeline is not None and others:
        raise SettingsError("CONFLICTING_OPTIONS", "--from-pipeline takes no other options")
    from tautochrone.app.locate import locate
    from tautochrone.app.open import Project
    from tautochrone.app.relocation import WarehouseCopy
    from tautochrone.model.reason import Reason, ReasonCode
    from tautochrone.runtime.adoption.adopt import Adoption
    from tautochrone.runtime.adoption.renaming import hand_over
    from tautochrone.runtime.job.selection import find_all
    from tautochrone.runtime.loop.heartbeat import Heartbeat

    emit = json_events if arguments.json else line_events
    options, ownership = options_of(arguments), ownership_of(arguments)
    located = locate(options)
    if not arguments.dry_run:
        check_not_running(located[1], ownership, emit)
    with Project(options, emit, short_lived=True, located=located) as project:
        if arguments.from_warehouse is not None:
            project.identify()
            warehouse = Path(arguments.from_warehouse)
            copy = WarehouseCopy(warehouse, project.lake, project.settings, project.effects, emit)
            copy.complete(dry_run=arguments.dry_run)
            if arguments.dry_run and copy.tables:
                # What is not copied yet cannot be surveyed.
                return 0
        job = project.job()
        job.ownership = ownership
        if arguments.from_pipeline is not None:
            hand_over(job, arguments.from_pipeline)
            return 0
        adoption = Adoption(job, find_all(job.definitions, names_of(arguments.rebuild)))
        findings = adoption.survey()
        if not findings:
            reason = Reason.of(ReasonCode.ALREADY_OWNED)
            emit(events.NothingToAdopt(job=job.name, reason=reason))
            return 0
        if arguments.json:
            for finding in findings:
                emit(
                    events.Surveyed(
                        dataset=str(finding.dataset),
                        action=str(finding.action),
                        reason=finding.reason,
                        hint=finding.error.hint if finding.error else None,
                    )
                )
        else:
            _show(findings)
        if arguments.dry_run:
            return 1 if any(finding.error for finding in findings) else 0
        with Heartbeat(job.journal, job.settings.lease_ms, job.emit) as heartbeat:
            adoption.complete(findings, heartbeat.start)
    return 0


def _show(findings: Sequence[Finding]) -> None:
    rows = [(finding.dataset, finding.action, finding.reason) for finding in findings]
    table(("dataset", "action", "reason"), rows)
    # The table is data and belongs to stdout; hints go to stderr like errors.
    for hint in dict.fromkeys(finding.error.hint for finding in findings if finding.error):
        if hint:
            sys.stderr.write(f"  hint: {hint}\n")
