"""Definitions of a capture's datasets: the log table, and the tables that are merged from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import APPLY_PREFIX, column_list
from tautochrone.model.lake import RESERVED_COLUMNS
from tautochrone.model.log_table import (
    CAPTURE_MODE,
    CHANGE_FILE,
    COPIED_FILE,
    LIGHT,
    LOG_RETENTION,
    parse_log_retention,
)
from tautochrone.model.names import quoted
from tautochrone.sources.capture.log_table import SPARK_SCHEMA

__all__ = [
    "check_columns",
    "check_datasets",
    "check_name",
    "check_policy",
    "check_properties",
    "dataset_name",
    "define_log",
    "define_table",
    "matches_any",
    "patterns_of",
    "properties_of",
    "require_own_names",
]

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_PREFIX = "__taut_"
_EVENT_COLUMNS = ("point", "sequence", "transaction", "operation", "unchanged", "snapshot")
"""Columns of the log by which events are merged; behind the prefix they cannot be columns of a table."""
_NO_EVENTS = ("completed", COPIED_FILE, CHANGE_FILE)
"""Operations of rows of the log table that are no changes themselves."""
_INVALID = f"{_PREFIX}invalid"
"""An event's values that the types of their columns do not have."""

_OF_EQUAL_ROWS = {
    # For these tables the log has an update that changes a row as a delete and an insert. A row that is still
    # an 'update' changes nothing, so its weight is 0.
    "tautochrone.apply.weight": f"CASE {_PREFIX}operation WHEN 'delete' THEN -1 "
    "WHEN 'update' THEN 0 ELSE 1 END",
    "tautochrone.apply.copied": f"{_PREFIX}operation = 'copied'",
}


def check_name(name: str) -> None:
    """
    Raises:
        DefinitionError: `CAPTURE_NAME_INVALID`.
    """
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            "CAPTURE_NAME_INVALID",
            f"{name!r} cannot be the name of a capture",
            hint="use up to 41 lower-case letters, digits and _: it names tables, and PostgreSQL's "
            "replication slot",
        )


def check_policy(capture: str, argument: str, value: str, policies: Sequence[str]) -> None:
    """
    Raises:
        DefinitionError: `CAPTURE_POLICY_UNKNOWN`.

    >>> check_policy("shop", "invalid_values", "null", ("fail", "null"))
    """
    if value not in policies:
        raise DefinitionError(
            "CAPTURE_POLICY_UNKNOWN",
            f"The capture {capture} has {argument}={value!r}",
            hint=f"it is {' or '.join(map(repr, policies))}",
        )


def dataset_name(capture: str, *names: str) -> str:
    """The name of a captured table in the lake, where a dot would end the name of a namespace.

    Args:
        names: of the table's schema, where it is needed, and of the table.

    >>> dataset_name("shop", "sales", "orders.old")
    'shop_sales_orders_old'
    """
    return "_".join((capture, *names)).replace(".", "_")


def check_datasets(capture: str, datasets: Sequence[tuple[str, str]]) -> None:
    """
    Args:
        datasets: each with the table of the database that it is for.

    Raises:
        DefinitionError: `CAPTURED_TABLE_NAME_TAKEN`: two would have one name.

    >>> check_datasets("shop", [("shop_orders", "public.orders"), ("shop_eu_orders", "eu.orders")])
    """
    users = {f"{capture}_log": "the capture's own log"}
    for dataset, relation in datasets:
        other = users.setdefault(dataset.lower(), relation)
        if other != relation:
            raise DefinitionError(
                "CAPTURED_TABLE_NAME_TAKEN",
                f"The table {relation} of the capture {capture} would be {dataset} in the lake, which is "
                f"{other}",
                hint=f"leave it out with exclude=[{relation!r}], or rename it in the database",
            )


