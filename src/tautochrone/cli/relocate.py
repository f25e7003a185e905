"""`taut relocate`."""

from __future__ import annotations

import argparse
import sys

from tautochrone.cli.events import json_events, line_events
from tautochrone.cli.options import options_of

__all__ = ["relocate"]


def relocate(arguments: argparse.Namespace) -> int:
    """Rewrite the paths of a copied or moved storage; without Spark."""
    from tautochrone.app.locate import locate
    from tautochrone.app.relocation import Relocation
    from tautochrone.runtime.job.effects import effects_from_environment

    emit = json_events if arguments.json else line_events
    spec, settings = locate(options_of(arguments))
    relocation = Relocation(
        spec,
        settings,
        effects_from_environment(),
        emit,
        from_project=arguments.from_project,
        moved=arguments.moved,
    )
    if not relocation.survey():
        if not relocation.accept_lake(dry_run=arguments.dry_run) and not arguments.json:
            sys.stderr.write("nothing to do: the storage is where it was made\n")
        return 0
    if not arguments.dry_run:
        relocation.complete()
    return 0
