"""Which refresh mode a view needs to get from its last checkpoint to the next, and why.

The mode follows from metadata, the view's policy and what each would cost. The costs are pure arithmetic over
row counts and this view's own history.

Two sources of knowledge are blended. A static model knows only row counts and how many operators look at
other rows than those that changed. Computing everything costs a fixed part, and all rows in each operator.
Following a change costs a fixed part, some jobs per operator, what the changed rows are worth in each, and
the look-ups of what they meet. Measured durations know the machine and the query. Their weight grows with the
number of runs and after `ENOUGH_RUNS` of them the model only says how a change larger than those measured
would differ.

The numbers are those of TPC-H's queries at scale factors from 0.1 to 10, warm, on two cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median

from tautochrone.errors import RefreshError
from tautochrone.model import limits
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode, RefreshPolicy, computed_all
from tautochrone.model.lake import ChangeKind, ReadableTable, TableChange
from tautochrone.model.names import (
    TableName,
    Version,
    describe_clock,
    describe_input,
    is_clock,
    is_file_table,
    is_same_source,
    is_shadow_table,
)
from tautochrone.model.reason import Reason, ReasonCode, joined_reasons
from tautochrone.project.graph import ResolvedFlow
from tautochrone.project.identity import INPUTS, PROJECT_FOLDER, changed_parts, has_same_columns
from tautochrone.runtime.refresh.task import Choice, RefreshContext, RefreshTask

__all__ = [
    "Decision",
    "Estimate",
    "Facts",
    "InputFacts",
    "Obstacles",
    "Size",
    "Sizes",
    "choose",
    "decide",
    "estimate",
    "input_rows",
    "keeps_state",
    "node_needs_mode",
    "not_incremental_error",
    "require_incremental",
    "sizes_of",
    "unversioned_source",
    "why_other_definition",
]


FIXED_MS = 300.0
"""Planning, the smallest Spark jobs and one commit; about the same for both ways."""

READ_MS_PER_ROW = 0.00005
STEP_MS_PER_ROW = 0.00004
"""Of a full computation: to read a row, and what each operator does with it."""

WRITE_MS_PER_ROW = 0.001

STEP_MS = 50.0
TERM_MS = 40.0
"""Of following a change, for each operator and each changed input in it: jobs and plans of their own."""

CHANGED_MS_PER_ROW = 0.002
"""A changed row in each operator: it is held, grouped and joined there."""

LOOK_UP_MS_PER_ROW = 0.00002
"""What a change meets is looked up in rows of this number, for each operator above the first."""

AMPLIFICATION = 5.0
"""Reading and writing a changed row costs this many times as much as a row of a full computation. When a
larger share than its inverse changed, a full computation is always cheaper."""

SMALL_SHARE = 0.05
"""A full computation that is cheaper although at most this share of the rows changed is expected to be
cheaper the next time too."""

COMPARED_SHARE = 1 / AMPLIFICATION
"""What is computed anew is compared with the stored rows, if other views read it and at most this share of
the rows changed: all its rows would be new to them, and each of them would be computed anew, too."""

COMPARE_MS_PER_ROW = 0.002
"""To read a stored row and to group it with the new one. It must not cost more than the computation."""

ENOUGH_RUNS = 3
NEWEST_RUNS = 5
"""Only so many of the newest runs of a kind are used, because machines and data change."""

RECENT_RUNS = 20
"""All runs of a mode that are older than so many refreshes count as one run. So the other mode is tried again
now and then, unless it was far slower."""

TOLERANCE = 1.1
"""Following the change is chosen unless it is expected to take more than this factor of a full computation:
it leaves less to do for the views above and less history to store. Estimates err, and a choice must not cost
more than 1.2 times the better one."""

NOISE_MS = 50.0

UNMEASURED_SLACK_MS = 250.0
"""Before following the change was measured for a view, a difference below this does not keep it from being
tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """One changed input: upper bound of changed rows and its row count now; None when unknown."""

    name: str
    changed_rows: int | None
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known before a refresh.

    Attributes:
        changed: the inputs that changed.
        clocks: what the query asks of the time, in words, that changed.
        unchanged_rows: rows of the other inputs together; None when unknown.
        view_rows: rows of the view as it stands; None when unknown.
        steps: operators of the query that look at other rows than those that changed.
        obstacles: why the plan, or nodes of it, cannot follow a change; empty when all can.
        readers: how many other views read this one.
        history: refreshes of the same definition, newest first.
    """

    changed: tuple[InputFacts, ...]
    clocks: tuple[str, ...] = ()
    unchanged_rows: int | None = 0
    view_rows: int | None = None
    steps: int = 0
    obstacles: tuple[Reason, ...] = ()
    readers: int = 0
    history: tuple[Refresh, ...] = ()

    @property
    def delta_rows(self) -> int:
        """Upper bound of the rows that changed, as far as it is known."""
        return sum(part.changed_rows or 0 for part in self.changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Expected durations of both ways, and in how far each was measured.

    Attributes:
        incremental_ms, full_ms: wall time.
        share: of all rows below the view, the part that the change may touch; None when unknown.
        incremental_runs, full_runs: how many measured runs they rest on.
    """

    incremental_ms: int
    full_ms: int
    share: float | None
    incremental_runs: int = 0
    full_runs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A mode, its reason, and what it was based on (None: there was nothing to compare).

    Attributes:
        for_readers: everything is computed, and compared so that the views above see little change.
    """

    mode: RefreshMode
    reason: Reason
    estimate: Estimate | None = field(default=None)
    for_readers: bool = False

    @property
    def is_full_despite_small_change(self) -> bool:
        """Whether everything is computed although little changed: the next change will not be followed
        either. After a large change it may well be."""
        share = None if self.estimate is None else self.estimate.share
        computes_all = self.mode is RefreshMode.FULL or self.for_readers
        return computes_all and share is not None and share <= SMALL_SHARE

    @property
    def expected_ms(self) -> int | None:
        """What the chosen way is expected to take."""
        if self.estimate is None:
            return None
        incremental = self.mode is RefreshMode.INCREMENTAL
        return self.estimate.incremental_ms if incremental else self.estimate.full_ms


def decide(policy: RefreshPolicy, facts: Facts) -> Decision:
    """Choose for a view whose definition did not change and some input did.

    `incremental_strict` with obstacles still answers `DIFF`; the caller refuses it.
    """
    costs = estimate(facts)
    if policy is RefreshPolicy.FULL:
        return Decision(mode=RefreshMode.FULL, reason=Reason.of(ReasonCode.POLICY_IS_FULL), estimate=costs)
    if facts.obstacles:
        return Decision(mode=RefreshMode.DIFF, reason=joined_reasons(facts.obstacles), estimate=costs)
    reason = _costs_reason(policy, facts, costs)
    if policy is not RefreshPolicy.AUTO:
        return Decision(mode=RefreshMode.INCREMENTAL, reason=reason, estimate=costs)
    slack = NOISE_MS if costs.incremental_runs >= ENOUGH_RUNS else UNMEASURED_SLACK_MS
    dearer = costs.incremental_ms > max(costs.full_ms * TOLERANCE, costs.full_ms + slack)
    if not dearer:
        return Decision(mode=RefreshMode.INCREMENTAL, reason=reason, estimate=costs)
    if _is_compared(facts, costs):
        reason = joined_reasons([reason, Reason.of(ReasonCode.COMPARED_FOR_READERS, readers=facts.readers)])
        return Decision(mode=RefreshMode.DIFF, reason=reason, estimate=costs, for_readers=True)
    return Decision(mode=RefreshMode.FULL, reason=reason, estimate=costs)


def _is_compared(facts: Facts, costs: Estimate) -> bool:
    """Whether what is computed anew is compared with the stored rows, for the views that read it."""
    if not facts.readers or facts.view_rows is None or costs.share is None:
        return False
    return costs.share <= COMPARED_SHARE and facts.view_rows * COMPARE_MS_PER_ROW <= costs.full_ms


def estimate(facts: Facts) -> Estimate:
    """Both ways' expected durations."""
    work = _work_ms(facts)
    full = FIXED_MS + work
    share = _share(facts)
    # The number of changed rows is unknown: the costs are taken as equal, so that measurements decide.
    incremental = full if share is None else _following_ms(facts, facts.delta_rows, share, work)
    past = list(enumerate(facts.history))
    computed = [(age, float(run.duration_ms)) for age, run in past if computed_all(run)]
    full_ms = _blend(full, computed)
    # A query that is slower than the model says is so for each row.
    dearer = max(1.0, full_ms / full)
    followed = [
        (age, run.duration_ms + dearer * max(0.0, incremental - _static_ms(run.delta_rows, facts, work)))
        for age, run in past
        if _was_followed(run)
    ]
    return Estimate(
        incremental_ms=round(_blend(incremental, followed)),
        full_ms=round(full_ms),
        share=share,
        incremental_runs=_runs(followed),
        full_runs=_runs(computed),
    )


