"""`capture(…)` in a definition file: tables of a MariaDB or MySQL server become streaming tables.

    from tautochrone.sources import mysql

    mysql.capture("shop", url=spark.conf.get("shop.url"), tables="shop.*")

It defines the log table `shop_log`, and for each table that matches, such as `shop.orders`, the streaming
table `shop_orders`, which is derived from the log. The server is asked for its tables when definition files
are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
from tautochrone.sources.mysql.change_log import Capture, MySQLChangeLog
from tautochrone.sources.mysql.connection import address_of, connect, translated_errors
from tautochrone.sources.mysql.flavors import flavor_of
from tautochrone.sources.mysql.server import check_server
from tautochrone.sources.mysql.tables import CapturedTable, captured_tables
from tautochrone.sources.mysql.types import invalid_value_sql, require_known_types, value_sql
from tautochrone.sources.registry import register_change_log

__all__ = ["capture"]

FORMAT = "tautochrone_mysql"

_captures: dict[str, Capture] = {}
"""The captures of this process. A query names its capture, so that it has no password in it."""


def capture(
    name: str,
    *,
    url: str,
    tables: str | Sequence[str],
    exclude: str | Sequence[str] = (),
    as_text: str | Sequence[str] = (),
    schema_changes: str = "evolve",
    cascades: str = "refuse",
    invalid_values: str = "fail",
    copy_tasks: int = 8,
    log_retention: str | None = None,
    mode: str = "full",
    table_properties: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Capture tables of a MariaDB or MySQL server, each at the same transaction at every checkpoint.

    Args:
        name: of the capture: lower-case letters, digits, `_`. The log table is `<name>_log`. The table
            `shop.orders` is `<name>_orders` where all patterns name the same schema, else
            `<name>_shop_orders`.
        url: `mysql://user:password@host:3306/`. Give a password by reference, in a Spark setting.
        tables: patterns `schema.table` with `*`.
        exclude: patterns of tables that are left out.
        as_text: patterns `schema.table.column` of columns that become STRING.
        schema_changes: `evolve`: a table that a statement changes, or a new one that matches, is copied
            beside the log of the others: by this run if it has the same columns then, else by the next one;
            `ignore`: new columns are not taken over, those that are dropped stay and are NULL;
            `fail`: it is refused.
        cascades: what happens to tables whose rows foreign keys change by CASCADE or SET NULL, on servers
            that do not log these changes: `refuse`: they are not captured; `copy`: such a table is copied
            again when a row of the table that it refers to is deleted or gets another key. Both must be
            captured.
        invalid_values: what happens to zero dates such as `0000-00-00`: `fail`: the table gets no new
            version; `null`: they are NULL, and counted.
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
            `CAPTURED_TABLE_WITHOUT_KEY`; `CAPTURED_TABLE_NOT_LOGGED`;
            `CAPTURED_TYPE_NOT_SUPPORTED`; `CAPTURED_TABLE_NAME_TAKEN`; `CAPTURED_COLUMN_NAME_TAKEN`.
        SettingsError: `CAPTURE_URL_INVALID`.
        IngestError: the server does not answer, or refuses.
    """
    check_name(name)
    check_policy(name, "schema_changes", schema_changes, ("evolve", "fail", "ignore"))
    check_policy(name, "cascades", cascades, ("refuse", "copy"))
    check_policy(name, "invalid_values", invalid_values, ("fail", "null"))
    address = address_of(url, name)
    aside: dict[str, Reason] = {}

    def check(table: CapturedTable) -> None:
        require_known_types(table, name)
        check_columns(name, table.name, [column.name for column in table.columns])

    with translated_errors(name):
        connection = connect(address)
        try:
            check_server(connection, name)
            server = flavor_of(connection).name
            chosen = captured_tables(
                connection,
                patterns_of(tables),
                patterns_of(exclude),
                name,
                follows_cascades=cascades == "copy",
                aside=aside,
                check=check,
            )
        finally:
            connection.close()
    schemas = {pattern.partition(".")[0] for pattern in patterns_of(tables)}
    has_one_schema = len(schemas) == 1 and not any("*" in schema for schema in schemas)
    datasets = {
        table.name: dataset_name(name, *([] if has_one_schema else [table.schema]), table.table)
        for table in chosen
    }
    check_datasets(name, [(dataset, relation) for relation, dataset in datasets.items()])
    table_properties = table_properties or {}
    check_properties(name, table_properties, [*datasets, *aside])
    _captures[name] = Capture(
        name,
        address,
        chosen,
        follows_changes=schema_changes != "fail",
        keeps_columns=schema_changes == "ignore",
        follows_cascades=cascades == "copy",
        copy_tasks=max(0, copy_tasks),
        server=server,
        patterns=patterns_of(tables),
        exclude=patterns_of(exclude),
        aside=aside,
        given_url=url,
    )
    register_change_log(FORMAT, lambda options: MySQLChangeLog(_captures[options["capture"]]))
    define_log(name, FORMAT, f"The change log of the {server} capture {name}", log_retention, mode)
    for table in chosen:
        comment = f"The table {table.name} of the {server} capture {name}"
        properties = properties_of(table.name, table_properties)
        _define_table(
            name,
            datasets[table.name],
            table,
            comment,
            patterns_of(as_text),
            invalid_values,
            properties,
            keeps_columns=schema_changes == "ignore",
        )


def _define_table(
    capture: str,
    dataset: str,
    table: CapturedTable,
    comment: str,
    text_patterns: Sequence[str],
    policy: str,
    properties: Mapping[str, str],
    *,
    keeps_columns: bool,
) -> None:
    columns, invalid = [], []
    for column in table.columns:
        as_text = matches_any(f"{table.name}.{column.name}", text_patterns)
        is_key = column.name in table.keys
        # NULL in a key would make one row of several: there an invalid value raises at once.
        value = value_sql(column, table.name, as_text=as_text, invalid_is_null=not is_key)
        columns.append(f"{value} AS {quoted(column.name)}")
        problem = None if as_text or is_key else invalid_value_sql(column)
        if problem is not None:
            invalid.append(problem)
    define_table(
        dataset,
        log_table=f"{capture}_log",
        relation=table.name,
        keys=table.keys,
        columns=columns,
        comment=comment,
        invalid=invalid,
        invalid_values=policy,
        properties=properties,
        keeps_columns=keeps_columns,
    )
