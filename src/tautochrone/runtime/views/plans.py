"""The plan of each view with the states that it keeps, made once, and a preview of the view's refreshes.

A plan does not depend on versions. The columns of its states are computed with it, because reading a type
takes several calls to Java. The preview is made before anything is built, from the view's plan over the
analysis's empty tables.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from tautochrone.algebra.explain import explained_nodes
from tautochrone.algebra.nodes import Scan, Stateful, stateful_nodes, walk
from tautochrone.algebra.rules import RULES
from tautochrone.ingest.staging import align
from tautochrone.model.checkpoint import RefreshMode, RefreshPolicy, worst_mode
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import TableName
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.project.graph import UNSTABLE_FUNCTION, Graph
from tautochrone.project.table_properties import policy_of
from tautochrone.runtime.refresh.sessions import CheckpointViews
from tautochrone.runtime.refresh.states import RUN, StateLayout
from tautochrone.runtime.views.choose_mode import not_incremental_error, unversioned_source
from tautochrone.spark.analysis.session_context import set_active_session
from tautochrone.spark.execute.repeated_plans import RepeatedPlans
from tautochrone.spark.translate.from_catalyst import View, plan_of

__all__ = ["Planned", "Plans", "RefreshPreview", "preview", "refusal", "with_state_layouts"]

_FORMAT = 2
"""Must be raised when this release would misread stored states: then every state is built anew."""

_NOT_STORED = ("interval", "void", "map", "variant")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStateLayout(StateLayout):
    """The state of one stateful node of a view's plan."""

    node: Stateful

    @property
    def is_buffer(self) -> bool:
        return self.node.is_buffer


@dataclass(frozen=True, slots=True)
class Planned:
    """A view's plan.

    Attributes:
        view: the plan itself.
        layouts: the states that it keeps by the number of their node, each after those below it.
        reads: the columns that it reads of each table.
        repeated: plans of its refreshes that run again.
    """

    view: View
    layouts: Mapping[int, NodeStateLayout]
    reads: Mapping[TableName, frozenset[str]]
    repeated: RepeatedPlans = field(default_factory=RepeatedPlans, compare=False)


def with_state_layouts(view: View) -> Planned:
    """Lay out every state of a plan whose types a table can hold."""
    all_layouts = {node.number: _layout(view, node) for node in stateful_nodes(view.plan)}
    layouts = {number: layout for number, layout in sorted(all_layouts.items()) if layout is not None}
    return Planned(view, layouts, _reads(view))


def _reads(view: View) -> dict[TableName, frozenset[str]]:
    columns: dict[TableName, frozenset[str]] = {}
    for node in walk(view.plan):
        if isinstance(node, Scan):
            names = frozenset(str(view.attributes[column].name()) for column in node.handle)
            columns[node.table] = columns.get(node.table, frozenset()) | names
    return columns


def _layout(view: View, node: Stateful) -> NodeStateLayout | None:
    types = [json.loads(view.attributes[column].dataType().json()) for column in node.state_columns]
    texts = [json.dumps(of_column) for of_column in types]
    if any(word in text for text in texts for word in _NOT_STORED):
        return None
    keys = tuple(f"k{i}" for i in range(len(node.state_keys)))
    expressions = [*(str(view.attributes[key].name()) for key in node.state_keys), *node.state_texts]
    values = tuple(f"a{i}" for i in range(len(types) - len(keys)))
    named = zip((*keys, *values, RUN), (*types, "long"), strict=True)
    fields = [{"name": n, "type": kind, "nullable": True, "metadata": {}} for n, kind in named]
    # Spark numbers its columns anew each time.
    expressions = [re.sub(r"\d+", "", text) for text in expressions]
    signed = json.dumps(
        [_FORMAT, pyspark.__version__, node.number, node.label.capitalize(), expressions, fields]
    )
    return NodeStateLayout(
        node=node,
        keys=keys,
        values=values,
        schema=StructType.fromJson({"type": "struct", "fields": fields}),
        signature=hashlib.sha256(signed.encode()).hexdigest()[:16],
    )


class Plans:
    """Plans of a job's views, for as long as the job runs.

    Methods take the session in which a view is planned if it was not yet.
    """

    def __init__(self, views: CheckpointViews, graph: Graph) -> None:
        self._views = views
        self._graph = graph
        self._lock = threading.Lock()
        self._known: dict[TableName, Planned] = {}

    def of(self, view: TableName, session: SparkSession) -> Planned | None:
        """A view's plan; None when its changes can never be followed."""
        plan = self._plan(view, session)
        return None if plan.view.obstacles else plan

    def known(self, view: TableName) -> Planned | None:
        """A view's plan if it was made already."""
        with self._lock:
            return self._known.get(view)

    def obstacles(self, view: TableName, session: SparkSession) -> Sequence[Reason]:
        """Why a view's changes cannot be followed; empty when they can."""
        obstacles = self._plan(view, session).view.obstacles
        return [Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=obstacle) for obstacle in obstacles]

    def steps(self, view: TableName, session: SparkSession) -> int:
        """How many operators of a view's plan look at other rows than those that changed."""
        plan = self._plan(view, session).view.plan
        # A node that occurs twice in the plan is computed once.
        return sum(node.combines_rows for node in dict.fromkeys(walk(plan)))

    def columns(self, table: TableName) -> frozenset[str]:
        """The columns that the plans made so far read of a table."""
        with self._lock:
            plans = list(self._known.values())
        return frozenset[str]().union(*(plan.reads.get(table, ()) for plan in plans))

    def _plan(self, view: TableName, session: SparkSession) -> Planned:
        plan = self.known(view)
        if plan is None:
            plan = self._make_plan(view, session)
            with self._lock:
                self._known[view] = plan
        return plan

    def _make_plan(self, view: TableName, session: SparkSession) -> Planned:
        (flow,) = self._graph.flows_of(view)
        set_active_session(session)
        self._views.prepare(session, flow.views)
        rows = flow.evaluate(session, with_dropped=True)
        frame = align(rows, self._graph.schemas[view], flow.flow.name)
        plan = plan_of(flow.flow.with_flags(frame), view.catalog)
        if flow.deterministic_reason == UNSTABLE_FUNCTION:
            # The rows that are stored have the constants of another run.
            plan = replace(plan, obstacles=(*plan.obstacles, UNSTABLE_FUNCTION))
        return with_state_layouts(plan)


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
    plan = plan_of(flow.evaluate(graph.analysis_session), view.catalog)
    parts = explained_nodes(plan.plan, RULES)
    policy = policy_of(dataset, default)
    reasons = [Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=text) for text in plan.obstacles]
    if flow.inputs.unversioned:
        reasons = [unversioned_source(flow)]
    reasons += [
        Reason.of(ReasonCode.UNSUPPORTED_QUERY, detail=f"{part.node}: {part.reason}")
        for part in parts
        if part.mode is RefreshMode.DIFF and not plan.obstacles
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
    return str(not_incremental_error(view, joined_reasons(planned_refresh.reasons), location))
