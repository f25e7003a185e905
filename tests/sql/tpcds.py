"""TPC-DS: its data and queries from DuckDB's generator, as tables that somebody else writes and changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb
from duckdb_extensions import import_extension

from .stand import Stand

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
"""Tables whose first column identifies nothing."""

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
        found = data.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall()
    return {f"q{number:02d}": _QUOTED.sub(r"`\1`", text).strip().rstrip(";") for number, text in found}


def load(stand: Stand, folder: Path) -> list[str]:
    """Make `lake.default.<table>` of every file in `folder`; the tables' names."""
    stand.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
    tables = sorted(file.stem for file in folder.glob("*.parquet"))
    for table in tables:
        stand.sql(
            f"CREATE TABLE lake.default.{table} USING iceberg TBLPROPERTIES ('format-version' = '3', "
            "'write.delete.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read') "
            f"AS SELECT * FROM parquet.`{folder / table}.parquet`"
        )
    return tables


class TpcdsChanges:
    """Changes of all tables. Which rows they hit depends on the step alone.

    Facts: some rows go, some come twice, some lose a reference, some get another amount. Dimensions: some
    rows take over what another one says, some go, some come under a key that nothing refers to.
    """

    def __init__(self, stand: Stand, tables: list[str], per_mille: int = 10) -> None:
        self._stand = stand
        self._tables = tables
        self._per_mille = per_mille

    def everything(self, step: int) -> None:
        for name in self._tables:
            table = f"lake.default.{name}"
            columns = {c.name: c.dataType.typeName() for c in self._stand.outside.table(table).schema}
            if name in _FACTS:
                self._fact(table, columns, step)
            elif self._stand.outside.table(table).count() > 50:
                self._dimension(table, list(columns), step)
            else:
                self._small(table, columns, step)

    def _fact(self, table: str, columns: Mapping[str, str], step: int) -> None:
        amounts = [name for name, kind in columns.items() if kind == "decimal"]
        references = [name for name in columns if name.endswith("_sk")]
        changed = amounts[step % len(amounts)] if amounts else "inv_quantity_on_hand"
        lost = references[(step * 3) % len(references)]
        other = references[(step * 5 + 1) % len(references)]
        twice, gone, more, loose, moved = (self._part(columns, step, place) for place in range(5))
        self._stand.sql(
            f"INSERT INTO {table} SELECT * FROM {table} WHERE {twice}",
            f"DELETE FROM {table} WHERE {gone}",
            f"UPDATE {table} SET {changed} = {changed} * 2 WHERE {changed} < 1000 AND {more}",
            f"UPDATE {table} SET {lost} = NULL WHERE {loose}",
            f"UPDATE {table} SET {other} = {other} + 1 WHERE {moved}",
        )

    def _dimension(self, table: str, columns: list[str], step: int) -> None:
        key, *rest = columns
        next_row = ", ".join(f"lead({name}) OVER (ORDER BY {key}) AS {name}" for name in rest)
        few = self._part([key], step, 0)
        session = self._stand.outside
        session.sql(f"SELECT {key}, {next_row} FROM {table}").where(few).createOrReplaceTempView("taken")
        self._stand.sql(
            "CACHE TABLE taken_now AS SELECT * FROM taken",
            f"DELETE FROM {table} WHERE {few}",
            f"INSERT INTO {table} SELECT * FROM taken_now",
            "UNCACHE TABLE taken_now",
            "DROP VIEW taken_now",
            f"DELETE FROM {table} WHERE {self._part([key], step, 1, 10)}",
            f"INSERT INTO {table} SELECT {key} + 10000000, * EXCEPT ({key}) FROM {table} "
            f"WHERE {self._part([key], step, 2, 10)}",
        )

    def _small(self, table: str, columns: Mapping[str, str], step: int) -> None:
        """A dimension of a few rows: a name changes, a row comes under a new key and goes later."""
        key, *rest = columns
        texts = [name for name in rest if columns[name] == "string"]
        changed = texts[step % len(texts)] if texts else rest[0]
        value = f"concat({changed}, '.')" if texts else f"{changed} + 1"
        self._stand.sql(
            f"INSERT INTO {table} SELECT {key} + {step}, * EXCEPT ({key}) FROM {table} LIMIT 1",
            f"UPDATE {table} SET {changed} = {value} WHERE {key} % 5 = {step % 5}",
        )
        if step % 3 == 0:
            self._stand.sql(f"DELETE FROM {table} WHERE {key} > {step}")

    def _part(self, columns: Iterable[str], step: int, place: int, divide: int = 1) -> str:
        """A condition that holds for `per_mille` of the rows, divided."""
        buckets = 1000 * divide
        first = (step * 101 + place * 37) * self._per_mille % (buckets - self._per_mille)
        hashed = f"pmod(xxhash64({', '.join(columns)}), {buckets})"
        return f"{hashed} BETWEEN {first} AND {first + self._per_mille - 1}"
