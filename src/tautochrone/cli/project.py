"""`taut init` and `taut dry-run`, with `--explain`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tautochrone.cli.events import line_events
from tautochrone.cli.options import options_of
from tautochrone.cli.output import json_line, table
from tautochrone.cli.stdout import answer
from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    from tautochrone.model.checkpoint import RefreshPolicy
    from tautochrone.project.graph import Graph

__all__ = ["dry_run", "init"]

_NEXT_STEPS = """\
Wrote {folder}: orders/ holds what arrives, transformations/ what is made of it.
Next steps:
  cd {folder}
  taut run
  taut query "SELECT * FROM sales"
  echo '{{"id": 4, "product": "tea", "price": 3.50}}' > orders/2.json
  taut run
  taut verify
"""


def init(arguments: argparse.Namespace) -> int:
    """Write the sample project."""
    from tautochrone.project.spec import init_project

    folder = init_project(Path(arguments.name).parent, Path(arguments.name).name)
    sys.stderr.write(_NEXT_STEPS.format(folder=folder))
    return 0


def dry_run(arguments: argparse.Namespace) -> int:
    """Resolve the whole graph, show it, write nothing."""
    from tautochrone.app.open import Project
    from tautochrone.model.definitions import DatasetKind
    from tautochrone.project.graph import shared_sources
    from tautochrone.runtime.delivery.check_sinks import check_sinks

    with Project(options_of(arguments), line_events, short_lived=True) as project:
        definitions, graph = project.analysed()
        check_sinks(project.base, definitions, graph, project.settings.sinks)
        default = project.settings.refresh_policy
        if arguments.explain is not None:
            return _explain(graph, default, arguments.explain, as_json=arguments.json)
        views = [
            name for name, dataset in graph.definitions.datasets.items() if dataset.kind is DatasetKind.VIEW
        ]
        entries = [_entry(graph, name, default) for name in (*graph.order, *sorted(views))]
        entries += [_sink_entry(graph, name) for name in sorted(graph.definitions.sinks)]
        shared = shared_sources(graph)
    for entry in entries:
        if entry.get("warning"):
            sys.stderr.write(f"warning: {entry['warning']}\n")
    for warning in graph.definitions.warnings:
        sys.stderr.write(f"warning: {warning.location}: {warning.reason}\n")
    for source in shared:
        tables = ", ".join(name.without_catalog for name in source.tables)
        sys.stderr.write(f"warning: {tables} ({', '.join(source.locations)}): {source.reason}\n")
        sys.stderr.write(f"  hint: {source.hint}\n")
    if arguments.json:
        for entry in entries:
            json_line(entry)
    else:
        table(
            ("dataset", "kind", "reads", "policy", "location"),
            [
                (e["dataset"], e["kind"], ", ".join(e["reads"]), e["policy"] or "", e["location"])
                for e in entries
            ],
        )
    return 0


def _entry(graph: Graph, name: TableName, default: RefreshPolicy) -> dict[str, Any]:
    from tautochrone.model.checkpoint import RefreshPolicy
    from tautochrone.model.definitions import DatasetKind
    from tautochrone.model.names import describe_clock, describe_files, is_file_table
    from tautochrone.project.table_properties import policy_of
    from tautochrone.runtime.views.plans import preview, refusal

    dataset = graph.definitions.datasets[name]
    inputs, flows = graph.inputs(name), graph.flows_of(name)
    tables = [describe_files(table) if is_file_table(table) else str(table) for table in inputs.tables]
    other_inputs = [*map(describe_clock, sorted(inputs.clocks)), *inputs.unversioned]
    other_inputs += ["a stream from outside"] if inputs.external_streams else []
    other_inputs += [f"bad records of {dataset.bad_records_of.table}"] if dataset.bad_records_of else []
    is_materialized = dataset.kind is DatasetKind.MATERIALIZED_VIEW
    policy = policy_of(dataset, default) if is_materialized else None
    entry: dict[str, Any] = {
        "dataset": str(name),
        "kind": str(dataset.kind),
        "reads": [*sorted(tables), *other_inputs],
        "appendable": all(flow.linear or flow.streaming for flow in flows),
        "reason": next((f.linear_reason for f in flows if not (f.linear or f.streaming)), ""),
        "policy": None if policy is None else str(policy),
        "location": str(dataset.location),
    }
    if policy is RefreshPolicy.INCREMENTAL_STRICT:
        # Only this policy needs the plan: it tells why the first change will be refused.
        planned = preview(graph, name, default)
        assert planned is not None
        entry["warning"] = refusal(graph, name, planned)
    return entry


def _sink_entry(graph: Graph, name: TableName) -> dict[str, Any]:
    sink, inputs = graph.definitions.sinks[name], graph.inputs(name)
    outside = ["a stream from outside"] if inputs.external_streams else []
    return {
        "dataset": name.table,
        "kind": "sink",
        "reads": [*sorted(str(table) for table in inputs.tables), *inputs.unversioned, *outside],
        "format": sink.format,
        "flows": [flow.flow.name for flow in graph.flows_of(name)],
        "policy": None,
        "location": str(sink.location),
    }


def _explain(graph: Graph, default: RefreshPolicy, text: str, *, as_json: bool) -> int:
    from tautochrone.runtime.job.topology import find_all
    from tautochrone.runtime.views.plans import preview, refusal

    (name,) = find_all(graph.definitions, [text])
    planned = preview(graph, name, default)
    if planned is None:
        kind = graph.definitions.datasets[name].kind
        raise DefinitionError(
            "NOTHING_TO_EXPLAIN",
            f"{name} is a {kind}: only materialized views are refreshed by a plan",
            location=str(graph.definitions.datasets[name].location),
        )
    warning = refusal(graph, name, planned)
    # Expressions are shown literally, and a definition may have read a secret into one.
    reasons, tree = ([redacted(str(line)) for line in lines] for lines in (planned.reasons, planned.tree))
    if as_json:
        json_line(
            {
                "dataset": str(name),
                "policy": str(planned.policy),
                "mode": str(planned.mode),
                "reasons": reasons,
                "tree": tree,
                "warning": warning,
            }
        )
    else:
        answer().write(f"{name}  policy {planned.policy}  mode {planned.mode}\n")
        for line in (*(f"because {reason}" for reason in reasons), "", *tree):
            answer().write(line + "\n")
        if warning is not None:
            sys.stderr.write(f"warning: {warning}\n")
    return 0