def _share(facts: Facts) -> float | None:
    """The part of the rows that the change may touch. Half of a small input may meet half of a large one,
    so the shares of the inputs count and not their rows."""
    untouched = 1.0
    for part in facts.changed:
        if part.changed_rows is None or part.rows is None:
            return None
        untouched *= 1.0 - min(1.0, part.changed_rows / max(part.rows, part.changed_rows, 1))
    return 1.0 - untouched


def _rows(facts: Facts) -> int:
    return sum(part.rows or 0 for part in facts.changed) + (facts.unchanged_rows or 0)


def _work_ms(facts: Facts) -> float:
    """What the rows of a full computation cost."""
    per_row = READ_MS_PER_ROW + STEP_MS_PER_ROW * facts.steps
    return _rows(facts) * per_row + (facts.view_rows or 0) * WRITE_MS_PER_ROW


def _following_ms(facts: Facts, delta_rows: int, share: float, work: float) -> float:
    """What following a change of so many rows, which may touch this share of all, costs."""
    steps = facts.steps * (STEP_MS + TERM_MS * len(facts.changed) + CHANGED_MS_PER_ROW * delta_rows)
    look_ups = LOOK_UP_MS_PER_ROW * _rows(facts) * max(0, facts.steps - 1)
    return FIXED_MS + steps + look_ups + AMPLIFICATION * share * work


