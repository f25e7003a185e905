"""Random queries over the small tables: any operator over any other, typed so that Spark accepts them.

Only queries with one right answer are written: whatever depends on an order names all columns in it, floats
are not added up, and rows that tie are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .small import COLUMNS

__all__ = ["Relation", "Writer"]

_TYPES = {"INT": "int", "BIGINT": "int", "STRING": "text", "DECIMAL(12,2)": "money", "DATE": "day"}


@dataclass(frozen=True, slots=True)
class Relation:
    """A query and its columns: (name, type)."""

    sql: str
    columns: tuple[tuple[str, str], ...]

    def of(self, *types: str) -> list[str]:
        """Names of the columns with one of the types; all without."""
        return [name for name, of in self.columns if not types or of in types]

    def type_of(self, column: str) -> str:
        return dict(self.columns)[column]


class Writer:
    """Writes queries; the same seed writes the same ones. Later ones may read the earlier as views."""

    def __init__(self, seed: int) -> None:
        self._dice = Random(seed)
        self._names = 0
        self._views: list[tuple[str, Relation]] = []

    def view(self, name: str, depth: int | None = None) -> str:
        """A query for the view `name`."""
        made = self._relation(self._dice.choice((1, 2, 2, 3, 3)) if depth is None else depth)
        self._views.append((name, made))
        return made.sql

    # -- trees -----------------------------------------------------------------------------------------

    def _relation(self, depth: int) -> Relation:
        if depth <= 0:
            return self._base()
        kinds: list[tuple[int, Callable[[int], Relation]]] = [
            (4, self._join),
            (3, self._aggregate),
            (2, self._subquery),
            (2, self._set),
            (2, self._window),
            (2, self._project),
            (1, self._top),
            (1, self._distinct),
            (1, self._groups),
            (1, self._scalar),
        ]
        chosen = self._dice.choices([kind for _, kind in kinds], [weight for weight, _ in kinds])[0]
        return chosen(depth)

    def _base(self) -> Relation:
        if self._views and self._dice.random() < 0.2:
            name, view = self._dice.choice(self._views)
            return self._named(f"FROM {name}", view)
        table = self._dice.choice(("a", "a", "b", "b", "c"))
        columns = tuple((name, _TYPES[of]) for name, of in COLUMNS[table].items() if of in _TYPES)
        kept = self._dice.sample(columns, self._dice.randint(2, min(4, len(columns))))
        if table != "c" and not any(name == "k" for name, _ in kept):
            kept.append(("k", "int"))
        where = f" WHERE {self._condition(Relation('', columns))}" if self._dice.random() < 0.25 else ""
        return self._named(f"FROM src.{table}{where}", Relation("", tuple(kept)))

    def _project(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        items, columns = [], []
        for name, of in child.columns:
            made = self._name()
            text = name
            if of == "int" and self._dice.random() < 0.4:
                other = self._dice.choice(child.of("int"))
                text = self._dice.choice(
                    (
                        f"coalesce({self._number(name)}, -1)",
                        f"CASE WHEN {name} > {other} THEN {other} ELSE 7 END",
                        f"CAST({name} % 4 AS INT)",
                    )
                )
            items.append(f"{text} AS {made}")
            columns.append((made, of))
        where = f" WHERE {self._condition(child)}" if self._dice.random() < 0.7 else ""
        return Relation(f"SELECT {', '.join(items)} FROM ({child.sql}) t{where}", tuple(columns))

    def _join(self, depth: int) -> Relation:
        left, right = self._relation(depth - 1), self._relation(depth - 2)
        kind = self._dice.choice(("", "", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"))
        on = [self._equal(left, right)]
        if self._dice.random() < 0.3 and (pair := self._pair(left, right)) is not None:
            on.append(f"{pair[0]} {self._dice.choice(('<', '>=', '<>'))} {pair[1]}")
        if self._dice.random() < 0.15 and (numbers := left.of("int")):
            on.append(f"l.{self._dice.choice(numbers)} < {self._one()}")
        columns = left.columns if kind.startswith("LEFT ") else (*left.columns, *right.columns)
        kept = self._kept(columns)
        text = f"FROM ({left.sql}) l {kind} JOIN ({right.sql}) r ON {' AND '.join(on)}"
        return self._named(text, Relation("", kept))

    def _aggregate(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        if self._dice.random() < 0.12:
            return self._over(child, [], "")
        keys = self._dice.sample(child.of(), self._dice.randint(1, min(2, len(child.columns))))
        return self._over(child, keys, f" GROUP BY {', '.join(keys)}")

    def _groups(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        keys = self._dice.sample(child.of(), min(2, len(child.columns)))
        return self._over(
            child, keys, f" GROUP BY {self._dice.choice(('ROLLUP', 'CUBE'))} ({', '.join(keys)})"
        )

    def _over(self, child: Relation, keys: list[str], group: str) -> Relation:
        items = [(key, child.type_of(key)) for key in keys]
        items += [self._call(child) for _ in range(self._dice.randint(1, 3))]
        named = [(text, self._name(), of) for text, of in items]
        having = ""
        if group and self._dice.random() < 0.25:
            having = f" HAVING count(*) > {self._dice.randint(1, 3)}"
        select = ", ".join(f"{text} AS {name}" for text, name, _ in named)
        columns = tuple((name, of) for _, name, of in named)
        return Relation(f"SELECT {select} FROM ({child.sql}) t{group}{having}", columns)

    def _call(self, child: Relation) -> tuple[str, str]:
        column = self._dice.choice(child.of())
        of = child.type_of(column)
        only = f" FILTER (WHERE {self._condition(child)})" if self._dice.random() < 0.2 else ""
        choices = [
            (f"count(*){only}", "int"),
            (f"count({column}){only}", "int"),
            (f"count(DISTINCT {column}){only}", "int"),
            (f"min({column}){only}", of),
            (f"max({column}){only}", of),
        ]
        if of in ("int", "money"):
            # Wide enough for sums of sums.
            wide = "BIGINT" if of == "int" else "DECIMAL(38,2)"
            summed = self._number(column) if of == "int" else column
            choices += [(f"CAST(sum({summed}){only} AS {wide})", of)] * 3
        if of == "int":
            choices += [
                (f"{name}({column}){only}", "float") for name in ("avg", "median", "stddev", "var_pop")
            ]
            choices.append((f"bit_or({column}){only}", of))
        if of == "text":
            choices.append((f"array_join(sort_array(collect_list({column})), '')", "text"))
        return self._dice.choice(choices)

    def _window(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        partition = self._dice.choice(child.of())
        over = f"(PARTITION BY {partition} ORDER BY {', '.join(child.of())})"
        number = self._number(self._dice.choice(child.of("int") or ["1"]))
        text = self._dice.choice(
            (
                f"row_number() OVER {over}",
                f"rank() OVER (PARTITION BY {partition} ORDER BY {number})",
                f"CAST(sum({number}) OVER (PARTITION BY {partition}) AS BIGINT)",
                f"CAST(sum({number}) OVER {over} AS BIGINT)",
                f"lag({number}) OVER {over}",
                f"count({number}) OVER (PARTITION BY {partition} ORDER BY {', '.join(child.of())} "
                "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
            )
        )
        made = self._name()
        columns = (*child.columns, (made, "int"))
        sql = f"SELECT *, {text} AS {made} FROM ({child.sql}) t"
        if self._dice.random() < 0.4:
            sql = f"SELECT * FROM ({sql}) w WHERE {made} <= 3"
        return Relation(sql, columns)

    def _number(self, column: str) -> str:
        """An expression over an INT column; now and then with a scalar subquery."""
        return f"{column} + {self._one()}" if self._dice.random() < 0.12 else column

    def _one(self) -> str:
        """A scalar subquery that gives a number."""
        other = self._base()
        numbers = other.of("int")
        if not numbers:
            return "0"
        return f"(SELECT coalesce(max({self._dice.choice(numbers)}), 0) FROM ({other.sql}) one)"

    def _top(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        order = [f"{name}{self._dice.choice(('', ' DESC', ' NULLS LAST'))}" for name in child.of()]
        self._dice.shuffle(order)
        offset = f" OFFSET {self._dice.randint(1, 4)}" if self._dice.random() < 0.3 else ""
        limit = self._dice.randint(1, 9)
        sql = f"SELECT * FROM ({child.sql}) t ORDER BY {', '.join(order)} LIMIT {limit}{offset}"
        return Relation(sql, child.columns)

    def _distinct(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        kept = tuple(self._dice.sample(child.columns, self._dice.randint(1, len(child.columns))))
        return self._named(f"FROM ({child.sql}) t", Relation("", kept), "DISTINCT ")

    def _set(self, depth: int) -> Relation:
        left, right = self._relation(depth - 1), self._relation(depth - 1)
        pairs = [(mine, other) for mine, of in left.columns for other in right.of(of)]
        if not pairs:
            return left
        chosen = self._dice.sample(pairs, min(2, len(pairs)))
        columns = tuple((self._name(), left.type_of(mine)) for mine, _ in chosen)
        names = [name for name, _ in columns]
        mine = ", ".join(f"{pair[0]} AS {name}" for pair, name in zip(chosen, names, strict=True))
        other = ", ".join(f"{pair[1]} AS {name}" for pair, name in zip(chosen, names, strict=True))
        word = self._dice.choice(("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL"))
        sql = f"SELECT {mine} FROM ({left.sql}) l {word} SELECT {other} FROM ({right.sql}) r"
        return Relation(f"SELECT * FROM ({sql}) s", columns)

    def _subquery(self, depth: int) -> Relation:
        child, other = self._relation(depth - 1), self._relation(depth - 2)
        negated = self._dice.choice(("", "NOT "))
        pair = self._pair(child, other)
        if pair is not None and self._dice.random() < 0.5:
            condition = f"{pair[0]} {negated}IN (SELECT {pair[1]} FROM ({other.sql}) u)"
        else:
            condition = f"{negated}EXISTS (SELECT 1 FROM ({other.sql}) u WHERE {self._equal(child, other)})"
        if self._dice.random() < 0.25:
            condition = f"{condition} OR {self._condition(child)}"
        return Relation(f"SELECT * FROM ({child.sql}) t WHERE {condition}", child.columns)

    def _scalar(self, depth: int) -> Relation:
        child, other = self._relation(depth - 1), self._relation(depth - 2)
        number = self._dice.choice(other.of("int") or ["1"])
        made = self._name()
        where = ""
        if self._dice.random() < 0.5:
            where = f" WHERE {self._equal(child, other)}"
        call = self._dice.choice((f"CAST(sum({number}) AS BIGINT)", f"max({number})", "count(*)"))
        sql = f"SELECT *, (SELECT {call} FROM ({other.sql}) u{where}) AS {made} FROM ({child.sql}) t"
        return Relation(sql, (*child.columns, (made, "int")))

    # -- pieces ----------------------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def _named(self, rest: str, child: Relation, how: str = "") -> Relation:
        columns = tuple((self._name(), of) for _, of in child.columns)
        items = [f"{old} AS {new}" for (old, _), (new, _) in zip(child.columns, columns, strict=True)]
        return Relation(f"SELECT {how}{', '.join(items)} {rest}", columns)

    def _kept(self, columns: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        most = min(6, len(columns))
        return tuple(self._dice.sample(columns, self._dice.randint(min(2, most), most)))

    def _pair(self, left: Relation, right: Relation) -> tuple[str, str] | None:
        pairs = [(mine, other) for mine, of in left.columns if of != "float" for other in right.of(of)]
        return self._dice.choice(pairs) if pairs else None

    def _equal(self, left: Relation, right: Relation) -> str:
        pair = self._pair(left, right)
        if pair is None:
            return "1 = 1"
        return f"{pair[0]} {self._dice.choice(('=', '=', '=', '<=>'))} {pair[1]}"

    def _condition(self, child: Relation) -> str:
        column = self._dice.choice(child.of())
        match child.type_of(column):
            case "int":
                text = f"{column} {self._dice.choice(('>', '<=', '<>'))} {self._dice.randint(-2, 10)}"
            case "text":
                text = f"{column} {self._dice.choice(('=', '<>', '<'))} 'q'"
            case "money":
                text = f"{column} > {self._dice.randint(-1, 5)}.50"
            case "day":
                text = f"{column} >= DATE '2024-02-{self._dice.randint(10, 28)}'"
            case _:
                text = f"{column} IS NOT NULL"
        return f"({text} OR {column} IS NULL)" if self._dice.random() < 0.2 else text
