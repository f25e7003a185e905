"""How a view will be refreshed, before anything is built: from its plan over the analysis's empty tables."""

from __future__ import annotations

from dataclasses import dataclass

from tautochrone.algebra.explain import explained_nodes
from tautochrone.algebra.rules import RULES
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode, several
from tautochrone.model.refresh import RefreshMode, RefreshPolicy, worst_mode
from tautochrone.project.graph import Graph
from tautochrone.project.table_properties import policy_of
from tautochrone.runtime.refresh.choose_mode import not_incremental, unversioned_source
from tautochrone.spark.translate.from_catalyst import plan_of

__all__ = ["RefreshPreview", "preview", "refusal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshPreview:
    """How one view will be refreshed when its inputs change.

    Attributes:
        policy: the view's own, or the project's.
        mode: the most expensive one that any change needs; costs are not compared.
        reasons: why it is `diff`, or full by policy; empty otherwise.
        tree: the plan, one node a line.
    """

    policy: RefreshPolicy
    mode: RefreshMode
    reasons: tuple[Reason, ...]
    tree: tuple[str, ...]


def preview(graph: Graph, view: TableName, default: RefreshPolicy) -> RefreshPreview | None:
    """Plan a view; None for datasets that are no materialized views. Runs no Spark job."""
    dataset = graph.definitions.datasets[view]
    if dataset.kind is not DatasetKind.MATERIALIZED_VIEW:
        return None
    assert graph.analysis_session is not None
    (flow,) = graph.flows_of(view)
    planned = plan_of(flow.evaluate(graph.analysis_session), view.catalog)
    parts = explained_nodes(planned.plan, RULES)
    policy = policy_of(dataset, default)
    reasons = [Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=text) for text in planned.obstacles]
    if flow.inputs.unversioned:
        reasons = [unversioned_source(flow)]
    reasons += [
        Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=f"{part.node}: {part.reason}")
        for part in parts
        if part.mode is RefreshMode.DIFF and not planned.obstacles
    ]
    mode = worst_mode([part.mode for part in parts if part.mode is not None])
    if policy is RefreshPolicy.FULL:
        mode, reasons = RefreshMode.FULL, [Reason.of(ReasonCode.POLICY_IS_FULL)]
    elif reasons:
        mode = RefreshMode.DIFF
    return RefreshPreview(
        policy=policy, mode=mode, reasons=tuple(reasons), tree=tuple(part.text for part in parts)
    )


def refusal(graph: Graph, view: TableName, planned_refresh: RefreshPreview) -> str | None:
    """The error of the first refresh under `incremental_strict`, or None if there will be none."""
    if planned_refresh.policy is not RefreshPolicy.INCREMENTAL_STRICT or not planned_refresh.reasons:
        return None
    location = str(graph.definitions.datasets[view].location)
    return str(not_incremental(view, several(planned_refresh.reasons), location))
