"""The tables of a suite in the lake, and their changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from random import Random

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from tests.sql.testbed import ViewTestbed

from .suite import Table

__all__ = ["SPARK_ERRORS", "ChangingTables"]

SPARK_ERRORS = (PySparkException, Py4JError)
"""What plain Spark raises on statements that it does not accept."""

_NUMBERS = ("INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL")


class ChangingTables:
    """`lake.src.<name>` for each table. Which rows a change takes depends on the seed alone."""

    def __init__(self, testbed: ViewTestbed, tables: Iterable[Table], seed: int) -> None:
        """Create the tables without rows."""
        self._testbed = testbed
        self._tables = list(tables)
        self._random = Random(seed)
        testbed.sql("CREATE NAMESPACE IF NOT EXISTS lake.src")
        for number, table in enumerate(self._tables):
            columns = ", ".join(f"`{name}` {column_type}" for name, column_type in table.columns.items())
            mode = "copy-on-write" if number % 3 == 1 else "merge-on-read"
            modes = ", ".join(f"'write.{command}.mode' = '{mode}'" for command in ("delete", "update"))
            testbed.sql(
                f"CREATE TABLE lake.src.{table.name} ({columns}) USING iceberg "
                f"TBLPROPERTIES ('format-version' = '3', {modes})"
            )

    def fill(self, names: Collection[str]) -> None:
        """Insert the rows of these tables. The others stay empty and are not changed."""
        self._tables = [table for table in self._tables if table.name in names]
        for table in self._tables:
            table.rows = self._accepted(table.rows)
            if table.rows:
                self._testbed.sql(f"INSERT INTO lake.src.{table.name} VALUES {', '.join(table.rows)}")

    def change(self) -> None:
        """A delete or an update, then an insert, of each table. Now and then a table keeps its rows."""
        for table in filter(_has_rows, self._tables):
            choice = self._random.random()
            if choice < 0.1:
                continue
            self._testbed.sql(self._delete(table) if choice < 0.5 else self._update(table))
            count = self._random.randint(1, 3)
            rows = ", ".join(self._random.choice(table.rows) for _ in range(count))
            self._testbed.sql(f"INSERT INTO lake.src.{table.name} VALUES {rows}")

    def _accepted(self, rows: list[str]) -> list[str]:
        """The rows whose values Spark accepts and Python can hold: a year 10,000 it cannot."""
        try:
            self._testbed.sql(f"VALUES {', '.join(rows)}")
        except (*SPARK_ERRORS, ValueError, OverflowError):
            return [row for part in rows for row in self._accepted([part])] if len(rows) > 1 else []
        return rows

    def _delete(self, table: Table) -> str:
        return f"DELETE FROM lake.src.{table.name} WHERE {self._some_rows(table)}"

    def _update(self, table: Table) -> str:
        name, column_type = self._random.choice(list(table.columns.items()))
        column, value = f"`{name}`", "NULL"
        if self._random.random() < 0.8:
            if column_type.startswith(_NUMBERS):
                value = f"TRY_CAST(try_add({column}, {self._random.randint(-2, 3)}) AS {column_type})"
            elif column_type == "DATE":
                value = f"date_add({column}, {self._random.randint(-2, 3)})"
            elif column_type == "STRING":
                value = f"nullif(upper({column}), {column})"
        return f"UPDATE lake.src.{table.name} SET {column} = {value} WHERE {self._some_rows(table)}"

    def _some_rows(self, table: Table) -> str:
        columns = ", ".join(f"`{name}`" for name in table.columns)
        modulus = self._random.randint(3, 6)
        return f"pmod(xxhash64({columns}), {modulus}) = {self._random.randrange(modulus)}"


def _has_rows(table: Table) -> bool:
    return bool(table.rows)
