"""Three small tables and a folder of files with NULLs, duplicates, and keys that match often or never.

They change at random. A change of a table is SQL of another program: rows are deleted, updated, inserted,
inserted twice, and sometimes inserted again after a delete. A change of the folder adds a file and replaces
or removes one. Which ones depends on the seed alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from .testbed import ViewTestbed

__all__ = ["COLUMNS", "SmallTables", "files_folder"]

COLUMNS: dict[str, dict[str, str]] = {
    "a": {"id": "INT", "k": "INT", "g": "STRING", "x": "INT", "d": "DECIMAL(12,2)", "day": "DATE"},
    "b": {"id": "INT", "k": "INT", "s": "STRING", "y": "INT"},
    "c": {"k": "INT", "w": "STRING", "z": "BIGINT", "f": "DOUBLE", "list": "ARRAY<INT>"},
}


def files_folder(testbed: ViewTestbed) -> Path:
    """The folder of JSON files with the columns `k`, `w` and `z`."""
    return testbed.pipeline.folder / "files"


class SmallTables:
    """`lake.src.a`, `b` and `c`, and the files."""

    def __init__(self, testbed: ViewTestbed, seed: int, rows: int = 40) -> None:
        self._testbed = testbed
        self._random = Random(seed)
        self._rows = rows
        self._next = dict.fromkeys(COLUMNS, 0)
        self._inserted: list[tuple[str, str]] = []
        self._file_random = Random(seed)
        self._files: list[Path] = []
        for _ in range(3):
            self._add_file()
        testbed.sql("CREATE NAMESPACE IF NOT EXISTS lake.src")
        for index, (table, columns) in enumerate(COLUMNS.items()):
            mode = "copy-on-write" if index == 1 else "merge-on-read"
            modes = ", ".join(
                f"'write.{command}.mode' = '{mode}'" for command in ("delete", "update", "merge")
            )
            text = ", ".join(f"{name} {column_type}" for name, column_type in columns.items())
            testbed.sql(
                f"CREATE TABLE lake.src.{table} ({text}) USING iceberg "
                f"TBLPROPERTIES ('format-version' = '3', {modes})",
                self._insert(table, rows if table != "c" else rows // 2),
            )

    def change(self) -> None:
        """One to three statements per table; now and then a table is not changed, or emptied and filled."""
        self._change_files()
        for table in COLUMNS:
            choice = self._random.random()
            if choice < 0.1:
                continue
            if choice < 0.14:
                self._testbed.sql(f"DELETE FROM lake.src.{table}", self._insert(table, self._rows // 2))
                continue
            self._testbed.sql(self._delete(table))
            if choice < 0.8:
                self._testbed.sql(self._update(table))
            if choice > 0.2:
                self._testbed.sql(self._insert(table, self._random.randint(1, 4)))

    # -- files -----------------------------------------------------------------------------------------

    def _change_files(self) -> None:
        self._add_file()
        file = self._file_random.choice(self._files)
        if self._file_random.random() < 0.5:
            self._write_file(file)
        else:
            self._files.remove(file)
            file.unlink()

    def _add_file(self) -> None:
        file = (
            files_folder(self._testbed) / f"part-{len(self._files)}-{self._file_random.getrandbits(32)}.json"
        )
        self._files.append(file)
        self._write_file(file)

    def _write_file(self, file: Path) -> None:
        generator = self._file_random
        rows = [
            {
                "k": generator.randint(0, 9),
                "w": generator.choice(["p", "q", None]),
                "z": generator.randint(-4, 15),
            }
            for _ in range(generator.randint(2, 6))
        ]
        # A first row without NULL gives each file the same inferred columns.
        rows[0]["w"] = "p"
        file.parent.mkdir(exist_ok=True)
        draft = file.with_name(f"_{file.name}")
        draft.write_text("".join(json.dumps(row) + "\n" for row in rows))
        draft.rename(file)

    # -- statements ------------------------------------------------------------------------------------

    def _insert(self, table: str, rows: int) -> str:
        values = [self._row(table) for _ in range(rows)]
        values += [self._random.choice(values) for _ in range(self._random.randint(0, 2))]
        earlier = [row for of_table, row in self._inserted if of_table == table]
        if earlier and self._random.random() < 0.5:
            values.append(earlier[-1])
        self._inserted.append((table, self._random.choice(values)))
        return f"INSERT INTO lake.src.{table} VALUES {', '.join(values)}"

    def _delete(self, table: str) -> str:
        modulus = self._random.randint(7, 11)
        where = f"pmod(xxhash64({', '.join(COLUMNS[table])}), {modulus}) = {self._random.randrange(modulus)}"
        return f"DELETE FROM lake.src.{table} WHERE {where}"

    def _update(self, table: str) -> str:
        columns = self._random.sample([name for name in COLUMNS[table] if name != "id"], 2)
        values = ", ".join(f"{name} = {self._value(name)}" for name in columns)
        modulus = self._random.randint(6, 12)
        where = f"pmod(xxhash64({', '.join(COLUMNS[table])}), {modulus}) = {self._random.randrange(modulus)}"
        return f"UPDATE lake.src.{table} SET {values} WHERE {where}"

    def _row(self, table: str) -> str:
        return f"({', '.join(self._value(name, table) for name in COLUMNS[table])})"

    def _value(self, column: str, table: str = "") -> str:
        generator = self._random
        if column == "id":
            self._next[table] += 1
            return str(self._next[table])
        if generator.random() < 0.12:
            return "NULL"
        match column:
            case "k":
                return str(generator.randint(0, 9))
            case "g" | "s" | "w":
                return f"'{generator.choice(['p', 'q', 'r', 'pq', ''])}'"
            case "x" | "y" | "z":
                return str(generator.randint(-4, 15))
            case "d":
                return f"CAST({generator.randint(-300, 900)} / 100 AS DECIMAL(12,2))"
            case "f":
                number = generator.choice(["0.1", "-0.0", "0.0", "2.5e3", "NaN", "1e-7"])
                return f"CAST('{number}' AS DOUBLE)"
            case "day":
                return f"DATE '2024-0{generator.randint(1, 3)}-{generator.randint(10, 28)}'"
        return f"ARRAY({', '.join(str(generator.randint(0, 4)) for _ in range(generator.randint(1, 3)))})"
