"""`taut init`, `prepare`, `config`, `dry-run`, `doctor` and `support-bundle`: what sets a project up, and
what tells whether it is right. None of them writes a table."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tautochrone.cli.options import options_of
from tautochrone.cli.output import answer, json_line, line_events, show, table
from tautochrone.cli.plan import write_refusals
from tautochrone.errors import DefinitionError, MetaError
from tautochrone.model.names import TableName
from tautochrone.model.reason import reason_fields
from tautochrone.redaction import redacted

if TYPE_CHECKING:
    from tautochrone.app.finding import Finding
    from tautochrone.model.checkpoint import RefreshPolicy
    from tautochrone.model.project_plan import ProjectPlan
    from tautochrone.project.graph import Graph
    from tautochrone.project.settings import SinkSettings
    from tautochrone.runtime.delivery.check_sinks import MirroredTable

__all__ = ["config", "doctor", "dry_run", "init", "prepare", "support_bundle"]

_NEXT_STEPS = """\
Wrote {folder}: orders/ holds what arrives, transformations/ what is made of it.
Next steps:
  cd {quoted}
  taut run
  taut query "SELECT * FROM sales"
  echo '{{"id": 4, "product": "tea", "price": 3.50}}' > orders/2.json
  taut run
  taut verify
  taut test
