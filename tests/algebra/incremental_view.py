"""A view that is refreshed by deltas while its tables change at random, and the checks after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.plan_evaluator import PlanEvaluator, Table
from tests.support.plan_evaluator_nodes import comparable, net_weights, row_counts

from tautochrone.algebra.delta import Bag, Change, Differentiator, Row, Rule
from tautochrone.algebra.nodes import (
    WEIGHT,
    Aggregate,
    ColumnId,
    Constant,
    Node,
    Stateful,
    TopK,
    stateful_nodes,
    walk,
)
from tautochrone.algebra.rules import RULES

from .choices import ByteChoices
from .random_queries import TABLES

Step = dict[str, list[tuple[tuple[Any, ...], int]]]
"""The change of each table: rows and weights."""
StateRows = list[dict[ColumnId, Any]]

KEYS = (0, 1, 0, 1, None, 2)
VALUES = (1, 0, 1, 0, None, 2, 3)
NUMBERS = (0.1, 0.2, None, 0.7, 1e16)
"""None is negative, so that sums keep nine digits; added to 1e16 the others are lost."""


# -- random tables and changes ---------------------------------------------------------------------------


def random_row(choices: ByteChoices) -> tuple[Any, ...]:
    return choices.choose(KEYS), choices.choose(VALUES), choices.choose(NUMBERS)


def random_tables(choices: ByteChoices) -> dict[str, list[tuple[Any, ...]]]:
    return {
        table: [random_row(choices) for _ in range(choices.below(4) + choices.below(5))] for table in TABLES
    }


def random_step(choices: ByteChoices, tables: Mapping[str, Table]) -> Step:
    """Inserts, deletes, updates, and rows that are inserted and deleted in one step, in several tables."""
    step: Step = {}
    for table in TABLES:
        if not choices.chance(75):
            continue
        change: list[tuple[tuple[Any, ...], int]] = []
        for row in choices.sample(tables[table], 0, 3):
            change.append((row, -1))
            if choices.chance(40):
                change.append(((row[0], choices.choose(VALUES), row[2]), 1))
        change.extend((random_row(choices), 1) for _ in range(choices.below(3)))
        if choices.chance(10):
            row = random_row(choices)
            change.extend([(row, 1), (row, -1)])
        if change:
            step[table] = change
    return step


def with_changes(tables: Mapping[str, Table], step: Step) -> dict[str, list[tuple[Any, ...]]]:
    """The tables after a step."""
    after = {}
    for table, rows in tables.items():
        counts = Counter(rows)
        for row, weight in step.get(table, ()):
            counts[row] += weight
        assert min(counts.values(), default=0) >= 0
        after[table] = list(counts.elements())
    return after


# -- the view --------------------------------------------------------------------------------------------


@dataclass
class View:
    """A materialized view that is refreshed by deltas only.

    Attributes:
        tables: its inputs.
        rows: its rows.
        states: by the number of their node. Each is an upsert log: a group that vanished may stay in it with
            a count of 0.
        changes: of each refresh, as net weights.
    """

    query: Node
    tables: Mapping[str, Table]
    rules: Mapping[type[Node], Rule] = field(default_factory=lambda: RULES)
    rows: Counter[tuple[Any, ...]] = field(init=False)
    states: dict[int, StateRows] = field(init=False)
    changes: list[Counter[tuple[Any, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = initial_states(self.query, self.tables)
        engine = PlanEvaluator(before=self.tables, after=self.tables, rules=self.rules)
        self.rows = row_counts(engine.rows(self.query), self.query.columns)

    def refresh(self, step: Step, *, without: Sequence[int] = (), seed: int = 0) -> Differentiator:
        """Refresh after a step, and compare every node and state with a full computation.

        Args:
            step: the changes of the tables.
            without: numbers of states that are missing, as after a change of the definition.
            seed: of the engine.
        """
        tables_after = with_changes(self.tables, step)
        states = {number: state for number, state in self.states.items() if number not in without}
        engine = PlanEvaluator(
            before=self.tables,
            after=tables_after,
            changes=step,
            states=states,
            rules=self.rules,
            seed=seed,
        )
        context = self.differentiator(engine)
        change = context.materialized_change(self.query, consolidated=True)
        self._apply(engine.rows(change.plan) if change.plan else [])
        before, after = (
            PlanEvaluator(before=tables, after=tables, rules=RULES, seed=seed + 1)
            for tables in (self.tables, tables_after)
        )
        assert self.rows == row_counts(after.rows(self.query), self.query.columns)
        for node in walk(self.query):
            _check_node(node, context, before, after)
        for node in stateful_nodes(self.query):
            fresh = initial_state(node, after)
            if node.number in without:
                self.states[node.number] = fresh
            else:
                self._update_state(node, context)
                _check_state(node, self.states[node.number], fresh, after.rows(node.child))
        self.tables = tables_after
        return context

    def differentiator(self, engine: PlanEvaluator) -> Differentiator:
        return Differentiator(engine, self.rules, frozenset(engine.states))

    def _apply(self, change: Bag) -> None:
        """Each refresh: weights are +1 or -1, no row has both, and no row is deleted that is not there."""
        assert all(row[WEIGHT] in (1, -1) for row in change)
        inserted, deleted = (
            row_counts([row for row in change if row[WEIGHT] == sign], self.query.columns) for sign in (1, -1)
        )
        assert not inserted & deleted
        assert deleted <= self.rows
        self.rows = self.rows - deleted + inserted
        self.changes.append(net_weights(change, self.query.columns))

    def _update_state(self, node: Stateful, context: Differentiator) -> None:
        if node.number not in context.state_updates:
            return
        update = context.engine.rows(context.state_update(node.number))  # type: ignore[attr-defined]
        self.states[node.number] = updated_state(node, self.states[node.number], update)


# -- states ----------------------------------------------------------------------------------------------


def initial_states(query: Node, tables: Mapping[str, Table], seed: int = 0) -> dict[int, StateRows]:
    """The states of a first build. Each is computed from the states below it: computed once more, an inexact
    sum would differ in its last bits, and rows would not be found again."""
    states: dict[int, StateRows] = {}
    for node in reversed(stateful_nodes(query)):
        engine = PlanEvaluator(before=tables, after=tables, rules=RULES, states=states, seed=seed)
        context = Differentiator(engine, RULES, frozenset(states))
        states = {**states, node.number: initial_state(node, engine, context.rows_before(node.child))}
    return states


def initial_state(node: Stateful, engine: PlanEvaluator, child: Node | None = None) -> StateRows:
    """What a first build stores for a node, over the rows of `child` or else of the node's own child."""
    columns = node.child.columns
    rows = [tuple(row[column] for column in columns) for row in engine.rows(child or node.child)]
    constant = Constant(columns=columns, handle=rows)
    return engine.rows(Differentiator(engine, engine.rules).first_state(node.over(constant)))


