"""Random queries over the small tables: any operator over any other, typed so that Spark accepts them.

Each query has one correct result: orders name all columns, floats are not summed, and tied rows are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from .small_tables import COLUMNS

__all__ = ["QueryWriter", "Relation"]

_TYPES = {"INT": "int", "BIGINT": "int", "STRING": "text", "DECIMAL(12,2)": "money", "DATE": "day"}


@dataclass(frozen=True, slots=True)
class Relation:
    """A query and its columns: (name, type)."""

    sql: str
    columns: tuple[tuple[str, str], ...]

    def of(self, *types: str) -> list[str]:
        """Names of the columns with one of the types; of all columns without types."""
        return [name for name, column_type in self.columns if not types or column_type in types]

    def type_of(self, column: str) -> str:
        return dict(self.columns)[column]


class QueryWriter:
    """Writes queries, the same ones for the same seed. Later ones may read earlier ones as views."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._names = 0
        self._views: list[tuple[str, Relation]] = []

    def view(self, name: str, depth: int | None = None) -> str:
        """A query for the view `name`."""
        relation = self._relation(self._random.choice((1, 2, 2, 3, 3)) if depth is None else depth)
        self._views.append((name, relation))
        return relation.sql

    # -- trees -----------------------------------------------------------------------------------------

    def _relation(self, depth: int) -> Relation:
        if depth <= 0:
            return self._base()
        operators: list[tuple[int, Callable[[int], Relation]]] = [
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
        weights = [weight for weight, _ in operators]
        operator = self._random.choices([operator for _, operator in operators], weights)[0]
        return operator(depth)

    def _base(self) -> Relation:
        if self._views and self._random.random() < 0.2:
            name, view = self._random.choice(self._views)
            return self._named(f"FROM {name}", view)
        table = self._random.choice(("a", "a", "b", "b", "c"))
        columns = tuple((name, _TYPES[sql]) for name, sql in COLUMNS[table].items() if sql in _TYPES)
        selected = self._random.sample(columns, self._random.randint(2, min(4, len(columns))))
        if table != "c" and not any(name == "k" for name, _ in selected):
            selected.append(("k", "int"))
        where = f" WHERE {self._condition(Relation('', columns))}" if self._random.random() < 0.25 else ""
        return self._named(f"FROM src.{table}{where}", Relation("", tuple(selected)))

    def _project(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        items, columns = [], []
        for name, column_type in child.columns:
            alias = self._name()
            text = name
            if column_type == "int" and self._random.random() < 0.4:
                threshold = self._random.choice(child.of("int"))
                text = self._random.choice(
                    (
                        f"coalesce({self._number(name)}, -1)",
                        f"CASE WHEN {name} > {threshold} THEN {threshold} ELSE 7 END",
                        f"CAST({name} % 4 AS INT)",
                    )
                )
            items.append(f"{text} AS {alias}")
            columns.append((alias, column_type))
        where = f" WHERE {self._condition(child)}" if self._random.random() < 0.7 else ""
        return Relation(f"SELECT {', '.join(items)} FROM ({child.sql}) t{where}", tuple(columns))

    def _join(self, depth: int) -> Relation:
        left, right = self._relation(depth - 1), self._relation(depth - 2)
        kind = self._random.choice(("", "", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"))
        on = [self._equal(left, right)]
        if self._random.random() < 0.3 and (pair := self._pair(left, right)) is not None:
            on.append(f"{pair[0]} {self._random.choice(('<', '>=', '<>'))} {pair[1]}")
        if self._random.random() < 0.15 and (numbers := left.of("int")):
            on.append(f"l.{self._random.choice(numbers)} < {self._scalar_subquery()}")
        columns = left.columns if kind.startswith("LEFT ") else (*left.columns, *right.columns)
        selected = self._selected(columns)
        text = f"FROM ({left.sql}) l {kind} JOIN ({right.sql}) r ON {' AND '.join(on)}"
        return self._named(text, Relation("", selected))

    def _aggregate(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        if self._random.random() < 0.12:
            return self._aggregated(child, [], "")
        keys = self._random.sample(child.of(), self._random.randint(1, min(2, len(child.columns))))
        return self._aggregated(child, keys, f" GROUP BY {', '.join(keys)}")

    def _groups(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        keys = self._random.sample(child.of(), min(2, len(child.columns)))
        return self._aggregated(
            child, keys, f" GROUP BY {self._random.choice(('ROLLUP', 'CUBE'))} ({', '.join(keys)})"
        )

    def _aggregated(self, child: Relation, keys: list[str], group: str) -> Relation:
        items = [(key, child.type_of(key)) for key in keys]
        items += [self._call(child) for _ in range(self._random.randint(1, 3))]
        named = [(text, self._name(), column_type) for text, column_type in items]
        having = ""
        if group and self._random.random() < 0.25:
            having = f" HAVING count(*) > {self._random.randint(1, 3)}"
        select = ", ".join(f"{text} AS {name}" for text, name, _ in named)
        columns = tuple((name, column_type) for _, name, column_type in named)
        return Relation(f"SELECT {select} FROM ({child.sql}) t{group}{having}", columns)

    def _call(self, child: Relation) -> tuple[str, str]:
        column = self._random.choice(child.of())
        column_type = child.type_of(column)
        condition = f" FILTER (WHERE {self._condition(child)})" if self._random.random() < 0.2 else ""
        choices = [
            (f"count(*){condition}", "int"),
            (f"count({column}){condition}", "int"),
            (f"count(DISTINCT {column}){condition}", "int"),
            (f"min({column}){condition}", column_type),
            (f"max({column}){condition}", column_type),
        ]
        if column_type in ("int", "money"):
            # Wide enough for sums of sums.
            wide = "BIGINT" if column_type == "int" else "DECIMAL(38,2)"
            summed = self._number(column) if column_type == "int" else column
            choices += [(f"CAST(sum({summed}){condition} AS {wide})", column_type)] * 3
        if column_type == "int":
            choices += [
                (f"{name}({column}){condition}", "float") for name in ("avg", "median", "stddev", "var_pop")
            ]
            choices.append((f"bit_or({column}){condition}", column_type))
        if column_type == "text":
            choices.append((f"array_join(sort_array(collect_list({column})), '')", "text"))
        return self._random.choice(choices)

    def _window(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        partition = self._random.choice(child.of())
        over = f"(PARTITION BY {partition} ORDER BY {', '.join(child.of())})"
        number = self._number(self._random.choice(child.of("int") or ["1"]))
        text = self._random.choice(
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
        alias = self._name()
        columns = (*child.columns, (alias, "int"))
        sql = f"SELECT *, {text} AS {alias} FROM ({child.sql}) t"
        if self._random.random() < 0.4:
            sql = f"SELECT * FROM ({sql}) w WHERE {alias} <= 3"
        return Relation(sql, columns)

    def _number(self, column: str) -> str:
        """An expression over an INT column; now and then with a scalar subquery."""
        return f"{column} + {self._scalar_subquery()}" if self._random.random() < 0.12 else column

    def _scalar_subquery(self) -> str:
        """A scalar subquery that gives a number."""
        source = self._base()
        numbers = source.of("int")
        if not numbers:
            return "0"
        return f"(SELECT coalesce(max({self._random.choice(numbers)}), 0) FROM ({source.sql}) one)"

    def _top(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        order = [f"{name}{self._random.choice(('', ' DESC', ' NULLS LAST'))}" for name in child.of()]
        self._random.shuffle(order)
        offset = f" OFFSET {self._random.randint(1, 4)}" if self._random.random() < 0.3 else ""
        limit = self._random.randint(1, 9)
        sql = f"SELECT * FROM ({child.sql}) t ORDER BY {', '.join(order)} LIMIT {limit}{offset}"
        return Relation(sql, child.columns)

    def _distinct(self, depth: int) -> Relation:
        child = self._relation(depth - 1)
        selected = tuple(self._random.sample(child.columns, self._random.randint(1, len(child.columns))))
        return self._named(f"FROM ({child.sql}) t", Relation("", selected), "DISTINCT ")

    def _set(self, depth: int) -> Relation:
        left, right = self._relation(depth - 1), self._relation(depth - 1)
        pairs = [(a, b) for a, column_type in left.columns for b in right.of(column_type)]
        if not pairs:
            return left
        selected_pairs = self._random.sample(pairs, min(2, len(pairs)))
        columns = tuple((self._name(), left.type_of(a)) for a, _ in selected_pairs)
        names = [name for name, _ in columns]
        left_items = ", ".join(
            f"{pair[0]} AS {name}" for pair, name in zip(selected_pairs, names, strict=True)
        )
        right_items = ", ".join(
            f"{pair[1]} AS {name}" for pair, name in zip(selected_pairs, names, strict=True)
        )
        operator = self._random.choice(
            ("UNION ALL", "UNION", "EXCEPT", "EXCEPT ALL", "INTERSECT", "INTERSECT ALL")
        )
        sql = f"SELECT {left_items} FROM ({left.sql}) l {operator} SELECT {right_items} FROM ({right.sql}) r"
        return Relation(f"SELECT * FROM ({sql}) s", columns)

    def _subquery(self, depth: int) -> Relation:
        child, inner = self._relation(depth - 1), self._relation(depth - 2)
        negated = self._random.choice(("", "NOT "))
        pair = self._pair(child, inner)
        if pair is not None and self._random.random() < 0.5:
            condition = f"{pair[0]} {negated}IN (SELECT {pair[1]} FROM ({inner.sql}) u)"
        else:
            condition = f"{negated}EXISTS (SELECT 1 FROM ({inner.sql}) u WHERE {self._equal(child, inner)})"
        if self._random.random() < 0.25:
            condition = f"{condition} OR {self._condition(child)}"
        return Relation(f"SELECT * FROM ({child.sql}) t WHERE {condition}", child.columns)

    def _scalar(self, depth: int) -> Relation:
        child, inner = self._relation(depth - 1), self._relation(depth - 2)
        number = self._random.choice(inner.of("int") or ["1"])
        alias = self._name()
        where = ""
        if self._random.random() < 0.5:
            where = f" WHERE {self._equal(child, inner)}"
        call = self._random.choice((f"CAST(sum({number}) AS BIGINT)", f"max({number})", "count(*)"))
        sql = f"SELECT *, (SELECT {call} FROM ({inner.sql}) u{where}) AS {alias} FROM ({child.sql}) t"
        return Relation(sql, (*child.columns, (alias, "int")))

    # -- parts -----------------------------------------------------------------------------------------

    def _name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def _named(self, rest: str, child: Relation, how: str = "") -> Relation:
        columns = tuple((self._name(), column_type) for _, column_type in child.columns)
        items = [f"{old} AS {new}" for (old, _), (new, _) in zip(child.columns, columns, strict=True)]
        return Relation(f"SELECT {how}{', '.join(items)} {rest}", columns)

    def _selected(self, columns: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        largest = min(6, len(columns))
        return tuple(self._random.sample(columns, self._random.randint(min(2, largest), largest)))

    def _pair(self, left: Relation, right: Relation) -> tuple[str, str] | None:
        pairs = [
            (a, b) for a, column_type in left.columns if column_type != "float" for b in right.of(column_type)
        ]
        return self._random.choice(pairs) if pairs else None

    def _equal(self, left: Relation, right: Relation) -> str:
        pair = self._pair(left, right)
        if pair is None:
            return "1 = 1"
        return f"{pair[0]} {self._random.choice(('=', '=', '=', '<=>'))} {pair[1]}"

    def _condition(self, child: Relation) -> str:
        column = self._random.choice(child.of())
        match child.type_of(column):
            case "int":
                text = f"{column} {self._random.choice(('>', '<=', '<>'))} {self._random.randint(-2, 10)}"
            case "text":
                text = f"{column} {self._random.choice(('=', '<>', '<'))} 'q'"
            case "money":
                text = f"{column} > {self._random.randint(-1, 5)}.50"
            case "day":
                text = f"{column} >= DATE '2024-02-{self._random.randint(10, 28)}'"
            case _:
                text = f"{column} IS NOT NULL"
        return f"({text} OR {column} IS NULL)" if self._random.random() < 0.2 else text
