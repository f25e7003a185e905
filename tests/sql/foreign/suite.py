"""A suite of foreign queries: the tables that its files create, and the queries over them, as Spark SQL."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from pathlib import Path

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from .sqllogictest import files_in, records

__all__ = ["SOURCES", "ForeignQuery", "Source", "Suite", "Table", "read_suite"]


@dataclass(frozen=True, slots=True)
class Source:
    """A public repository with an SQL test suite.

    Attributes:
        repository: `owner/name` on GitHub.
        dialect: sqlglot's name of its SQL.
        folder: of the tests.
    """

    repository: str
    dialect: str
    folder: str


SOURCES = {
    "duckdb": Source("duckdb/duckdb", "duckdb", "test/sql"),
    "risingwave": Source("risingwavelabs/risingwave", "risingwave", "e2e_test"),
    "datafusion": Source("apache/datafusion", "postgres", "datafusion/sqllogictest/test_files"),
    "glaredb": Source("GlareDB/glaredb", "postgres", "slt"),
    "risinglight": Source("risinglightdb/risinglight", "postgres", "tests/sql"),
    "materialize": Source("MaterializeInc/materialize", "materialize", "test/sqllogictest"),
}

_TYPES = {
    "TINYINT": "INT", "SMALLINT": "INT", "INT": "INT", "BIGINT": "BIGINT", "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE", "DATE": "DATE", "TIMESTAMP": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP",
    "BOOLEAN": "BOOLEAN", "VARCHAR": "STRING", "TEXT": "STRING", "CHAR": "STRING",
}  # fmt: skip
"""Types of columns that Spark and Iceberg have. A table with another type is left out."""

_WANTED = re.compile(r"\W*(CREATE|INSERT|SELECT|WITH|FROM)\b", re.IGNORECASE)

_UNTRANSLATABLE = (SqlglotError, RecursionError, ValueError, LookupError, AttributeError, TypeError)
"""What sqlglot raises on statements that it does not know; those are left out."""

MOST_ROWS = 40
"""Further rows of a table are left out."""


@dataclass(slots=True)
class Table:
    """A table that files of the suite create. Those with the same name and columns are one."""

    name: str
    columns: dict[str, str]
    rows: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ForeignQuery:
    """One query of the suite.

    Attributes:
        file: where it stands.
        sql: in Spark's dialect; it reads `src.<table>`.
        tables: names of the tables that it reads.
    """

    file: str
    sql: str
    tables: tuple[str, ...]


@dataclass(slots=True)
class Suite:
    """Tables by name, and the queries over them; no query is there twice."""

    tables: dict[str, Table] = field(default_factory=dict)
    queries: list[ForeignQuery] = field(default_factory=list)


def read_suite(git_directory: Path, source: Source, part: int = 0, parts: int = 1) -> Suite:
    """The queries that can be translated, and that read tables which hold rows.

    Args:
        git_directory: of the source's repository.
        source: which one it is.
        part: number of the part to read, below `parts`.
        parts: the files are dealt out to so many parts.
    """
    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
    reader = _SuiteReader(source.dialect)
    for path, text in list(files_in(git_directory, source.folder))[part::parts]:
        reader.read(path, text)
    suite = reader.suite
    suite.queries = [q for q in suite.queries if all(suite.tables[name].rows for name in q.tables)]
    return suite


class _SuiteReader:
    def __init__(self, dialect: str) -> None:
        self.suite = Suite()
        self._dialect = dialect
        self._seen: set[str] = set()
        self._by_definition: dict[tuple[str, tuple[tuple[str, str], ...]], Table] = {}

    def read(self, path: str, text: str) -> None:
        """Take the tables and queries of one file."""
        current: dict[str, Table] = {}
        for record in records(text):
            if not _WANTED.match(record.sql):
                continue
            try:
                parsed = sqlglot.parse(record.sql, read=self._dialect)
            except _UNTRANSLATABLE:
                continue
            for statement in parsed:
                if isinstance(statement, exp.Create):
                    self._create(statement, current)
                elif isinstance(statement, exp.Insert):
                    _insert(statement, current)
                elif record.is_query and isinstance(statement, exp.Query):
                    self._query(path, statement, current)

    def _create(self, statement: exp.Create, current: dict[str, Table]) -> None:
        name = statement.this.find(exp.Table)
        if name is None:
            return
        current.pop(name.name.lower(), None)
        columns = _columns(statement)
        if statement.kind != "TABLE" or columns is None:
            return
        key = (name.name.lower(), tuple(columns.items()))
        if key not in self._by_definition:
            plain = re.sub(r"\W", "", name.name.lower())
            unique = f"{plain}_{len(self._by_definition)}"
            self._by_definition[key] = self.suite.tables[unique] = Table(unique, columns)
        current[name.name.lower()] = self._by_definition[key]

    def _query(self, path: str, statement: exp.Query, current: dict[str, Table]) -> None:
        ctes = {cte.alias_or_name.lower() for cte in statement.find_all(exp.CTE)}
        read = set()
        for table in statement.find_all(exp.Table):
            name = table.name.lower()
            if name in ctes and not table.db:
                continue
            if name not in current or not isinstance(table.this, exp.Identifier):
                return
            read.add(current[name].name)
            if not table.alias:
                table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name)))
            table.set("this", exp.to_identifier(current[name].name))
            table.set("db", exp.to_identifier("src"))
            table.set("catalog", None)
        if not read:
            return
        try:
            sql = statement.sql("spark")
        except _UNTRANSLATABLE:
            return
        if sql not in self._seen:
            self._seen.add(sql)
            self.suite.queries.append(ForeignQuery(path, sql, tuple(sorted(read))))


def _columns(statement: exp.Create) -> dict[str, str] | None:
    """Column → type in Spark, or None when the table has a type that Spark or Iceberg has not."""
    columns: dict[str, str] = {}
    for column in statement.this.find_all(exp.ColumnDef):
        kind = column.kind
        if kind is None or (kind.expressions and kind.this.name not in ("VARCHAR", "CHAR", "DECIMAL")):
            return None
        if kind.this.name == "DECIMAL":
            sizes = [size.name for size in kind.expressions] or ["18", "3"]
            columns[column.name] = f"DECIMAL({', '.join(sizes)})"
        elif kind.this.name in _TYPES:
            columns[column.name] = _TYPES[kind.this.name]
        else:
            return None
    lowered = {name.lower() for name in columns}
    return columns if columns and len(lowered) == len(columns) else None


def _insert(statement: exp.Insert, current: dict[str, Table]) -> None:
    """Take the rows of INSERT … VALUES; other inserts are left out."""
    name = statement.this.find(exp.Table)
    table = current.get(name.name.lower()) if name is not None else None
    if table is None or not isinstance(statement.expression, exp.Values):
        return
    given = statement.this.expressions if isinstance(statement.this, exp.Schema) else []
    names = [column.name.lower() for column in given] or [column.lower() for column in table.columns]
    for row in statement.expression.expressions:
        values = row.expressions if isinstance(row, exp.Tuple) else [row]
        if len(values) != len(names) or len(table.rows) >= MOST_ROWS:
            return
        by_name = dict(zip(names, values, strict=True))
        cells = [
            f"TRY_CAST({by_name[column.lower()].sql('spark') if column.lower() in by_name else 'NULL'} "
            f"AS {column_type})"
            for column, column_type in table.columns.items()
        ]
        table.rows.append(f"({', '.join(cells)})")
