"""Tables that change under a query, and the check after each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tautochrone.algebra.delta import Bag, Change, Differentiator, Row, Rule
from tautochrone.algebra.nodes import WEIGHT, Aggregate, ColumnId, Constant, Node, TopK, walk
from tautochrone.algebra.rules import RULES
from tautochrone.algebra.rules.aggregate import aggregate_state
from tautochrone.algebra.rules.top_k import top_k_state
from tautochrone.testing.plan_evaluator import PlanEvaluator, Table
from tautochrone.testing.plan_evaluator_nodes import comparable, net_weights, row_counts

from .plans import TABLES
from .tape import Tape

Step = dict[str, list[tuple[tuple[Any, ...], int]]]
"""Per table its change: rows and weights."""

KEYS = (0, 1, 0, 1, None, 2)
VALUES = (1, 0, 1, 0, None, 2, 3)
NUMBERS = (0.1, 0.2, None, 0.7, 1e16)
"""None is negative, so sums keep nine digits; one is so large that it drowns the others."""


def random_row(tape: Tape) -> tuple[Any, ...]:
    return tape.choose(KEYS), tape.choose(VALUES), tape.choose(NUMBERS)


def random_tables(tape: Tape) -> dict[str, list[tuple[Any, ...]]]:
    return {table: [random_row(tape) for _ in range(tape.below(4) + tape.below(5))] for table in TABLES}


def random_step(tape: Tape, tables: Mapping[str, Table]) -> Step:
    """Inserts, deletes, updates, and rows that come and go within the step, in several tables at once."""
    step: Step = {}
    for table in TABLES:
        if not tape.chance(75):
            continue
        change: list[tuple[tuple[Any, ...], int]] = []
        for row in tape.some(tables[table], 0, 3):
            change.append((row, -1))
            if tape.chance(40):
                change.append(((row[0], tape.choose(VALUES), row[2]), 1))
        change.extend((random_row(tape), 1) for _ in range(tape.below(3)))
        if tape.chance(10):
            row = random_row(tape)
            change.extend([(row, 1), (row, -1)])
        if change:
            step[table] = change
    return step


def applied(tables: Mapping[str, Table], step: Step) -> dict[str, list[tuple[Any, ...]]]:
    found = {}
    for table, rows in tables.items():
        counts = Counter(rows)
        for row, weight in step.get(table, ()):
            counts[row] += weight
        assert min(counts.values(), default=0) >= 0
        found[table] = list(counts.elements())
    return found


@dataclass
class View:
    """A materialized view: its query, its rows, its states; refreshed by deltas only.

    Attributes:
        tables: its inputs.
        rows: what it holds.
        states: by number. An upsert log: a group that vanished may stay with a count of 0.
        changes: what each refresh did, consolidated.
    """

    query: Node
    tables: Mapping[str, Table]
    rules: Mapping[type[Node], Rule] = field(default_factory=lambda: RULES)
    rows: Counter[tuple[Any, ...]] = field(init=False)
    states: dict[int, list[dict[ColumnId, Any]]] = field(init=False)
    changes: list[Counter[tuple[Any, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.states = first_states(self.query, self.tables)
        engine = PlanEvaluator(before=self.tables, after=self.tables, rules=self.rules)
        self.rows = row_counts(engine.rows(self.query), self.query.columns)

    def refresh(self, step: Step, *, without: Sequence[int] = (), seed: int = 0) -> Differentiator:
        """Follow a change and hold everything against a full computation; `without` some states."""
        new = applied(self.tables, step)
        states = {number: state for number, state in self.states.items() if number not in without}
        engine = PlanEvaluator(
            before=self.tables, after=new, changes=step, states=states, rules=self.rules, seed=seed
        )
        at = self.differentiator(engine)
        change = at.materialized_change(self.query, consolidated=True)
        rows = engine.rows(change.plan) if change.plan else []
        before, after = (
            PlanEvaluator(before=t, after=t, rules=RULES, seed=seed + 1) for t in (self.tables, new)
        )
        self._apply(rows)
        assert self.rows == row_counts(after.rows(self.query), self.query.columns)
        for node in walk(self.query):
            _check_node(node, at, before, after)
        for node in stateful(self.query):
            fresh = fresh_state(node, after)
            if node.number in without:
                self.states[node.number] = fresh
            else:
                self._take_in(node, at)
                _check_state(node, self.states[node.number], fresh, after.rows(node.child))
        self.tables = new
        return at

    def differentiator(self, engine: PlanEvaluator) -> Differentiator:
        return Differentiator(engine, self.rules, frozenset(engine.states))

    def _apply(self, change: Bag) -> None:
        """Assertions of every refresh: weights of 1, no row with both signs, no delete of an absent row."""
        assert all(row[WEIGHT] in (1, -1) for row in change)
        plus, minus = ([row for row in change if row[WEIGHT] == sign] for sign in (1, -1))
        inserted, deleted = (row_counts(rows, self.query.columns) for rows in (plus, minus))
        assert not inserted & deleted
        assert deleted <= self.rows
        self.rows = self.rows - deleted + inserted
        self.changes.append(net_weights(change, self.query.columns))

    def _take_in(self, node: Aggregate | TopK, at: Differentiator) -> None:
        if node.number not in at.state_updates:
            return
        rows = at.engine.rows(at.state_update(node.number))  # type: ignore[attr-defined]
        self.states[node.number] = merged_state(node, self.states[node.number], rows)


def stateful(query: Node) -> list[Aggregate | TopK]:
    return [
        node
        for node in walk(query)
        if isinstance(node, TopK) or (isinstance(node, Aggregate) and node.is_mergeable)
    ]


def first_states(
    query: Node, tables: Mapping[str, Table], seed: int = 0
) -> dict[int, list[dict[ColumnId, Any]]]:
    """The states of a first build. Each is made from those below it, never from another computation of the
    same sums: in an inexact one the last bits would differ, and a row would not be found again."""
    states: dict[int, list[dict[ColumnId, Any]]] = {}
    for node in reversed(stateful(query)):
        engine = PlanEvaluator(before=tables, after=tables, rules=RULES, states=states, seed=seed)
        at = Differentiator(engine, RULES, frozenset(states))
        states = {**states, node.number: fresh_state(node, engine, at.rows_before(node.child))}
    return states


def fresh_state(
    node: Aggregate | TopK, engine: PlanEvaluator, below: Node | None = None
) -> list[dict[ColumnId, Any]]:
    """What a first build stores over the rows `below`; without them over those of the child's query."""
    columns = node.child.columns
    rows = [tuple(row[column] for column in columns) for row in engine.rows(below or node.child)]
    child = Constant(columns=columns, handle=rows)
    if isinstance(node, TopK):
        return engine.rows(top_k_state(node, child))
    return engine.rows(aggregate_state(node, child, Differentiator(engine, engine.rules)))


