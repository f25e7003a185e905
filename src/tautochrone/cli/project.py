"""`taut init` and `taut dry-run`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tautochrone.cli.options import options_of
from tautochrone.cli.output import Events, json_line, table

__all__ = ["dry_run", "init"]


def init(arguments: argparse.Namespace) -> int:
    """Write the sample project."""
    from tautochrone.project.templates import init_project

    folder = init_project(Path(arguments.name).parent, Path(arguments.name).name)
    sys.stderr.write(
        f"Wrote {folder}.\nNext steps:\n  cd {folder}\n  taut dry-run\n  taut run\n"
        '  taut query "SELECT * FROM example_sql_materialized_view"\n'
    )
    return 0


def dry_run(arguments: argparse.Namespace) -> int:
    """Resolve everything, show what there is, write nothing."""
    from tautochrone.service.open import Project

    with Project(options_of(arguments), Events(as_json=False), short_lived=True) as project:
        definitions, graph = project.analysed()
    entries: list[dict[str, Any]] = []
    for name in graph.order:
        inputs, flows = graph.inputs(name), graph.flows_of(name)
        outside = [*inputs.unversioned, *(["a stream from outside"] if inputs.external_streams else [])]
        entries.append(
            {
                "dataset": str(name),
                "kind": str(definitions.datasets[name].kind),
                "reads": [*sorted(str(table) for table in inputs.tables), *outside],
                "appendable": all(flow.linear or flow.streaming for flow in flows),
                "reason": next((f.linear_reason for f in flows if not (f.linear or f.streaming)), ""),
                "location": str(definitions.datasets[name].location),
            }
        )
    if arguments.json:
        for entry in entries:
            json_line(entry)
    else:
        table(
            ("dataset", "kind", "reads", "location"),
            [(e["dataset"], e["kind"], ", ".join(e["reads"]), e["location"]) for e in entries],
        )
    return 0
