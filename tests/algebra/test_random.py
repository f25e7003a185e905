"""Random queries over random changes: after each step, at every node, rows before + change = rows after.

`incremental_view.View.refresh` has the checks and the random changes, `random_queries` the queries.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, note, seed, settings
from hypothesis import strategies as st

from tautochrone.algebra.delta import Change, Differentiator, Rule
from tautochrone.algebra.nodes import JoinKind, Node, TopK
from tautochrone.algebra.rules import RULES

from .choices import ByteChoices
from .incremental_view import Step, View, random_step, random_tables, stateful_nodes, with_changes
from .random_queries import RandomQueries

pytestmark = pytest.mark.thorough

CASES = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
PLANS = st.binary(min_size=160, max_size=160)
DATA = st.binary(min_size=200, max_size=200)
SEEDS = st.integers(0, 2**16)
MAX_VIEW_ROWS = 400
"""Larger views find no other bugs, and products of five inputs take long."""


@pytest.fixture(scope="module", autouse=True)
def small_buffers() -> Iterator[None]:
    """A few rows must be enough to overflow and to exhaust the buffer of a `TopK`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopK, "buffer", property(lambda self: self.limit + self.offset + 1))
        yield


def query_from(plan: bytes) -> Node:
    choices = ByteChoices(plan)
    return RandomQueries(choices).query(1 + choices.below(8))


def refresh_and_check(plan: bytes, data: bytes, seed: int, rules: Mapping[type[Node], Rule] = RULES) -> View:
    """Three steps; now and then a state is missing, as after a change of the definition."""
    query, choices = query_from(plan), ByteChoices(data)
    note(plan_tree(query))
    view = View(query, random_tables(choices), rules)
    assume(view.rows.total() <= MAX_VIEW_ROWS)
    for _ in range(3):
        step = random_step(choices, view.tables)
        note(f"{view.tables}\n{step}")
        without = [node.number for node in stateful_nodes(query) if choices.chance(15)]
        view.refresh(step, without=without, seed=seed)
    return view


def plan_tree(node: Node, depth: int = 0) -> str:
    """A plan with its columns and expressions, printed when a case fails."""
    parts = []
    for name in (
        "table",
        "kind",
        "condition",
        "conditions",
        "expressions",
        "keys",
        "calls",
        "partition",
        "limit",
        "offset",
    ):
        value = getattr(node, name, None)
        items = value if isinstance(value, tuple) else (value,)
        texts = [getattr(item, "text", "") or str(item) for item in items if item is not None]
        parts.extend([f"{name}={', '.join(texts)}"] if texts else [])
    line = f"{'  ' * depth}{type(node).__name__} [{', '.join(node.columns)}] {'; '.join(parts)}"
    return "\n".join([line, *(plan_tree(child, depth + 1) for child in node.children)])


@settings(CASES, max_examples=400)
@given(PLANS, DATA, SEEDS)
def test_refreshes_equal_recomputation(plan: bytes, data: bytes, seed: int) -> None:
    refresh_and_check(plan, data, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(20))
def test_refreshes_equal_recomputation_in_100_000_cases(shard: int) -> None:
    @seed(shard)
    @settings(CASES, max_examples=5_000, database=None)
    @given(PLANS, DATA, SEEDS)
    def cases(plan: bytes, data: bytes, engine_seed: int) -> None:
        refresh_and_check(plan, data, engine_seed)

    cases()


@settings(CASES, max_examples=150)
@given(PLANS, DATA, SEEDS)
def test_one_refresh_equals_many_small_ones(plan: bytes, data: bytes, seed: int) -> None:
    query, choices = query_from(plan), ByteChoices(data)
    note(plan_tree(query))
    start = random_tables(choices)
    small, big = View(query, start), View(query, start)
    assume(small.rows.total() <= MAX_VIEW_ROWS)
    everything: Step = {}
    for _ in range(4):
        step = random_step(choices, small.tables)
        small.refresh(step, seed=seed)
        everything = {
            table: [*everything.get(table, []), *step.get(table, [])] for table in {*everything, *step}
        }
    big.refresh(everything, seed=seed)
    total: Counter[Any] = Counter()
    for change in small.changes:
        total.update(change)
    assert +total == +big.changes[-1]
    assert -total == -big.changes[-1]
    assert small.rows == big.rows


@settings(CASES, max_examples=100)
@given(PLANS, DATA, SEEDS)
def test_inverse_change_restores_the_view(plan: bytes, data: bytes, seed: int) -> None:
    query, choices = query_from(plan), ByteChoices(data)
    view = View(query, random_tables(choices))
    assume(view.rows.total() <= MAX_VIEW_ROWS)
    before = view.rows
    step = random_step(choices, view.tables)
    view.refresh(step, seed=seed)
    back = {table: [(row, -weight) for row, weight in change] for table, change in step.items()}
    assert with_changes(view.tables, back)
    view.refresh(back, seed=seed)
    assert view.rows == before


class CountingRule:
    """A rule that counts its changes by node, join kind and aggregate function."""

    def __init__(self, rule: Rule, counts: Counter[str]) -> None:
        self.rule, self.counts = rule, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def change(self, node: Any, context: Differentiator) -> Change:
        change = self.rule.change(node, context)
        if change and context.engine.materialize(change.plan).rows:
            self.counts[type(node).__name__] += 1
            if hasattr(node, "kind"):
                self.counts[node.kind] += 1
            for call in getattr(node, "calls", ()):
                self.counts[f"{call.function}{'' if call.exact else ', inexact'}"] += 1
        return change


def test_random_queries_cover_every_rule() -> None:
    """The tests above cover a rule only if it was applied and had a change."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    rules = {kind: CountingRule(rule, counts) for kind, rule in RULES.items()}
    generator = random.Random(23)
    for case in range(600):
        query, choices = query_from(generator.randbytes(160)), ByteChoices(generator.randbytes(200))
        view = View(query, random_tables(choices), rules)
        if view.rows.total() > MAX_VIEW_ROWS:
            continue
        context = view.refresh(random_step(choices, view.tables), seed=case)
        reasons.update(str(refresh.reason) for refresh in context.nodes)
    expected = {kind.__name__ for kind in RULES} | set(JoinKind)
    expected |= {"count", "sum", "avg", "min", "max", "other", "sum, inexact", "avg, inexact"}
    assert not {name: counts[name] for name in expected if counts[name] < 5}, counts
    for reason in ("the buffer was exhausted: read again", "groups read again: a delete removed their value"):
        assert reasons[reason] >= 5, reasons