def check_columns(capture: str, relation: str, columns: Sequence[str]) -> None:
    """
    Args:
        columns: names of all columns of a captured table.

    Raises:
        DefinitionError: `CAPTURED_COLUMN_NAME_TAKEN`: the lake uses one itself, or takes two for one.

    >>> check_columns("shop", "public.orders", ["id", "customer"])
    """
    users: dict[str, str] = {}
    for column in columns:
        name = column.lower()
        other = users.setdefault(name, column)
        if other != column:
            taken = f"two columns, {other} and {column}, whose names are one in the lake"
        elif name in RESERVED_COLUMNS or name.startswith(_PREFIX):
            taken = f"a column {column}, a name that the lake uses itself"
        else:
            continue
        raise DefinitionError(
            "CAPTURED_COLUMN_NAME_TAKEN",
            f"The table {relation} of the capture {capture} has {taken}",
            hint=f"leave the table out with exclude=[{relation!r}], or rename the column in the database",
        )


def require_own_names(capture: str, shared: Sequence[str]) -> None:
    """
    Args:
        shared: names, as schema and table joined by a dot, that two tables have.

    Raises:
        DefinitionError: `CAPTURED_TABLE_NAME_TAKEN`.

    >>> require_own_names("shop", [])
    """
    if shared:
        raise DefinitionError(
            "CAPTURED_TABLE_NAME_TAKEN",
            f"The capture {capture} has two tables that are both {shared[0]}: their names, or those of their "
            "schemas, have dots",
            hint=f"leave both out with exclude=[{shared[0]!r}], or rename one of them in the database",
        )


def patterns_of(patterns: str | Sequence[str]) -> Sequence[str]:
    """Arguments are one pattern or several."""
    return [patterns] if isinstance(patterns, str) else patterns


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_properties(
    capture: str, table_properties: Mapping[str, Mapping[str, str]], relations: Collection[str]
) -> None:
    """
    Args:
        table_properties: by pattern `schema.table`.
        relations: the captured tables of the database.

    Raises:
        DefinitionError: `CAPTURE_PROPERTIES_INVALID`: there is no pattern, a name without `*` is of no
            captured table, or a property is one of the capture's own.

    >>> check_properties("shop", {"public.orders": {"tautochrone.sinks": "mirror"}}, ["public.orders"])
    """
    for pattern, properties in table_properties.items():
        if not isinstance(properties, Mapping):
            raise DefinitionError(
                "CAPTURE_PROPERTIES_INVALID",
                f"The capture {capture} has table_properties with {pattern!r} and no table that it is for",
                hint=f'for all tables: table_properties={{"*.*": {{{pattern!r}: {properties!r}}}}}',
            )
        if not any(sign in pattern for sign in "*?[") and pattern not in relations:
            raise DefinitionError(
                "CAPTURE_PROPERTIES_INVALID",
                f"The capture {capture} has table_properties for {pattern!r}, which is no captured table",
                hint=f"captured are {', '.join(sorted(relations))}; a pattern with * may match none",
            )
        for name in properties:
            if name.lower().startswith(APPLY_PREFIX):
                raise DefinitionError(
                    "CAPTURE_PROPERTIES_INVALID",
                    f"The capture {capture} sets {name}, by which captured tables are merged",
                    hint="leave it out: the capture sets it itself",
                )


