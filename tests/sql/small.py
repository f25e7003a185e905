"""Three small tables full of trouble (NULLs, duplicates, keys that match often or never), and their changes.

A change is SQL of somebody else: some rows go, some get other values, some come, some come twice, and
sometimes what went comes back. Which ones depends on the seed alone.
"""

from __future__ import annotations

from random import Random

from .stand import Stand

__all__ = ["COLUMNS", "SmallTables"]

COLUMNS: dict[str, dict[str, str]] = {
    "a": {"id": "INT", "k": "INT", "g": "STRING", "x": "INT", "d": "DECIMAL(12,2)", "day": "DATE"},
    "b": {"id": "INT", "k": "INT", "s": "STRING", "y": "INT"},
    "c": {"k": "INT", "w": "STRING", "z": "BIGINT", "f": "DOUBLE", "list": "ARRAY<INT>"},
}


class SmallTables:
    """`lake.src.a`, `b` and `c`."""

    def __init__(self, stand: Stand, seed: int, rows: int = 40) -> None:
        self._stand = stand
        self._random = Random(seed)
        self._rows = rows
        self._next = dict.fromkeys(COLUMNS, 0)
        self._gone: list[tuple[str, str]] = []
        stand.sql("CREATE NAMESPACE IF NOT EXISTS lake.src")
        for place, (table, columns) in enumerate(COLUMNS.items()):
            kind = "copy-on-write" if place == 1 else "merge-on-read"
            modes = ", ".join(f"'write.{what}.mode' = '{kind}'" for what in ("delete", "update", "merge"))
            text = ", ".join(f"{name} {of}" for name, of in columns.items())
            stand.sql(
                f"CREATE TABLE lake.src.{table} ({text}) USING iceberg "
                f"TBLPROPERTIES ('format-version' = '3', {modes})",
                self._insert(table, rows if table != "c" else rows // 2),
            )

    def change(self) -> None:
        """One to three statements per table; now and then a table is left alone or emptied."""
        for table in COLUMNS:
            fate = self._random.random()
            if fate < 0.1:
                continue
            if fate < 0.14:
                self._stand.sql(f"DELETE FROM lake.src.{table}", self._insert(table, self._rows // 2))
                continue
            self._stand.sql(self._delete(table))
            if fate < 0.8:
                self._stand.sql(self._update(table))
            if fate > 0.2:
                self._stand.sql(self._insert(table, self._random.randint(1, 4)))

    # -- statements ------------------------------------------------------------------------------------

    def _insert(self, table: str, rows: int) -> str:
        made = [self._row(table) for _ in range(rows)]
        made += [self._random.choice(made) for _ in range(self._random.randint(0, 2))]
        back = [row for of, row in self._gone if of == table]
        if back and self._random.random() < 0.5:
            made.append(back[-1])
        kept = self._random.choice(made)
        self._gone.append((table, kept))
        return f"INSERT INTO lake.src.{table} VALUES {', '.join(made)}"

    def _delete(self, table: str) -> str:
        modulus = self._random.randint(7, 11)
        where = f"pmod(xxhash64({', '.join(COLUMNS[table])}), {modulus}) = {self._random.randrange(modulus)}"
        return f"DELETE FROM lake.src.{table} WHERE {where}"

    def _update(self, table: str) -> str:
        changed = self._random.sample([name for name in COLUMNS[table] if name != "id"], 2)
        values = ", ".join(f"{name} = {self._value(name)}" for name in changed)
        modulus = self._random.randint(6, 12)
        where = f"pmod(xxhash64({', '.join(COLUMNS[table])}), {modulus}) = {self._random.randrange(modulus)}"
        return f"UPDATE lake.src.{table} SET {values} WHERE {where}"

    def _row(self, table: str) -> str:
        return f"({', '.join(self._value(name, table) for name in COLUMNS[table])})"

    def _value(self, column: str, table: str = "") -> str:
        dice = self._random
        if column == "id":
            self._next[table] += 1
            return str(self._next[table])
        if dice.random() < 0.12:
            return "NULL"
        match column:
            case "k":
                return str(dice.randint(0, 9))
            case "g" | "s" | "w":
                return f"'{dice.choice(['p', 'q', 'r', 'pq', ''])}'"
            case "x" | "y" | "z":
                return str(dice.randint(-4, 15))
            case "d":
                return f"CAST({dice.randint(-300, 900)} / 100 AS DECIMAL(12,2))"
            case "f":
                number = dice.choice(["0.1", "-0.0", "0.0", "2.5e3", "NaN", "1e-7"])
                return f"CAST('{number}' AS DOUBLE)"
            case "day":
                return f"DATE '2024-0{dice.randint(1, 3)}-{dice.randint(10, 28)}'"
        return f"ARRAY({', '.join(str(dice.randint(0, 4)) for _ in range(dice.randint(1, 3)))})"