def _static_ms(delta_rows: int, facts: Facts, work: float) -> float:
    """What the model says for an earlier run, of which only the number of changed rows is known."""
    rows = sum(part.rows or 0 for part in facts.changed)
    return _following_ms(facts, delta_rows, min(1.0, delta_rows / max(rows, 1)), work)


def _runs(measured: Sequence[tuple[int, float]]) -> int:
    """How many runs of (age, ms) count."""
    return max(sum(age < RECENT_RUNS for age, _ in measured[:NEWEST_RUNS]), min(1, len(measured)))


def _blend(static: float, measured: Sequence[tuple[int, float]]) -> float:
    """The weighted geometric mean of model and measurement, so that one cold run does not decide for long."""
    if not measured:
        return static
    weight = min(_runs(measured), ENOUGH_RUNS) / ENOUGH_RUNS
    return float(
        static ** (1.0 - weight) * max(1.0, median(ms for _, ms in measured[:NEWEST_RUNS])) ** weight
    )


def _was_followed(run: Refresh) -> bool:
    return run.mode in (RefreshMode.INCREMENTAL, RefreshMode.DIFF) and not computed_all(run)


def _costs_reason(policy: RefreshPolicy, facts: Facts, costs: Estimate) -> Reason:
    return Reason.of(
        ReasonCode.ESTIMATED_COSTS,
        policy=None if policy is RefreshPolicy.AUTO else str(policy),
        changed=[
            {"table": part.name, "changed_rows": part.changed_rows, "rows": part.rows}
            for part in facts.changed
        ],
        clocks=list(facts.clocks),
        incremental_ms=costs.incremental_ms,
        incremental_measured=costs.incremental_runs >= ENOUGH_RUNS,
        full_ms=costs.full_ms,
        full_measured=costs.full_runs >= ENOUGH_RUNS,
    )


