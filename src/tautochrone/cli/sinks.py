"""`taut sinks`: from the store alone, without Spark."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from tautochrone.app.locate import locate
from tautochrone.app.stores import existing_store
from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.timestamps import iso_timestamp
from tautochrone.errors import SinkError
from tautochrone.model.sink import SinkStatus

__all__ = ["sink_line", "sinks"]


def sinks(arguments: argparse.Namespace) -> int:
    """Every sink: the checkpoint that it shows, its lag, its last error; or forget one."""
    _, settings = locate(options_of(arguments))
    with existing_store(settings) as store:
        if arguments.forget:
            known = [sink.name for sink in store.deliveries.sinks()]
            if arguments.forget not in known:
                raise SinkError(
                    "SINK_NOT_FOUND",
                    f"No sink is called {arguments.forget}",
                    hint="known sinks: " + (", ".join(known) or "none"),
                    sqlstate="42704",
                )
            store.deliveries.forget(arguments.forget)
        lines = [sink_line(sink, store.now_ms()) for sink in store.deliveries.sinks()]
    if arguments.json:
        for line in lines:
            json_line(line)
    else:
        columns = (
            *(
                "sink",
                "format",
                "state",
                "checkpoint",
                "newest",
                "lag_ms",
                "delivered_at",
                "batch",
                "rows",
            ),
            *("failures", "error"),
        )
        table(columns, [[line[column] for column in columns] for line in lines])
    return 0


def sink_line(sink: SinkStatus, now_ms: int) -> dict[str, object]:
    """A sink as an object of JSON."""
    return {
        "sink": sink.name,
        "format": sink.format,
        "job": sink.job,
        "tables": [str(name) for name in sink.tables],
        "policy": str(sink.policy),
        "state": str(sink.state),
        "checkpoint": None if sink.delivered is None else int(sink.delivered.checkpoint),
        "newest": None if sink.newest is None else int(sink.newest),
        "lag_ms": 0 if sink.behind_since_ms is None else max(0, now_ms - sink.behind_since_ms),
        "delivered_at_ms": None if sink.delivered is None else sink.delivered.delivered_at_ms,
        "delivered_at": iso_timestamp(None if sink.delivered is None else sink.delivered.delivered_at_ms),
        # A sink that Spark writes has batches, one with an adapter has checkpoints alone.
        "batch": max((flow.batch for flow in sink.flows.values()), default=None),
        "rows": sum(flow.rows for flow in sink.flows.values()) if sink.flows else None,
        "flows": {name: asdict(flow) for name, flow in sink.flows.items()},
        "failures": sink.failures,
        "skipped": sink.skipped,
        "error": sink.error,
        "failed_at_ms": sink.failed_at_ms,
    }
