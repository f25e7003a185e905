"""TPC-DS: its data and queries from DuckDB's generator, as tables that another program writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension

from .testbed import ViewTestbed

__all__ = ["TpcdsChanges", "generate", "load"]

_FACTS = frozenset(
    {
        "catalog_returns",
        "catalog_sales",
        "inventory",
        "store_returns",
        "store_sales",
        "web_returns",
        "web_sales",
    }
)
"""Tables whose first column is no key."""

_QUOTED = re.compile(r'"([^"]*)"')


def generate(folder: Path, scale: float) -> Mapping[str, str]:
    """Write every table as `<folder>/<table>.parquet`; the 99 queries by name, as Spark writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    import_extension("tpcds")
    with duckdb.connect() as data:
        data.execute("LOAD tpcds")
        data.execute(f"CALL dsdgen(sf = {scale})")
        for (table,) in data.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            data.execute(f"COPY {table} TO '{folder / table}.parquet' (FORMAT parquet)")
        queries = data.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall()
    return {f"q{number:02d}": _QUOTED.sub(r"`\1`", text).strip().rstrip(";") for number, text in queries}


def load(testbed: ViewTestbed, folder: Path) -> list[str]:
    """Create `lake.default.<table>` from every file in `folder`; returns the tables' names."""
    testbed.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
    tables = sorted(file.stem for file in folder.glob("*.parquet"))
    for table in tables:
        testbed.sql(
            f"CREATE TABLE lake.default.{table} USING iceberg TBLPROPERTIES ('format-version' = '3', "
            "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read') "
            f"AS SELECT * FROM parquet.`{folder / table}.parquet`"
        )
    return tables


class TpcdsChanges:
    """Changes of all tables. Which rows they change depends on the step alone.

    Facts: some rows are deleted, some duplicated, some lose a reference, some get another amount. Dimensions:
    some rows get the values of another one, some are deleted, some are inserted under an unused key.
    """

    def __init__(self, testbed: ViewTestbed, tables: list[str], per_mille: int = 10) -> None:
        self._testbed = testbed
        self._tables = tables
        self._per_mille = per_mille

    def everything(self, step: int) -> None:
        for name in self._tables:
            table = f"lake.default.{name}"
            columns = {
                c.name: c.dataType.typeName() for c in self._testbed.external_session.table(table).schema
            }
            if name in _FACTS:
                self._fact(table, columns, step)
            elif self._testbed.external_session.table(table).count() > 50:
                self._dimension(table, list(columns), step)
            else:
                self._small(table, columns, step)

    def _fact(self, table: str, columns: Mapping[str, str], step: int) -> None:
        amounts = [name for name, kind in columns.items() if kind == "decimal"]
        references = [name for name in columns if name.endswith("_sk")]
        amount = amounts[step % len(amounts)] if amounts else "inv_quantity_on_hand"
        nulled = references[(step * 3) % len(references)]
        moved = references[(step * 5 + 1) % len(references)]
        duplicated, deleted, increased, unlinked, relinked = (
            self._part(columns, step, part) for part in range(5)
        )
        self._testbed.sql(
            f"INSERT INTO {table} SELECT * FROM {table} WHERE {duplicated}",
            f"DELETE FROM {table} WHERE {deleted}",
            f"UPDATE {table} SET {amount} = {amount} * 2 WHERE {amount} < 1000 AND {increased}",
            f"UPDATE {table} SET {nulled} = NULL WHERE {unlinked}",
            f"UPDATE {table} SET {moved} = {moved} + 1 WHERE {relinked}",
        )

    def _dimension(self, table: str, columns: list[str], step: int) -> None:
        key, *rest = columns
        next_row = ", ".join(f"lead({name}) OVER (ORDER BY {key}) AS {name}" for name in rest)
        condition = self._part([key], step, 0)
        session = self._testbed.external_session
        session.sql(f"SELECT {key}, {next_row} FROM {table}").where(condition).createOrReplaceTempView(
            "replacements"
        )
        self._testbed.sql(
            "CACHE TABLE replacement_rows AS SELECT * FROM replacements",
            f"DELETE FROM {table} WHERE {condition}",
            f"INSERT INTO {table} SELECT * FROM replacement_rows",
            "UNCACHE TABLE replacement_rows",
            "DROP VIEW replacement_rows",
            f"DELETE FROM {table} WHERE {self._part([key], step, 1, 10)}",
            f"INSERT INTO {table} SELECT {key} + 10000000, * EXCEPT ({key}) FROM {table} "
            f"WHERE {self._part([key], step, 2, 10)}",
        )

    def _small(self, table: str, columns: Mapping[str, str], step: int) -> None:
        """A dimension of a few rows: a name changes, a row is inserted under a new key and deleted later."""
        key, *rest = columns
        texts = [name for name in rest if columns[name] == "string"]
        changed = texts[step % len(texts)] if texts else rest[0]
        value = f"concat({changed}, '.')" if texts else f"{changed} + 1"
        self._testbed.sql(
            f"INSERT INTO {table} SELECT {key} + {step}, * EXCEPT ({key}) FROM {table} LIMIT 1",
            f"UPDATE {table} SET {changed} = {value} WHERE {key} % 5 = {step % 5}",
        )
        if step % 3 == 0:
            self._testbed.sql(f"DELETE FROM {table} WHERE {key} > {step}")

    def _part(self, columns: Iterable[str], step: int, part: int, divide: int = 1) -> str:
        """A condition that holds for `per_mille` of the rows, divided by `divide`."""
        buckets = 1000 * divide
        first = (step * 101 + part * 37) * self._per_mille % (buckets - self._per_mille)
        hashed = f"pmod(xxhash64({', '.join(columns)}), {buckets})"
        return f"{hashed} BETWEEN {first} AND {first + self._per_mille - 1}"