_FIRST_REASONS = (ReasonCode.FIRST_BUILD, ReasonCode.DEFINITION_CHANGED, ReasonCode.BUILD_APPLIED)
"""Reasons of the first refresh of a definition: refreshes before it were of another query."""


def _is_first(run: Refresh) -> bool:
    """Whether refreshes before it were of another query. A build that is applied may be followed at once."""
    applied = any(node.reason.code is ReasonCode.BUILD_APPLIED for node in run.nodes)
    return applied or run.reason.code in _FIRST_REASONS


_NOT_OF_AUTHOR = {INPUTS: ReasonCode.INPUT_TYPES_CHANGED, PROJECT_FOLDER: ReasonCode.PROJECT_MOVED}
"""Parts of a definition that differ without a change of the definition: rows are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of a table between two versions: upper bound of changed rows, and rows at the newer one. None: the
    table does not tell."""

    changed_rows: int | None = None
    rows: int | None = None


Sizes = Callable[[TableName, Version, Version], Size]
"""Two equal versions ask for the number of rows only."""

Obstacles = Callable[[], Sequence[Reason]]
"""Why a view's plan cannot follow a change; called only when there is one. Empty: it can."""


def choose(
    context: RefreshContext,
    task: RefreshTask,
    *,
    forced: Reason | None = None,
    obstacles: Obstacles | None = None,
    steps: Callable[[], int] = lambda: 0,
    readers: int = 0,
    sizes: Sizes | None = None,
    bounds: Sizes | None = None,
) -> Choice:
    """Decide from metadata, and from what `sizes` finds out.

    The view's rows were computed from the inputs that its newest commit names. These need not be those of a
    published checkpoint: an aborted one may lie in between.

    Args:
        forced: a reason to compare contents although no input changed.
        obstacles: see `Obstacles`; absent, only rows added below a linear query are followed.
        steps: as of `Facts`; called only for a change that can be followed.
        readers: as of `Facts`.
        sizes: see `Sizes`; absent, no size is known.
        bounds: cheaper sizes, for a view whose changes will not be followed; absent, `sizes` is used.

    Raises:
        RefreshError: `REFRESH_NOT_INCREMENTAL`, the policy forbids the only mode that is left.
    """
    flow, policy, new, last_commit = task.flow, task.policy, task.inputs, task.fork.commit_metadata
    if last_commit is None or last_commit.definition is None:
        return Choice(RefreshMode.FULL, Reason.of(ReasonCode.FIRST_BUILD), policy=policy)
    old = {TableName.parse(name): Version(version) for name, version in last_commit.inputs.items()}
    stored, current = last_commit.definition, task.metadata.definition or ""
    if stored != current:
        reason = why_other_definition(stored, current)
        # A strict policy does not allow to compare, but to build anew what lost its base.
        comparable = has_same_columns(stored, current) and policy is not RefreshPolicy.INCREMENTAL_STRICT
        if reason.code is ReasonCode.DEFINITION_CHANGED or not comparable:
            return Choice(RefreshMode.FULL, reason, policy=policy)
        # Rows that no commit changed may give others: `1.1` of a FLOAT is `1.100000023841858` as a DOUBLE.
        forced = forced or reason
    changes = {name: _change(context, name, old, version) for name, version in new.items()}
    moved = {name: change for name, change in changes.items() if change.kind is not ChangeKind.NONE}
    if not moved and forced is None:
        return Choice(RefreshMode.NO_DATA, Reason.of(ReasonCode.NO_INPUT_CHANGED), policy=policy)
    ranges = {name: (old[name], new[name]) for name in moved if name in old}
    appendable = flow.linear and all(change.kind is ChangeKind.APPEND for change in moved.values())
    append = appendable and forced is None and policy is not RefreshPolicy.FULL
    hindered = () if append else tuple(_obstacles(flow, moved, forced, obstacles))
    followed = not append and not hindered and policy is not RefreshPolicy.FULL
    measure = _measure(sizes if followed else bounds or sizes, old, new)
    # A clock has one row that always changes: that says nothing about the rows that depend on it.
    changed = tuple(_facts_of(name, measure(name)) for name in sorted(moved) if not is_clock(name))
    delta_rows = sum(part.changed_rows or 0 for part in changed)
    if append:
        reason = Reason.of(ReasonCode.ROWS_ADDED_TO_LINEAR_QUERY)
        return Choice(RefreshMode.APPEND, reason, ranges, delta_rows=delta_rows, policy=policy)
    facts = Facts(
        changed=changed,
        clocks=tuple(describe_clock(name) for name in sorted(moved) if is_clock(name)),
        unchanged_rows=_total(measure(name).rows for name in new if name not in moved),
        view_rows=None if sizes is None else sizes(task.name, task.fork.version, task.fork.version).rows,
        steps=steps() if followed else 0,
        obstacles=hindered,
        readers=readers,
        history=_history(context, task),
    )
    decision = decide(policy, facts)
    if decision.mode is RefreshMode.DIFF and policy is RefreshPolicy.INCREMENTAL_STRICT:
        raise not_incremental_error(task.name, decision.reason, task.location)
    return Choice(
        decision.mode,
        decision.reason,
        ranges,
        estimate_ms=decision.expected_ms,
        delta_rows=delta_rows,
        policy=policy,
        stateless=policy is RefreshPolicy.AUTO and decision.is_full_despite_small_change,
    )