def properties_of(relation: str, table_properties: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The properties of a table: those of all patterns that match, later ones before earlier ones.

    >>> properties_of("eu.orders", {"eu.*": {"a": "1", "b": "1"}, "eu.orders": {"b": "2"}, "us.*": {}})
    {'a': '1', 'b': '2'}
    """
    properties: dict[str, str] = {}
    for pattern, of_pattern in table_properties.items():
        if matches_any(relation, [pattern]):
            properties |= of_pattern
    return properties


def define_log(name: str, format_name: str, comment: str, retention: str | None, mode: str) -> None:
    """The log table of a capture, over a stream that `sources.registry` knows by the format.

    Args:
        retention: how long it keeps its rows; None: all.
        mode: `full` or `light`.

    Raises:
        DefinitionError: `CAPTURE_POLICY_UNKNOWN`; `INVALID_LOG_RETENTION`.
    """
    check_policy(name, "mode", mode, ("full", LIGHT))
    properties = {"tautochrone.commit-time": "committed_at"}
    if mode == LIGHT:
        if retention is not None:
            raise DefinitionError(
                "INVALID_LOG_RETENTION",
                f"The capture {name} has mode='light', which keeps no log, and log_retention={retention!r}",
                hint="leave one of them out",
            )
        retention = "0s"
        properties[CAPTURE_MODE] = LIGHT
    if retention is not None:
        parse_log_retention(retention, f"the capture {name}")
        properties[LOG_RETENTION] = retention

    class Stream(DataSource):
        """Stands for the log in a query; Spark itself never reads it."""

        @classmethod
        def name(cls) -> str:
            return format_name

        def schema(self) -> StructType:
            return SPARK_SCHEMA

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            raise NotImplementedError("the log is read by the change log's own flow")

    SparkSession.active().dataSource.register(Stream)

    @dp.table(name=f"{name}_log", comment=comment, table_properties=properties)
    def log() -> DataFrame:
        return SparkSession.active().readStream.format(format_name).option("capture", name).load()


def define_table(
    dataset: str,
    *,
    log_table: str,
    relation: str,
    keys: Sequence[str],
    columns: Sequence[str],
    comment: str,
    invalid: Sequence[str],
    invalid_values: str,
    properties: Mapping[str, str],
    has_equal_rows: bool = False,
    keeps_columns: bool = False,
) -> None:
    """A table of the database: the last event of each key.

    Args:
        has_equal_rows: it has no key. The keys are all columns then, and rows may be equal.
        relation: schema and table, as in the log.
        columns: SQL over rows of the log table, with aliases.
        invalid: SQL of texts about values that the types of their columns do not have; NULL: there is none.
        invalid_values: the policy for them, `fail` or `null`.
        properties: of the lake's table, beside those by which it is merged.
        keeps_columns: once it exists it gets no new columns.
    """
    selected = [*columns, *(f"{column} AS {_PREFIX}{column}" for column in _EVENT_COLUMNS)]
    selected.append(f"{_list_of_invalid(invalid)} AS {_INVALID}")

    @dp.table(
        # A database's names may have hyphens.
        name=quoted(dataset),
        comment=comment,
        table_properties={
            **properties,
            "tautochrone.apply.keys": column_list(keys),
            "tautochrone.apply.sequence": f"{_PREFIX}point, {_PREFIX}sequence",
            "tautochrone.apply.operation": f"{_PREFIX}operation",
            "tautochrone.apply.delete": f"{_PREFIX}operation = 'delete'",
            "tautochrone.apply.truncate": f"{_PREFIX}operation = 'truncate'",
            "tautochrone.apply.transaction": f"{_PREFIX}transaction",
            "tautochrone.apply.snapshot": f"{_PREFIX}snapshot",
            "tautochrone.apply.unchanged": f"{_PREFIX}unchanged",
            "tautochrone.apply.invalid": _INVALID,
            "tautochrone.apply.invalid_values": invalid_values,
            "tautochrone.apply.dropped": ", ".join(
                [_INVALID, *(f"{_PREFIX}{column}" for column in _EVENT_COLUMNS)]
            ),
            "tautochrone.apply.relation": relation,
            "tautochrone.apply.relation_column": "relation",
            **(_OF_EQUAL_ROWS if has_equal_rows else {}),
            **({"tautochrone.apply.columns": "kept"} if keeps_columns else {}),
        },
    )
    def rows() -> DataFrame:
        events = SparkSession.active().readStream.table(log_table)
        of_table = (sf.col("relation") == relation) & ~sf.col("operation").isin(*_NO_EVENTS)
        return events.where(of_table).selectExpr(*selected)


def _list_of_invalid(invalid: Sequence[str]) -> str:
    """SQL: the texts that are not NULL. Nearly always there is none, and Spark would call a function for each
    row and text to find that out.

    >>> _list_of_invalid(["a"])
    'CASE WHEN coalesce(a) IS NOT NULL THEN array_compact(array(a)) ELSE CAST(array() AS ARRAY<STRING>) END'
    """
    none = "CAST(array() AS ARRAY<STRING>)"
    if not invalid:
        return none
    texts = ", ".join(invalid)
    return f"CASE WHEN coalesce({texts}) IS NOT NULL THEN array_compact(array({texts})) ELSE {none} END"
