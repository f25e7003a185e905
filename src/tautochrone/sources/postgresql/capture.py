"""`capture(…)` in a definition file: a database's tables become streaming tables of the pipeline.

    from tautochrone.sources import postgresql

    postgresql.capture("shop", url=spark.conf.get("shop.url"), tables="public.*")

It defines the log table `shop_log`, and for each table that matches, such as `public.orders`, the streaming
table `shop_orders`, which is derived from the log. The database is asked for its tables when definition files
are loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tautochrone.errors import DefinitionError
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason
from tautochrone.sources.capture.definitions import (
    check_columns,
    check_datasets,
    check_name,
    check_policy,
    check_properties,
    dataset_name,
    define_log,
    define_table,
    matches_any,
    patterns_of,
    properties_of,
)
from tautochrone.sources.postgresql.change_log import Capture, PostgreSQLChangeLog
from tautochrone.sources.postgresql.connection import checked_url, connect, translated_errors
from tautochrone.sources.postgresql.messages import RelationColumn
from tautochrone.sources.postgresql.server import require_rights
from tautochrone.sources.postgresql.tables import CapturedTable, captured_tables, read_tables
from tautochrone.sources.postgresql.types import invalid_value_sql, value_sql, with_built_in_types
from tautochrone.sources.registry import register_change_log

__all__ = ["capture"]

FORMAT = "tautochrone_postgresql"
_SLOT = re.compile(r"[a-z0-9_]{1,54}")

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
    invalid_values: str = "fail",
    copy_tasks: int = 8,
    log_retention: str | None = None,
    mode: str = "full",
    table_properties: Mapping[str, Mapping[str, str]] | None = None,
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
            next run, beside the log of the others; `ignore`: new columns are not taken over, those that are
            dropped stay and are NULL; `fail`: it is refused.
        invalid_values: values that a Spark type does not have, such as `infinity` as a date: `fail`: the
            table keeps its version; `null`: they become NULL, and the refresh says how many. In a key they
            always fail.
        copy_tasks: so many tasks of Spark read the first copy at once, each by a connection of its own. 0:
            the driver reads it, for executors that have no way to the database.
        log_retention: how long the log table keeps changes, such as `7 days` or `12h`. `0s`: they go as soon
            as all captured tables have them, for who needs no changes but tables. Without it all stay.
        mode: `full`, or `light` for who needs no changes but tables: rows are written once, into files of the
            captured tables, and the log table only names these files.
        table_properties: properties of the lake's tables, as of `dp.table`, by patterns `schema.table` with
            `*`: `{"*.*": {"tautochrone.sinks": "mirror"}}`. Of two patterns that match, the later one counts.

    Raises:
        DefinitionError: `CAPTURE_NAME_INVALID`; `CAPTURE_POLICY_UNKNOWN`; `CAPTURE_WITHOUT_TABLES`;
            `INVALID_LOG_RETENTION`; `CAPTURE_PROPERTIES_INVALID`;
            `CAPTURED_TABLE_WITHOUT_KEY`; `CAPTURED_TABLE_NAME_TAKEN`; `CAPTURED_COLUMN_NAME_TAKEN`.
        SettingsError: `CAPTURE_URL_INVALID`.
        IngestError: the database does not answer, or refuses.
    """
    check_name(name)
    slot = slot or f"tautochrone_{name}"
    if not _SLOT.fullmatch(slot):
        raise DefinitionError(
            "CAPTURE_NAME_INVALID",
            f"{slot!r} cannot be the beginning of a replication slot's name",
            hint="use up to 54 lower-case letters, digits and _",
        )
    check_policy(name, "schema_changes", schema_changes, ("evolve", "fail", "ignore"))
    check_policy(name, "invalid_values", invalid_values, ("fail", "null"))
    given_url, url = url, checked_url(url, name)
    publication = publication or f"tautochrone_{name}"
    aside: dict[str, Reason] = {}

    def check(table: CapturedTable) -> None:
        check_columns(name, table.name, [column.name for column in table.columns])
        if has_rights:
            require_rights(connection, publication, table, name)

    with translated_errors(name), connect(url) as connection:
        existing = read_tables(connection, publication)
        # Where it has none at all, or there is no publication yet, what it needs is said as a whole.
        has_rights = any(table.has_rights for table in existing.values())
        chosen = captured_tables(
            existing, patterns_of(tables), patterns_of(exclude), name, aside=aside, check=check
        )
        columns = [with_built_in_types(connection, table.columns) for table in chosen]
    check_datasets(name, [(_dataset(name, table), table.name) for table in chosen])
    table_properties = table_properties or {}
    check_properties(name, table_properties, [*(table.name for table in chosen), *aside])
    _captures[name] = Capture(
        name=name,
        url=url,
        tables=chosen,
        slot=slot,
        publication=publication,
        follows_columns=schema_changes != "fail",
        copy_tasks=max(0, copy_tasks),
        patterns=patterns_of(tables),
        exclude=patterns_of(exclude),
        aside=aside,
        given_url=given_url,
    )
    register_change_log(FORMAT, lambda options: PostgreSQLChangeLog(_captures[options["capture"]]))
    define_log(name, FORMAT, f"The change log of the PostgreSQL capture {name}", log_retention, mode)
    for table, columns_of_table in zip(chosen, columns, strict=True):
        names = [column.name for column in table.columns]
        texts = [column for column in names if matches_any(f"{table.name}.{column}", patterns_of(as_text))]
        properties = properties_of(table.name, table_properties)
        _define_table(
            name,
            table,
            columns_of_table,
            texts,
            invalid_values,
            properties,
            keeps_columns=schema_changes == "ignore",
        )


def _dataset(capture: str, table: CapturedTable) -> str:
    schema = [] if table.schema == "public" else [table.schema]
    return dataset_name(capture, *schema, table.table)


def _define_table(
    name: str,
    table: CapturedTable,
    columns_of_table: Sequence[RelationColumn],
    texts: Sequence[str],
    policy: str,
    properties: Mapping[str, str],
    *,
    keeps_columns: bool,
) -> None:
    columns = []
    invalid_values = []
    for column in columns_of_table:
        as_text = column.name in texts
        # NULL in a key would make one row of several: there an invalid value raises at once.
        value = value_sql(column, table.name, as_text=as_text, invalid_is_null=not column.is_key)
        columns.append(f"{value} AS {quoted(column.name)}")
        invalid_value = None if as_text or column.is_key else invalid_value_sql(column)
        if invalid_value is not None:
            invalid_values.append(invalid_value)
    define_table(
        _dataset(name, table),
        log_table=f"{name}_log",
        relation=table.name,
        keys=table.identifying_columns,
        has_equal_rows=not table.keys,
        columns=columns,
        comment=f"The table {table.name} of the PostgreSQL capture {name}",
        invalid=invalid_values,
        invalid_values=policy,
        properties=properties,
        # Without a key all columns identify a row.
        keeps_columns=keeps_columns and bool(table.keys),
    )