def why_other_definition(stored: str, current: str) -> Reason:
    """In what a definition differs from the one that computed a view's rows: `DEFINITION_CHANGED`, or
    another code where its author changed nothing."""
    parts = changed_parts(stored, current)
    if parts and _NOT_OF_AUTHOR.keys() >= {*parts}:
        return Reason.of(_NOT_OF_AUTHOR[parts[0]])
    return Reason.of(ReasonCode.DEFINITION_CHANGED, parts=parts)


def keeps_state(task: RefreshTask, load_input: Callable[[TableName], ReadableTable]) -> bool:
    """Whether a view keeps what it needs to follow changes. No Spark job."""
    if task.policy is not RefreshPolicy.AUTO:
        return task.policy is not RefreshPolicy.FULL
    rows = input_rows(task, load_input)
    return rows is None or rows > limits.TINY_INPUT_ROWS


def input_rows(task: RefreshTask, load_input: Callable[[TableName], ReadableTable]) -> int | None:
    """How many rows a view's inputs hold together; None when one does not tell. No Spark job."""
    return _total(load_input(name).row_count(version) for name, version in task.inputs.items())


def sizes_of(
    load_input: Callable[[TableName], ReadableTable],
    changed_rows: Callable[[TableName, Version, Version], int | None],
) -> Sizes:
    """Sizes from the tables' metadata.

    Args:
        load_input: loads a table or a clock.
        changed_rows: upper bound of the rows that changed between two versions.
    """

    def size(name: TableName, old: Version, new: Version) -> Size:
        table = load_input(name)
        changed = 0 if old == new else changed_rows(name, old, new)
        return Size(changed_rows=changed, rows=table.row_count(new))

    return size


def unversioned_source(flow: ResolvedFlow) -> Reason:
    """That a query reads something of which nothing tells whether it changed."""
    return Reason.of(ReasonCode.UNVERSIONED_SOURCE, sources=list(flow.inputs.unversioned))


def require_incremental(task: RefreshTask, nodes: Sequence[NodeRefresh]) -> None:
    """Compare what the nodes did, or are about to do, with the policy; to be called before the commit.

    Raises:
        RefreshError: `REFRESH_NOT_INCREMENTAL`, which names the node and its reason.
    """
    if task.policy is not RefreshPolicy.INCREMENTAL_STRICT:
        return
    for node in nodes:
        if node.mode in (RefreshMode.DIFF, RefreshMode.FULL):
            raise not_incremental_error(task.name, node_needs_mode(node), task.location)