def merged_state(node: Aggregate | TopK, state: Bag, update: Bag) -> list[dict[ColumnId, Any]]:
    """The newest row of each group; of a `TopK` the update is the whole state."""
    if isinstance(node, TopK):
        return [dict(row) for row in update]
    newest = {_key(node, row): dict(row) for row in (*state, *update)}
    return list(newest.values())


def _key(node: Aggregate, row: Row) -> tuple[Any, ...]:
    return tuple(comparable(row[key]) for key in node.keys)


def _check_node(node: Node, at: Differentiator, before: PlanEvaluator, after: PlanEvaluator) -> None:
    """Old rows and change make new rows, at every node, whether read from a state or not."""
    engine: PlanEvaluator = at.engine  # type: ignore[assignment]
    change: Change = at.change(node)
    rows = engine.rows(change.plan) if change.plan else []
    old, new = row_counts(before.rows(node), node.columns), row_counts(after.rows(node), node.columns)
    what = type(node).__name__
    expected = Counter(new)
    expected.subtract(old)
    assert net_weights(rows, node.columns) == {row: n for row, n in expected.items() if n}, (
        f"change of {what}"
    )
    if change.insert_only:
        assert all(row[WEIGHT] == 1 for row in rows), f"{what} does not only grow"
    assert row_counts(engine.rows(at.rows_before(node)), node.columns) == old, f"old rows of {what}"
    assert row_counts(engine.rows(at.rows_after(node)), node.columns) == new, f"new rows of {what}"


def _check_state(node: Aggregate | TopK, state: Bag, fresh: Bag, rows: Bag) -> None:
    if isinstance(node, Aggregate):
        live, wanted = ([row for row in rows if row[node.count]] for rows in (state, fresh))
        assert len({_key(node, row) for row in state}) == len(state)
        assert row_counts(live, node.state_columns) == row_counts(wanted, node.state_columns), (
            "state of Aggregate"
        )
        return
    # After deletes a buffer may be shorter than a fresh one; what it says must hold.
    kept = sorted(state, key=node.order)
    first = sorted(rows, key=node.order)[: len(kept)]
    assert row_counts(kept, node.columns) == row_counts(first, node.columns), "state of Top"
    assert len(kept) >= min(node.limit + node.offset, len(rows))
    assert len({row[node.complete] for row in kept}) <= 1
    if kept[0][node.complete] if kept else node.limit + node.offset > 0:
        assert len(kept) == len(rows)