"""


def init(arguments: argparse.Namespace) -> int:
    """Write the sample project."""
    from tautochrone.project.spec import init_project

    folder = init_project(Path(arguments.name).parent, Path(arguments.name).name)
    sys.stderr.write(_NEXT_STEPS.format(folder=folder, quoted=shlex.quote(str(folder))))
    return 0


def prepare(arguments: argparse.Namespace) -> int:
    """Download what the first run needs, into the cache or into a folder."""
    from tautochrone.spark.session import prepare as preparation

    def report(line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    if arguments.download is not None:
        for jar in preparation.download_jars(report, Path(arguments.download)):
            answer().write(f"{jar}\n")
        return 0
    preparation.prepare(report, None if arguments.source is None else Path(arguments.source))
    return 0


def config(arguments: argparse.Namespace) -> int:
    """The settings in force, or the schema of all; from the declarations and the project, without Spark."""
    if arguments.action == "schema":
        from tautochrone.project.settings import json_schema

        answer().write(json.dumps(json_schema(), indent=2) + "\n")
        return 0
    from tautochrone.app.locate import settings_in_force

    values = [
        {"setting": value.key, "value": value.text, "origin": value.origin}
        for value in settings_in_force(options_of(arguments))
    ]
    columns = ("setting", "value", "origin") if arguments.origin else ("setting", "value")
    show(values, columns, as_json=arguments.json)
    return 0


def dry_run(arguments: argparse.Namespace) -> int:
    """Resolve the whole graph, show it, write nothing; 1 when the next run will refuse something."""
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options)
    from tautochrone.app.open import Project
    from tautochrone.app.plan_graph import plans_of_jobs
    from tautochrone.model.definitions import DatasetKind
    from tautochrone.project.graph import shared_sources
    from tautochrone.runtime.delivery.check_sinks import check_sinks

    with Project(options, line_events, short_lived=True, located=located) as project:
        definitions, graph = project.analysed()
        mirrors = check_sinks(project.base, definitions, graph, project.settings.sinks)
        default = project.settings.refresh_policy
        try:
            plans = plans_of_jobs(project, definitions, graph)
        except MetaError as error:
            # The project itself can be checked without its service.
            plans = []
            sys.stderr.write(redacted(f"warning: what the next run will refuse is not known: {error}\n"))
        if arguments.explain is not None:
            return _explain(graph, plans, default, arguments.explain, as_json=arguments.json)
        views = [
            name for name, dataset in graph.definitions.datasets.items() if dataset.kind is DatasetKind.VIEW
        ]
        entries = [_entry(graph, name, default) for name in (*graph.order, *sorted(views))]
        entries += _sink_entries(graph, project.settings.sinks)
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
        for mirror in mirrors:
            json_line(_mirror_entry(mirror))
    else:
        table(
            ("dataset", "kind", "reads", "policy", "location"),
            [
                (e["dataset"], e["kind"], ", ".join(e["reads"]), e["policy"] or "", e["location"])
                for e in entries
            ],
        )
        _show_mirrors(mirrors)
    return 1 if write_refusals(plans) else 0


def _mirror_entry(mirror: MirroredTable) -> dict[str, Any]:
    return {
        "dataset": str(mirror.table),
        "kind": "mirror",
        "sink": mirror.sink,
        "format": mirror.format,
        "shown_as": mirror.shown_as,
        "key": list(mirror.key),
        "mode": "inserts" if mirror.inserts_only else "changes",
        "location": mirror.location,
    }


def _show_mirrors(mirrors: Sequence[MirroredTable]) -> None:
    """What goes where, below the datasets."""
    if not mirrors:
        return
    answer().write("\n")
    rows = [
        (
            mirror.sink,
            mirror.format,
            mirror.table.without_catalog,
            mirror.shown_as or "",
            ", ".join(mirror.key),
            "inserts" if mirror.inserts_only else "changes",
        )
        for mirror in mirrors
    ]
    table(("sink", "format", "dataset", "shown as", "key", "sends"), rows)


def _entry(graph: Graph, name: TableName, default: RefreshPolicy) -> dict[str, Any]:
    from tautochrone.model.checkpoint import RefreshPolicy
    from tautochrone.model.definitions import DatasetKind
    from tautochrone.model.names import describe_clock, describe_input
    from tautochrone.project.table_properties import policy_of
    from tautochrone.runtime.views.plans import preview, refusal

    dataset = graph.definitions.datasets[name]
    inputs, flows = graph.inputs(name), graph.flows_of(name)
    tables = [describe_input(table) for table in inputs.tables]
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


def _sink_entries(graph: Graph, settings: Mapping[str, SinkSettings]) -> list[dict[str, Any]]:
    """The sinks and publications of the project: those of definition files, and those that settings and
    properties of tables declare."""
    from tautochrone.project.sinks import sink_declarations
    from tautochrone.sinks import has_adapter

    entries = [_sink_entry(graph, name) for name in sorted(graph.definitions.sinks)]
    names = {entry["dataset"] for entry in entries}
    return entries + [
        {
            "dataset": sink.name,
            "kind": "sink",
            "reads": [str(table) for table in sink.tables],
            "format": sink.format,
            "flows": [],
            "policy": None,
            "location": sink.location,
        }
        for sink in sink_declarations(graph.definitions, graph, settings, has_adapter)
        if sink.name not in names
    ]


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


def _explain(
    graph: Graph, plans: Sequence[ProjectPlan], default: RefreshPolicy, text: str, *, as_json: bool
) -> int:
    from tautochrone.model.project_plan import DefinitionChange
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
    following = next((part for plan in plans if (part := plan.dataset(name)) is not None), None)
    next_mode = None if following is None or following.mode is None else str(following.mode)
    # Expressions are shown literally, and a definition may have read a secret into one.
    reasons, tree = ([redacted(str(line)) for line in lines] for lines in (planned.reasons, planned.tree))
    if as_json:
        json_line(
            {
                "dataset": str(name),
                "policy": str(planned.policy),
                "mode": str(planned.mode),
                "next_run": next_mode,
                **reason_fields("next_run_reason", None if following is None else following.reason),
                "reasons": reasons,
                "tree": tree,
                "warning": warning,
            }
        )
    else:
        answer().write(f"{name}  policy {planned.policy}  mode {planned.mode}\n")
        if following is not None and following.is_changed and following.change is not DefinitionChange.NEW:
            answer().write(redacted(f"next run  {next_mode or following.treatment}: {following.reason}\n"))
        for line in (*(f"because {reason}" for reason in reasons), "", *tree):
            answer().write(line + "\n")
        if warning is not None:
            sys.stderr.write(f"warning: {warning}\n")
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    """Check what a run needs, one line for each check; 1 when something fails."""
    from tautochrone.app.finding import State
    from tautochrone.app.health import health_findings

    failed = False
    for finding in health_findings(options_of(arguments)):
        failed = failed or finding.state is State.FAILED
        if arguments.json:
            json_line({key: value for key, value in asdict(finding).items() if value is not None})
        else:
            answer().write(_finding_line(finding, failed=finding.state is State.FAILED))
            answer().flush()
    return 1 if failed else 0


def _finding_line(finding: Finding, *, failed: bool) -> str:
    name = f"[{finding.error}] " if finding.error else ""
    hint = f" - hint: {finding.hint}" if finding.hint else ""
    state = "FAILED" if failed else str(finding.state)
    return f"{state:<8} {finding.check:<12} {name}{' '.join(finding.detail.split())}{hint}\n"


def support_bundle(arguments: argparse.Namespace) -> int:
    """Write the zip and print its path; missing parts are reported, and are no failure."""
    from tautochrone.app.support_bundle import write_bundle

    timestamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = Path(arguments.output or f"taut-support-{timestamp}.zip")
    for part, reason in write_bundle(options_of(arguments), path).items():
        if reason is not None:
            sys.stderr.write(f"without {part}: {reason}\n")
    answer().write(f"{path}\n")
    return 0