def node_needs_mode(node: NodeRefresh) -> Reason:
    """That a node could not follow the change, with its own reason."""
    return Reason.of(ReasonCode.NODE_NEEDS_MODE, node=node.node, mode=str(node.mode), cause=str(node.reason))


def not_incremental_error(table: TableName, reason: Reason, location: str) -> RefreshError:
    """The refusal of `incremental_strict`."""
    return RefreshError(
        "REFRESH_NOT_INCREMENTAL",
        f"{table} has the refresh policy {RefreshPolicy.INCREMENTAL_STRICT} and cannot follow this change: "
        f"{reason}",
        sqlstate="0A000",
        location=location,
        hint=f"its old version stays readable; rebuild it once with --full-refresh {table.table}, or allow "
        f"comparison with the policy {RefreshPolicy.INCREMENTAL}",
        parameters={"reason": str(reason)},
    )


def _change(
    context: RefreshContext, name: TableName, last: Mapping[TableName, Version], new: Version
) -> TableChange:
    old = last.get(name)
    if old is None:
        code = ReasonCode.NEW_INPUT
        if any(is_same_source(name, last_name) for last_name in last):
            code = ReasonCode.FILE_COLUMNS_CHANGED
        return TableChange(kind=ChangeKind.UNKNOWN, reason=Reason.of(code, input=_describe(name)))
    if old == new:
        return TableChange(
            kind=ChangeKind.NONE, reason=Reason.of(ReasonCode.TABLE_UNCHANGED, table=str(name))
        )
    return context.load_input(name).change_between(old, new)


def _describe(name: TableName) -> str:
    if is_clock(name):
        return describe_clock(name)
    return describe_input(name)


def _obstacles(
    flow: ResolvedFlow,
    moved: Mapping[TableName, TableChange],
    forced: Reason | None,
    planned: Obstacles | None,
) -> list[Reason]:
    """Why the change cannot be followed; the first reason is the plainest."""
    if forced is not None:
        lost = [change.reason for change in moved.values() if change.kind is ChangeKind.UNKNOWN]
        return lost if lost and forced.code in _NOT_OF_AUTHOR.values() else [forced]
    if planned is None:
        if not flow.linear:
            return [Reason.of(ReasonCode.NOT_LINEAR, operator=flow.linear_reason)]
        return [change.reason for change in moved.values() if change.kind is not ChangeKind.APPEND]
    lost = [change.reason for change in moved.values() if change.kind is ChangeKind.UNKNOWN]
    if flow.inputs.unversioned:
        lost.append(unversioned_source(flow))
    if not flow.deterministic:
        lost.append(Reason.of(ReasonCode.NOT_DETERMINISTIC, function=flow.deterministic_reason))
    return lost or list(planned())


def _history(context: RefreshContext, task: RefreshTask) -> tuple[Refresh, ...]:
    """Refreshes since the definition last changed, that first one included, newest first."""
    if task.applied is not None:
        return (task.applied,)
    past = context.history(task.name)
    same = list(takewhile(lambda refresh: not _is_first(refresh), past))
    return tuple(past[: len(same) + 1])


def _measure(
    sizes: Sizes | None, old: Mapping[TableName, Version], new: Mapping[TableName, Version]
) -> Callable[[TableName], Size]:
    def measure(name: TableName) -> Size:
        return Size() if sizes is None else sizes(name, old.get(name, new[name]), new[name])

    return measure


def _facts_of(name: TableName, size: Size) -> InputFacts:
    label = describe_input(name) if is_file_table(name) or is_shadow_table(name) else name.table
    return InputFacts(name=label, changed_rows=size.changed_rows, rows=size.rows)


def _total(counts: Iterable[int | None]) -> int | None:
    values = list(counts)
    return None if None in values else sum(count or 0 for count in values)
