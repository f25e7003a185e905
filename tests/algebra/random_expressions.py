"""Random scalar expressions over typed columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.support.plan_evaluator_nodes import comparable

from tautochrone.algebra.delta import Row
from tautochrone.algebra.nodes import ColumnId, Expression, Node

from .choices import ByteChoices

INT, FLOAT, FLAG, LIST = "int", "float", "flag", "list"


def order_of(columns: Sequence[ColumnId]) -> Callable[[Row], Any]:
    """A total order by all columns, NULLs first. Rows that compare equal are equal."""
    return lambda row: [
        (row[c] is not None, repr(v) if isinstance(v := comparable(row[c]), tuple) else v or 0)
        for c in columns
    ]


class RandomExpressions:
    """Columns and expressions over them.

    Attributes:
        types: of the columns.
    """

    def __init__(self, choices: ByteChoices) -> None:
        self.choices = choices
        self.types: dict[ColumnId, str] = {}

    def column(self, kind: str) -> ColumnId:
        column = ColumnId(f"{kind[0]}{len(self.types)}")
        self.types[column] = kind
        return column

    def columns_of_type(self, node: Node, *kinds: str) -> list[ColumnId]:
        return [column for column in node.columns if self.types[column] in kinds]

    def number(self, columns: Sequence[ColumnId]) -> Expression:
        """An integer or NULL."""
        ints = [column for column in columns if self.types[column] == INT]
        constant = self.choices.choose([1, 0, 2, None])
        if not ints or self.choices.chance(10):
            return Expression(lambda row: constant, frozenset(), f"{constant}")
        a, b = self.choices.choose(ints), self.choices.choose(ints)
        match self.choices.below(4):
            case 0:
                return Expression(lambda row: row[a], frozenset([a]), a, column=a)
            case 1:
                return Expression(
                    lambda row: constant if row[a] is None else row[a],
                    frozenset([a]),
                    f"coalesce({a}, {constant})",
                )
            case 2:
                return Expression(
                    lambda row: None if row[a] is None else row[a] % 2, frozenset([a]), f"{a} % 2"
                )
            case _:
                return Expression(
                    lambda row: None if row[a] is None or row[b] is None else row[a] + row[b],
                    frozenset([a, b]),
                    f"{a} + {b}",
                )

    def predicate(self, columns: Sequence[ColumnId], right_columns: Sequence[ColumnId] = ()) -> Expression:
        """True, false or NULL. With `right_columns` it compares a column of each side."""
        usable = [column for column in columns if self.types[column] in (INT, FLOAT)]
        second = [column for column in right_columns if self.types[column] in (INT, FLOAT)]
        if not usable:
            return Expression(lambda row: True, frozenset(), "true")
        a = self.choices.choose(usable)
        constant = 0.2512345 if self.types[a] == FLOAT else self.choices.below(3)
        if second:
            b = self.choices.choose(second)
            reads = frozenset([a, b])
            if INT not in (self.types[a], self.types[b]) or self.types[a] != self.types[b]:
                return Expression(
                    lambda row: _less(_rounded(row[a]), _rounded(row[b]), 0.0512345), reads, f"{a} < {b}"
                )
            match self.choices.below(3):
                case 0:
                    return Expression(lambda row: _less(row[a], row[b]), reads, f"{a} < {b}")
                case 1:  # NOT IN: unknown counts as equal
                    return Expression(
                        lambda row: row[a] is None or row[b] is None or row[a] == row[b],
                        reads,
                        f"({a} = {b}) is not false",
                    )
                case _:
                    return Expression(
                        lambda row: None if row[a] is None or row[b] is None else row[a] != row[b],
                        reads,
                        f"{a} <> {b}",
                    )
        reads = frozenset([a])
        match self.choices.below(4):
            case 0:
                return Expression(lambda row: row[a] is not None, reads, f"{a} is not null")
            case 1:
                return Expression(lambda row: _less(constant, row[a]), reads, f"{a} > {constant}")
            case 2:
                return Expression(lambda row: _less(row[a], constant + 1), reads, f"{a} < {constant + 1}")
            case _:
                return Expression(
                    lambda row: row[a] is None or row[a] > constant, reads, f"{a} is null or {a} > {constant}"
                )


def _rounded(value: Any) -> Any:
    """A number in its certain digits: two sums of the same floats differ in their last digits, which near
    1e16 are larger than any margin."""
    return value if value is None or value != value else comparable(value)


def _less(a: Any, b: Any, margin: float = 0) -> bool | None:
    return None if a is None or b is None else a + margin < b