def updated_state(node: Stateful, state: Bag, update: Bag) -> StateRows:
    """The newest row of each group; for a `TopK` the update is the whole state."""
    if isinstance(node, TopK):
        return [dict(row) for row in update]
    newest = {_key(node, row): dict(row) for row in (*state, *update)}
    return list(newest.values())


def _key(node: Stateful, row: Row) -> tuple[Any, ...]:
    return tuple(comparable(row[key]) for key in node.state_keys)


# -- checks ----------------------------------------------------------------------------------------------


def _check_node(node: Node, context: Differentiator, before: PlanEvaluator, after: PlanEvaluator) -> None:
    """Rows before + change = rows after, and both sides are right, whether read from a state or not."""
    engine: PlanEvaluator = context.engine  # type: ignore[assignment]
    change: Change = context.change(node)
    rows = engine.rows(change.plan) if change.plan else []
    old, new = row_counts(before.rows(node), node.columns), row_counts(after.rows(node), node.columns)
    name = type(node).__name__
    expected = Counter(new)
    expected.subtract(old)
    weights = {row: weight for row, weight in expected.items() if weight}
    assert net_weights(rows, node.columns) == weights, f"change of {name}"
    if change.insert_only:
        assert all(row[WEIGHT] == 1 for row in rows), f"{name} is not insert-only"
    assert row_counts(engine.rows(context.rows_before(node)), node.columns) == old, f"{name} before"
    assert row_counts(engine.rows(context.rows_after(node)), node.columns) == new, f"{name} after"


def _check_state(node: Stateful, state: Bag, fresh: Bag, child_rows: Bag) -> None:
    """An updated state equals a fresh one."""
    if isinstance(node, Aggregate):
        live, expected = ([row for row in rows if row[node.count]] for rows in (state, fresh))
        assert len({_key(node, row) for row in state}) == len(state)
        counts = row_counts(live, node.state_columns)
        assert counts == row_counts(expected, node.state_columns), "state of Aggregate"
        return
    # After deletes a buffer may be shorter than a fresh one. Its rows must still be the first ones, enough
    # for the result, and what it says about its completeness must be true.
    buffer = sorted(state, key=node.order)
    first = sorted(child_rows, key=node.order)[: len(buffer)]
    assert row_counts(buffer, node.columns) == row_counts(first, node.columns), "state of TopK"
    assert len(buffer) >= min(node.limit + node.offset, len(child_rows))
    assert len({row[node.complete] for row in buffer}) <= 1
    if buffer[0][node.complete] if buffer else node.limit + node.offset > 0:
        assert len(buffer) == len(child_rows)
