"""`taut publish`: published tables that others damaged, and their repair."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from tautochrone.cli.options import names_of, opened_job, say_sinks_are_off
from tautochrone.cli.output import json_line, plain_listener, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tautochrone.runtime.delivery.repair import Damage

__all__ = ["publish"]


def publish(arguments: argparse.Namespace) -> int:
    """Show what is damaged, and with `--repair` publish it anew; 1 when something stays damaged.

    Raises:
        MetaError: `JOB_RUNNING`, with `--repair`.
        SinkError: what is against it.
    """
    from tautochrone.runtime.delivery.repair import repair, survey
    from tautochrone.runtime.job.ownership import Heartbeat
    from tautochrone.runtime.job.topology import declared_sinks, find_all
    from tautochrone.runtime.loop.takeover import take_over

    with opened_job(arguments, plain_listener(arguments), changes=arguments.repair) as (_, job):
        say_sinks_are_off(job.settings)
        declarations = declared_sinks(job.topology, job.settings.sinks)
        tables = find_all(job.definitions, names_of(arguments.names))
        damages = survey(job.lake, declarations, tables)
        _show(damages, as_json=arguments.json)
        if not damages or not arguments.repair:
            return 1 if damages else 0
        with Heartbeat(job.journal, job.settings.lease_ms, job.emit) as heartbeat:
            take_over(job, owned=heartbeat.start)
            names = {damage.sink for damage in damages}
            repair(job, [each for each in declarations if each.name in names], tables)
        damages = survey(job.lake, declarations, tables)
    return 1 if damages else 0


def _show(damages: Sequence[Damage], *, as_json: bool) -> None:
    if as_json:
        for damage in damages:
            reason = {"reason": str(damage.reason), "reason_code": str(damage.reason.code)}
            json_line({"sink": damage.sink, "dataset": str(damage.dataset), **reason})
    elif damages:
        table(("sink", "dataset", "reason"), [(each.sink, each.dataset, each.reason) for each in damages])
    else:
        sys.stderr.write("nothing is damaged\n")
