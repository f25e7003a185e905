"""`capture(…)` in a definition file: a database's tables become streaming tables of the pipeline.

    from tautochrone.sources import postgresql

    postgresql.capture("shop", url=spark.conf.get("shop.url"), tables="public.*")

It defines the log table `shop_log`, and for each table that matches, such as `public.orders`, the streaming
table `shop_orders`, which is derived from the log. The database is asked for its tables when definition files
are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.names import quoted
from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import checked_url, connect, explained
from tautochrone.sources.postgresql.log_schema import SPARK_SCHEMA
from tautochrone.sources.postgresql.tables import CapturedTable, captured_tables, read_tables
from tautochrone.sources.postgresql.types import value_sql
from tautochrone.sources.registry import register_change_log

__all__ = ["capture"]

FORMAT = "tautochrone_postgresql"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_SLOT = re.compile(r"[a-z0-9_]{1,54}")
_PREFIX = "__taut_"
_EVENT_COLUMNS = ("point", "sequence", "transaction", "operation", "unchanged", "snapshot")
"""Columns of the log by which events are merged; behind the prefix they cannot be columns of a table."""

_captures: dict[str, Capture] = {}
"""The captures of this process. A query names its capture, so that it has no password in it."""


def capture(
    name: str,
    *,
    url: str,
    tables: str | Sequence[str] = "public.*",
    exclude: str | Sequence[str] = (),
    as_text: str | Sequence[str] = (),
    slot: str | None = None,
    publication: str | None = None,
    schema_changes: str = "evolve",
) -> None:
    """Capture tables of a PostgreSQL database, each at the same transaction at every checkpoint.

    Args:
        name: of the capture: lower-case letters, digits, `_`. The log table is `<name>_log`, the table
            `public.orders` is `<name>_orders`, `sales.orders` is `<name>_sales_orders`.
        url: connection string of libpq. Give a password by reference, in a Spark setting.
        tables: patterns `schema.table` with `*`.
        exclude: patterns of tables that are left out.
        as_text: patterns `schema.table.column` of columns that become STRING.
        slot: how the name of the replication slot begins; `tautochrone_<name>` without it. A number of
            the log table follows, so that each lake has a slot of its own.
        publication: the publication; the same name without it.
        schema_changes: `evolve`: a table that gets other columns, or a new one that matches, is copied by the
            next run, beside the log of the others; `fail`: it is refused.

    Raises:
        DefinitionError: `CAPTURE_NAME_INVALID`; `CAPTURE_WITHOUT_TABLES`; `CAPTURED_TABLE_WITHOUT_KEY`.
        SettingsError: `CAPTURE_URL_INVALID`.
        IngestError: the database does not answer, or refuses.
    """
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            "CAPTURE_NAME_INVALID",
            f"{name!r} cannot be the name of a capture",
            hint="use up to 41 lower-case letters, digits and _: it names the replication slot too",
        )
    slot = slot or f"tautochrone_{name}"
    if not _SLOT.fullmatch(slot):
        raise DefinitionError(
            "CAPTURE_NAME_INVALID",
            f"{slot!r} cannot be the beginning of a replication slot's name",
            hint="use up to 54 lower-case letters, digits and _",
        )
    if schema_changes not in ("evolve", "fail"):
        raise DefinitionError(
            "CAPTURE_POLICY_UNKNOWN",
            f"The capture {name} has schema_changes={schema_changes!r}",
            hint="it is 'evolve' or 'fail'",
        )
    url = checked_url(url, name)
    publication = publication or f"tautochrone_{name}"
    with explained(name), connect(url) as connection:
        existing = read_tables(connection, publication)
    chosen = captured_tables(existing, _patterns(tables), _patterns(exclude), name)
    _captures[name] = Capture(name, url, chosen, slot, publication, schema_changes == "evolve")
    register_change_log(FORMAT, lambda options: PostgreSQLChangeLog(_captures[options["capture"]]))
    SparkSession.active().dataSource.register(_Stream)
    _define_log(name)
    for table in chosen:
        texts = [column.name for column in table.columns if _is_text(table, column.name, _patterns(as_text))]
        _define_table(name, table, texts)


def _patterns(patterns: str | Sequence[str]) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else patterns


def _is_text(table: CapturedTable, column: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(f"{table.name}.{column}", pattern) for pattern in patterns)


def _define_log(name: str) -> None:
    @dp.table(name=f"{name}_log", comment=f"The change log of the PostgreSQL capture {name}")
    def log() -> DataFrame:
        return SparkSession.active().readStream.format(FORMAT).option("capture", name).load()


def _define_table(name: str, table: CapturedTable, texts: Sequence[str]) -> None:
    prefix = "" if table.schema == "public" else f"{table.schema}_"
    columns = [
        f"{value_sql(column, table.name, as_text=column.name in texts)} AS {quoted(column.name)}"
        for column in table.columns
    ]
    columns += [f"{column} AS {_PREFIX}{column}" for column in _EVENT_COLUMNS]
    relation, log_table = table.name, f"{name}_log"

    @dp.table(
        name=f"{name}_{prefix}{table.table}",
        comment=f"The table {table.name} of the PostgreSQL capture {name}",
        table_properties={
            "tautochrone.apply.keys": ", ".join(table.keys),
            "tautochrone.apply.sequence": f"{_PREFIX}point, {_PREFIX}sequence",
            "tautochrone.apply.delete": f"{_PREFIX}operation = 'delete'",
            "tautochrone.apply.truncate": f"{_PREFIX}operation = 'truncate'",
            "tautochrone.apply.transaction": f"{_PREFIX}transaction",
            "tautochrone.apply.snapshot": f"{_PREFIX}snapshot",
            "tautochrone.apply.unchanged": f"{_PREFIX}unchanged",
            "tautochrone.apply.dropped": ", ".join(f"{_PREFIX}{column}" for column in _EVENT_COLUMNS),
            "tautochrone.apply.relation": table.name,
        },
    )
    def rows() -> DataFrame:
        events = SparkSession.active().readStream.table(log_table)
        of_table = (sf.col("relation") == relation) & (sf.col("operation") != "completed")
        return events.where(of_table).selectExpr(*columns)


class _Stream(DataSource):
    """Stands for the log in a query; Spark itself never reads it."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        raise NotImplementedError("the log is read by the change log's own flow")
