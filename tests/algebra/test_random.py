"""Random queries follow random changes: after each step every node's old rows and change make its new rows.

What is checked, and where: `world.View.refresh`. What queries and changes there are: `plans`, `world`.
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

from .plans import Queries
from .tape import Tape
from .world import Step, View, applied, random_step, random_tables, stateful

CASES = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
PLANS = st.binary(min_size=160, max_size=160)
DATA = st.binary(min_size=200, max_size=200)
SEEDS = st.integers(0, 2**16)
LARGEST = 400
"""Rows of a view: nothing new comes of more, and products of five inputs take long."""


@pytest.fixture(scope="module", autouse=True)
def small_buffers() -> Iterator[None]:
    """A few rows must be enough to overflow and to use up what a `TopK` keeps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TopK, "buffer", property(lambda self: self.limit + self.offset + 1))
        yield


def build(plan: bytes) -> Node:
    tape = Tape(plan)
    return Queries(tape).query(1 + tape.below(8))


def follow(plan: bytes, data: bytes, seed: int, rules: Mapping[type[Node], Rule] = RULES) -> View:
    """Three steps; now and then a state is missing, as after a change of the definition."""
    query, tape = build(plan), Tape(data)
    note(shown(query))
    view = View(query, random_tables(tape), rules)
    assume(view.rows.total() <= LARGEST)
    for _ in range(3):
        step = random_step(tape, view.tables)
        note(f"{view.tables}\n{step}")
        without = [node.number for node in stateful(query) if tape.chance(15)]
        view.refresh(step, without=without, seed=seed)
    return view


def shown(node: Node, depth: int = 0) -> str:
    """A plan for people, when a case failed."""
    words = []
    for name in (
        "table",
        "kind",
        "condition",
        "expressions",
        "keys",
        "calls",
        "partition",
        "limit",
        "offset",
    ):
        value = getattr(node, name, None)
        several = value if isinstance(value, tuple) else (value,)
        texts = [getattr(each, "text", "") or str(each) for each in several if each is not None]
        words.extend([f"{name}={', '.join(texts)}"] if texts else [])
    line = f"{'  ' * depth}{type(node).__name__} [{', '.join(node.columns)}] {'; '.join(words)}"
    return "\n".join([line, *(shown(child, depth + 1) for child in node.children)])


@settings(CASES, max_examples=2_000)
@given(PLANS, DATA, SEEDS)
def test_a_view_follows_its_inputs_step_by_step(plan: bytes, data: bytes, seed: int) -> None:
    follow(plan, data, seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(20))
def test_a_view_follows_its_inputs_in_100_000_cases(shard: int) -> None:
    @seed(shard)
    @settings(CASES, max_examples=5_000, database=None)
    @given(PLANS, DATA, SEEDS)
    def cases(plan: bytes, data: bytes, engine_seed: int) -> None:
        follow(plan, data, engine_seed)

    cases()


@settings(CASES, max_examples=300)
@given(PLANS, DATA, SEEDS)
def test_one_big_step_is_many_small_steps(plan: bytes, data: bytes, seed: int) -> None:
    query, tape = build(plan), Tape(data)
    note(shown(query))
    start = random_tables(tape)
    small, big = View(query, start), View(query, start)
    assume(small.rows.total() <= LARGEST)
    everything: Step = {}
    for _ in range(4):
        step = random_step(tape, small.tables)
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
def test_a_step_and_its_inverse_leave_nothing(plan: bytes, data: bytes, seed: int) -> None:
    query, tape = build(plan), Tape(data)
    view = View(query, random_tables(tape))
    assume(view.rows.total() <= LARGEST)
    before = view.rows
    step = random_step(tape, view.tables)
    view.refresh(step, seed=seed)
    back = {table: [(row, -weight) for row, weight in change] for table, change in step.items()}
    assert applied(view.tables, back)
    view.refresh(back, seed=seed)
    assert view.rows == before


class Counting:
    """A rule that counts how often it gave a change, and of what."""

    def __init__(self, rule: Rule, met: Counter[str]) -> None:
        self.rule, self.met = rule, met

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    def change(self, node: Any, at: Differentiator) -> Change:
        found = self.rule.change(node, at)
        if found and at.engine.materialize(found.plan).rows:
            self.met[type(node).__name__] += 1
            if hasattr(node, "kind"):
                self.met[node.kind] += 1
            for call in getattr(node, "calls", ()):
                self.met[f"{call.function}{'' if call.exact else ', inexact'}"] += 1
        return found


def test_random_queries_meet_every_rule() -> None:
    """The proof above is one of every rule only if every rule was asked, and had something to say."""
    met: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    rules = {kind: Counting(rule, met) for kind, rule in RULES.items()}
    dice = random.Random(23)
    for case in range(600):
        query, tape = build(dice.randbytes(160)), Tape(dice.randbytes(200))
        view = View(query, random_tables(tape), rules)
        if view.rows.total() > LARGEST:
            continue
        at = view.refresh(random_step(tape, view.tables), seed=case)
        reasons.update(refresh.reason for refresh in at.nodes)
    expected = {kind.__name__ for kind in RULES} | set(JoinKind)
    expected |= {"count", "sum", "avg", "min", "max", "other", "sum, inexact", "avg, inexact"}
    assert not {what: met[what] for what in expected if met[what] < 5}, met
    for words in ("the buffer was used up: read again", "groups looked up again: a value that counted went"):
        assert reasons[words] >= 5, reasons
