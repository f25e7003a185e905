"""What a refresh would cost in each mode. Pure arithmetic over row counts and this view's own history.

Two sources of knowledge are blended. A static model knows only row counts and how many operators look at
other rows than those that changed. Computing everything costs a fixed part, and all rows in each operator.
Following a change costs a fixed part, some jobs per operator, what the changed rows are worth in each, and
the look-ups of what they meet. Measured durations know the machine and the query. Their weight grows with the
number of runs and after `ENOUGH_RUNS` of them the model only says how a change larger than those measured
would differ.

The numbers are those of TPC-H's queries at scale factors from 0.1 to 10, warm, on two cores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tautochrone.model.reason import Reason, ReasonCode, several
from tautochrone.model.refresh import Refresh, RefreshMode, RefreshPolicy

__all__ = ["Decision", "Estimate", "Facts", "InputFacts", "decide", "estimate"]

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
        history: refreshes of the same definition, newest first.
    """

    changed: tuple[InputFacts, ...]
    clocks: tuple[str, ...] = ()
    unchanged_rows: int | None = 0
    view_rows: int | None = None
    steps: int = 0
    obstacles: tuple[Reason, ...] = ()
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
    """A mode, its reason, and what it was based on (None: there was nothing to compare)."""

    mode: RefreshMode
    reason: Reason
    estimate: Estimate | None = field(default=None)

    @property
    def is_full_despite_small_change(self) -> bool:
        """Whether everything is computed although little changed: the next change will not be followed
        either. After a large change it may well be."""
        share = None if self.estimate is None else self.estimate.share
        return self.mode is RefreshMode.FULL and share is not None and share <= SMALL_SHARE

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
        return Decision(mode=RefreshMode.DIFF, reason=several(facts.obstacles), estimate=costs)
    reason = _costs_reason(policy, facts, costs)
    if policy is not RefreshPolicy.AUTO:
        return Decision(mode=RefreshMode.INCREMENTAL, reason=reason, estimate=costs)
    slack = NOISE_MS if costs.incremental_runs >= ENOUGH_RUNS else UNMEASURED_SLACK_MS
    dearer = costs.incremental_ms > max(costs.full_ms * TOLERANCE, costs.full_ms + slack)
    mode = RefreshMode.FULL if dearer else RefreshMode.INCREMENTAL
    return Decision(mode=mode, reason=reason, estimate=costs)


def estimate(facts: Facts) -> Estimate:
    """Both ways' expected durations."""
    work = _work_ms(facts)
    full = FIXED_MS + work
    share = _share(facts)
    # The number of changed rows is unknown: the costs are taken as equal, so that measurements decide.
    incremental = full if share is None else _following_ms(facts, facts.delta_rows, share, work)
    past = list(enumerate(facts.history))
    computed = [(age, float(run.duration_ms)) for age, run in past if _computed_all(run)]
    full_ms = _blend(full, computed)
    # A query that is slower than the model says is so for each row.
    dearer = max(1.0, full_ms / full)
    followed = [
        (age, run.duration_ms + dearer * max(0.0, incremental - _static_ms(run.delta_rows, facts, work)))
        for age, run in past
        if _followed(run)
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


def _computed_all(run: Refresh) -> bool:
    """It evaluated the whole query; in an incremental one `DIFF` is the worst of several nodes."""
    whole = not run.nodes or [node.node for node in run.nodes] == ["query"]
    return run.mode is RefreshMode.FULL or (run.mode is RefreshMode.DIFF and whole)


def _followed(run: Refresh) -> bool:
    return run.mode in (RefreshMode.INCREMENTAL, RefreshMode.DIFF) and not _computed_all(run)


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
