"""The tables of a sink: where rows are stored, where they are staged, and the views that people read.

Of the mirrored table `orders` there are

- `taut_rows_orders`: every row that ever came (`_sign` 1) or went (`_sign` -1), with its publication (`_ck`);
- `orders`: the rows of the newest publication;
- `orders_at(checkpoint = N)`: the rows of an older one, as long as it is not folded.
- `taut_read_orders`, which both read: it groups the rows of partitions in which rows went, and no others.

A query sees one state of a ClickHouse table, taken when the query names it. `orders` reads the pointer before
that, as the argument of `orders_at`, so the rows of the publication that it reads are all there. In the same
way `orders_at` first finds the partitions in which rows went: later on there are no others up to its
publication.

What names of tables and columns ClickHouse can have is known before the first row is written.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyspark.sql import types as spark
from pyspark.sql.types import StructType

from tautochrone.errors import SinkError
from tautochrone.model.names import Fence, TableName
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.sink import Digest, Intent, TransactionId
from tautochrone.sinks.clickhouse.engines import SERVER_RUN_SQL, Engine, ServerRun
from tautochrone.sinks.clickhouse.options import ClickHouseOptions, server_options
from tautochrone.sinks.clickhouse.row_tables import TAG, RowTable, RowTables, comment_of, common_columns
from tautochrone.sinks.clickhouse.rows import AUDIT_PARTS, CHUNK, COUNTED, HIDDEN, NULLS, PUBLICATION, SIGN
from tautochrone.sinks.clickhouse.statements import name_sql, text_sql
from tautochrone.sinks.clickhouse.types import MirroredColumn, column_type
from tautochrone.sinks.common.errors import schema_unsupported_error
from tautochrone.sinks.common.existing import ExistingTable, TableToCompare
from tautochrone.sinks.common.mirrored import NameRules, mirror_name

__all__ = ["FOLDING_PREFIX", "ClickHouseTables", "Definitions", "check_table", "plain_name"]

_LONGEST_FILE = 255
_OF_TABLE = len("taut_rows1234567890b_") + len("..sql") + 36 + 30
"""What ClickHouse and the sink add to the name of a table in that of a file: a dropped one has its uuid, and
some more for servers that add other endings."""
_OF_COLUMN = 40
"""The same of a column, as in `x.null.cmrk3`."""
_VIRTUAL = ("_block_number", "_block_offset", "_part", "_part_data_version", "_part_index", "_part_offset",
            "_part_uuid", "_partition_id", "_partition_value", "_row_exists", "_sample_factor")  # fmt: skip
"""Older servers do not tell them."""
_UNKNOWN_SETTING = "115"
_CODE = re.compile(r"[Cc]ode: (\d+)")
_UNSUPPORTED = frozenset(
    map(str, (15, 16, 36, 39, 43, 44, 47, 50, 53, 57, 62, 69, 76, 79, 80, 122, 207, 352))
)
"""Codes by which the server says that it cannot have what a statement defines: a name or a type is wrong,
reserved, or there twice, a file's name is too long."""


def plain_name(table: TableName, database: str) -> str:
    """What a mirrored table is called in ClickHouse: no two tables have the same name.

    Example:
        >>> plain_name(TableName("lake", ("shop",), "orders"), "lake")
        'shop__orders'
    """
    room = _LONGEST_FILE - _OF_TABLE - len(_file_name(database))
    is_word = re.fullmatch(r"\w+", "".join((*table.namespace, table.table)), re.ASCII)
    # In the name of a file other characters have three for each byte.
    longest = max(30, room if is_word else room // 3)
    return mirror_name(table, NameRules(longest=longest, in_bytes=True, refused=r"\x00|_at$"))


class Definitions:
    """Runs the statements that define the table of a mirrored table and its views."""

    def __init__(self, name: str, engine: Engine, database: str) -> None:
        self._name = name
        self._engine = engine
        self._database = database
        self._has_long_names: bool | None = None

    def require_names(self, table: TableName, schema: Any) -> None:
        """Refuse columns with names that ClickHouse takes, and that mean something else there.

        Raises:
            SinkError: `SINK_SCHEMA_UNSUPPORTED`.
        """
        virtual = self._virtual_names() if any(name.startswith("_") for name in schema.names) else set()
        for name in schema.names:
            if name in virtual:
                raise schema_unsupported_error(
                    self._name, table, f"ClickHouse itself has a column {name} in it"
                )
            if len(_file_name(name)) + _OF_COLUMN > _LONGEST_FILE and not self._takes_long_names():
                raise schema_unsupported_error(self._name, table, f"the column name {name[:50]}… is too long")
        _refuse_names(self._name, table, schema)

    def run(self, table: TableName, statement: str) -> None:
        """Run a statement that defines something of a mirrored table.

        Raises:
            SinkError: `SINK_SCHEMA_UNSUPPORTED`.
        """
        try:
            self._engine.run(statement)
        except SinkError as error:
            code = _CODE.search(str(error))
            if error.error_class == "CLICKHOUSE_REFUSED" and code is not None and code[1] in _UNSUPPORTED:
                raise schema_unsupported_error(self._name, table, str(error)) from error
            raise

    def _virtual_names(self) -> set[str]:
        """The columns that every table has, as far as the server tells."""
        table = f"{name_sql(self._database)}.taut_fences"
        try:
            described = self._engine.rows(
                f"DESCRIBE TABLE {table} SETTINGS describe_include_virtual_columns = 1"
            )
        except SinkError as error:
            code = _CODE.search(str(error))
            if code is None or code[1] != _UNKNOWN_SETTING:
                raise
            return set(_VIRTUAL)
        return {*_VIRTUAL, *(str(row[0]) for row in described if row[0].startswith("_"))}

    def _takes_long_names(self) -> bool:
        if self._has_long_names is None:
            self._has_long_names = bool(
                self._engine.rows(
                    "SELECT 1 FROM system.merge_tree_settings "
                    "WHERE name = 'replace_long_file_name_to_hash' AND value = '1'"
                )
            )
        return self._has_long_names


def _refuse_names(sink: str, table: TableName, schema: Any) -> None:
    for name in schema.names:
        if not name or "\0" in name:
            raise schema_unsupported_error(sink, table, f"the name {name!r} of a column")
    # Arrays `n.x` and `n.y` are one structure, whose arrays have the same lengths.
    prefixes = Counter(
        field.name.partition(".")[0]
        for field in schema.fields
        if isinstance(field.dataType, (spark.ArrayType, spark.MapType)) and "." in field.name
    )
    for prefix, count in prefixes.items():
        if count > 1:
            problem = f"the arrays {prefix}.… would be columns of one nested structure"
            raise schema_unsupported_error(sink, table, problem)


def mirrored_column(sink: str, table: TableName, field: Any) -> MirroredColumn:
    """What a column of the lake's table is in ClickHouse.

    Raises:
        SinkError: `SINK_COLUMN_NAME_RESERVED`, `SINK_TYPE_UNSUPPORTED`.
    """
    if field.name in (*HIDDEN, "_partition_id") or field.name.startswith("_taut_"):
        raise SinkError(
            "SINK_COLUMN_NAME_RESERVED",
            f"Sink {sink}: {table} has a column {field.name}, a name that the sink itself uses",
            hint="Rename the column in the query of the dataset.",
            sqlstate="42939",
        )
    stored_type = column_type(sink, f"{table.table}.{field.name}", field.dataType)
    return MirroredColumn(field.name, stored_type, json.dumps(field.dataType.jsonValue()))


def check_table(
    name: str,
    options: Mapping[str, str],
    table: TableName,
    schema: Any,
    key: Sequence[str],  # noqa: ARG001
) -> str:
    """What a table is called in a sink of these options; see `adapters.check_mirrored_table`.

    Raises:
        SinkError: as `ClickHouseTables.ensure`, as far as it needs no server.
    """
    database = server_options(name, options)[0].database
    _refuse_names(name, table, schema)
    for field in schema.fields:
        mirrored_column(name, table, field)
    return f"{database}.{plain_name(table, database)}"


def _file_name(name: str) -> str:
    """As ClickHouse writes a name in that of a file."""
    return re.sub(rb"\W", b"%00", name.encode(), flags=re.ASCII).decode()


FOLDING_PREFIX = "taut_fold__"
_CHECKPOINT = "{checkpoint:UInt64}"
"""The parameter of the views."""
_CHUNKS_AT_ONCE = 10_000


class ClickHouseTables:
    """See the module docstring."""

    def __init__(self, name: str, engine: Engine, options: ClickHouseOptions) -> None:
        self._name = name
        self._engine = engine
        self._options = options
        self._columns: dict[TableName, list[MirroredColumn]] = {}
        self._definitions = Definitions(name, engine, options.database)
        self._row_tables = RowTables(engine, options.database)
        self._next: dict[TableName, RowTable] = {}
        """Those that the open transaction fills, and that take the place of others at its commit."""

    def plain_name(self, table: TableName) -> str:
        """What a mirrored table is called in ClickHouse."""
        return plain_name(table, self._options.database)

    @property
    def settings(self) -> Mapping[str, str]:
        """That are sent with every statement."""
        return self._engine.settings

    @property
    def chunk_bytes(self) -> int:
        return self._options.chunk_bytes

    def most_parts(self, tables: Sequence[TableName]) -> tuple[int, str]:
        """The highest number of unmerged parts in one partition, and the table that it is of."""
        names = ", ".join(text_sql(self.rows_name(table)) for table in tables)
        counts = self._engine.rows(
            "SELECT toUInt32(count()) AS parts, table FROM system.parts "
            f"WHERE active AND database = {text_sql(self._options.database)} AND table IN ({names}) "
            "GROUP BY table, partition_id ORDER BY parts DESC LIMIT 1"
        )
        return (int(counts[0][0]), str(counts[0][1])) if counts else (0, "")

    # -- what is mirrored -------------------------------------------------------------------------

    def ensure(self, table: TableName, schema: Any, fence: Fence) -> Reason | None:
        """Create the table and its views, or add the columns that are missing. Beside a table of which
        columns went or have another type, create the one that takes its place.

        Returns:
            Why there are two of them; see `model.sink.Sink.ensure`.

        Raises:
            SinkError: `SINK_COLUMN_NAME_RESERVED`, `SINK_TYPE_UNSUPPORTED`, `SINK_SCHEMA_UNSUPPORTED`;
                `SINK_NAME_TAKEN`.
        """
        self._definitions.require_names(table, schema)
        columns = [self._column(table, field) for field in schema.fields]
        self._next.pop(table, None)
        self._row_tables.forget(self.plain_name(table))
        self._require_own_names(table)
        self._drop_others(table, fence)
        existing = self._stored_columns(table)
        reason = _columns_changed(existing, columns)
        if reason is not None:
            self._next[table] = self._row_tables.next(self.plain_name(table), fence)
            self._create(table, columns)
            self._columns[table] = columns
            return reason
        if not existing:
            self._create(table, columns)
        names = {column.name for column in existing or columns}
        for column in columns:
            if column.name not in names:
                self._definitions.run(
                    table, f"ALTER TABLE {self.rows(table)} ADD COLUMN IF NOT EXISTS {_column_sql(column)}"
                )
        self._create_views(table, columns)
        self._columns[table] = columns
        return None

    def compare(self, target: TableToCompare) -> ExistingTable:
        """What there is of a table. Nothing is written.

        Raises:
            SinkError: as of `ensure`, as far as the types of columns say it.
        """
        table = target.table
        columns = [self._column(table, field) for field in target.schema.fields]
        self._row_tables.forget(self.plain_name(table))
        self._require_own_names(table)
        existing = self._stored_columns(table)
        present = {column.name for column in existing}
        return ExistingTable(
            table=table,
            name=f"{self._options.database}.{self.plain_name(table)}",
            is_absent=not existing,
            lacks=[column.name for column in columns if column.name not in present],
            rebuild=_columns_changed(existing, columns),
        )

    def attach(self, intent: Intent) -> None:
        """Another process, or another object, may have created tables that a transaction fills."""
        for table in intent.replaced:
            waiting = self._row_tables.waiting(self.plain_name(table), intent.transaction.fence)
            if waiting is not None and table not in self._next:
                self._next[table] = waiting
                self._columns.pop(table, None)

    def release(self) -> None:
        """No transaction is open."""
        for table in self._next:
            self._columns.pop(table, None)
        self._next.clear()
        self._row_tables.forget()

    def show_from(self, table: TableName, publication: int) -> None:
        """Let the views read the table that takes the place of another one, from this publication on. Readers
        see no difference before it is published. Repeatable."""
        following = self._next.get(table)
        if following is None:
            return
        plain = self.plain_name(table)
        shown = self._row_tables.shown(plain)
        comment = text_sql(comment_of(publication))
        self._engine.run(f"ALTER TABLE {self._qualified(following.name(plain))} MODIFY COMMENT {comment}")
        older, newer = (self._columns_of(table, rows.name(plain)) for rows in (shown, following))
        self._create_read_view(table, following, newer)
        expressions = common_columns(older, newer)
        before, after = (
            ", ".join(f"{expressions[number][side]} AS {name_sql(expressions[number][0])}"
                      for number in range(len(expressions)))
            for side in (1, 2)
        )  # fmt: skip
        self._create_reading_views(
            table,
            [name for name, *_ in expressions],
            f"SELECT {before} FROM {self._read_sql(table, shown)} WHERE {_CHECKPOINT} < {publication} "
            f"UNION ALL SELECT {after} FROM {self._read_sql(table, following, is_checked=False)} "
            f"WHERE {_CHECKPOINT} >= {publication}",
        )

    def settle(self, table: TableName, fence: Fence) -> None:
        """After a publication: the views read the shown table alone, and others are dropped. Repeatable."""
        plain = self.plain_name(table)
        self._next.pop(table, None)
        self._row_tables.forget(plain)
        self._create_views(table, self._stored_columns(table))
        self._drop_others(table, fence)

    def settle_all(self, tables: Collection[TableName], fence: Fence) -> None:
        """No transaction is open: settle the tables that need it."""
        if tables and self._row_tables.has_several():
            for table in tables:
                if self._row_tables.others(self.plain_name(table), fence):
                    self.settle(table, fence)

    def since(self, table: TableName) -> int:
        """The publication from which on the table of rows can tell what readers saw."""
        return self._row_tables.shown(self.plain_name(table)).since or 0

    def _drop_others(self, table: TableName, fence: Fence) -> None:
        plain = self.plain_name(table)
        for other in self._row_tables.others(plain, fence):
            self._engine.run(f"DROP VIEW IF EXISTS {self._qualified(other.view(plain))} SYNC")
            self.drop(other.name(plain))

    def lacks_views(self, table: TableName) -> bool:
        """Whether somebody dropped a view of a table."""
        plain = self.plain_name(table)
        read = self._row_tables.shown(plain).view(plain)
        names = ", ".join(text_sql(name) for name in (plain, f"{plain}_at", read))
        ((views,),) = self._engine.rows(
            "SELECT toUInt32(count()) FROM system.tables WHERE engine = 'View' "
            f"AND database = {text_sql(self._options.database)} AND name IN ({names})"
        )
        return int(views) < 3

    def restore_views(self, table: TableName) -> None:
        """Create the views of a table again."""
        self._require_own_names(table)
        self._create_views(table, self._stored_columns(table))

    def columns(self, table: TableName) -> list[MirroredColumn]:
        """The columns of a table, as the sink stores them."""
        if table not in self._columns:
            self._columns[table] = self._stored_columns(table)
        return self._columns[table]

    def shard_key(self, table: TableName) -> list[str]:
        """The columns of the option `shard_by`; none for all columns."""
        return [
            name.strip() for name in self._options.shard_by.get(table.table, "").split(",") if name.strip()
        ]

    def rows(self, table: TableName) -> str:
        """The table of rows, as SQL: the one that the open transaction fills, or that readers see."""
        return self._qualified(self.rows_name(table))

    def rows_name(self, table: TableName) -> str:
        plain = self.plain_name(table)
        return (self._next.get(table) or self._row_tables.shown(plain)).name(plain)

    def forget(self, table: TableName) -> None:
        """Somebody changed what there is of a table."""
        self._row_tables.forget(self.plain_name(table))

    def mirrored(self) -> list[TableName]:
        """The tables that were used through this object."""
        return sorted((table for table, columns in self._columns.items() if columns), key=str)

    def visible_sql(self, table: TableName, publication: int | str) -> str:
        """The condition on the rows that count at a publication."""
        replaced = self.replaced_sql(table, publication)
        return f"{PUBLICATION} <= {publication} AND {PUBLICATION} >= {replaced}"

    def replaced_sql(self, table: TableName, publication: int | str) -> str:
        """From which publication on rows count at another one, as an expression.

        People read the views with settings of their own, in some of which the maximum of nothing is NULL.
        """
        return (
            f"ifNull((SELECT max(publication) FROM {self._qualified('taut_replaced')} "
            f"WHERE name = {text_sql(str(table))} AND publication <= {publication}), 0)"
        )

    def _column(self, table: TableName, field: Any) -> MirroredColumn:
        return mirrored_column(self._name, table, field)

    def _require_own_names(self, table: TableName) -> None:
        """Views are replaced: refuse where something else has the name of one, such as a table of the user or
        the `orders_at` of another mirrored table.

        Raises:
            SinkError: `SINK_NAME_TAKEN`.
        """
        plain = self.plain_name(table)
        # A view of ours names what it reads: any table of rows of this name, also one that somebody dropped.
        # ClickHouse puts backticks only around names that need them: the name is looked for without.
        view_at, rows = (re.escape(name_sql(name)[1:-1]) for name in (f"{plain}_at", plain))
        sources = {plain: view_at, f"{plain}_at": rf"taut_rows({TAG})?_{rows}"}
        for view, source in sources.items():
            own = f"engine = 'View' AND match(create_table_query, {text_sql(source)})"
            others = self._engine.rows(
                f"SELECT engine FROM system.tables WHERE database = {text_sql(self._options.database)} "
                f"AND name = {text_sql(view)} AND NOT ({own})"
            )
            if others:
                raise SinkError(
                    "SINK_NAME_TAKEN",
                    f"Sink {self._name}: {table} is shown as {view}, and the database "
                    f"{self._options.database} has something else of this name ({others[0][0]})",
                    hint="Give the sink another database (option database), or rename the dataset.",
                    parameters={"sink": self._name, "table": str(table)},
                    sqlstate="42P07",
                )

    def _stored_columns(self, table: TableName) -> list[MirroredColumn]:
        return self._columns_of(table, self.rows_name(table))

    def _columns_of(self, table: TableName, rows_name: str) -> list[MirroredColumn]:
        """The columns of the lake's table; their Spark types are the comments of ClickHouse's columns."""
        listed = self._engine.rows(
            f"SELECT name, comment FROM system.columns WHERE database = {text_sql(self._options.database)} "
            f"AND table = {text_sql(rows_name)} ORDER BY position"
        )
        fields = [
            {"name": name, "type": json.loads(comment), "nullable": True, "metadata": {}}
            for name, comment in listed
            if name not in HIDDEN
        ]
        schema = StructType.fromJson({"type": "struct", "fields": fields})
        return [self._column(table, field) for field in schema.fields]

    def _create(self, table: TableName, columns: Sequence[MirroredColumn]) -> None:
        listed = [_column_sql(column) for column in columns]
        listed += [f"{name} {type_sql}" for name, type_sql in HIDDEN.items()]
        # Most parts hold the rows of few publications: reads of one publication skip the others.
        listed.append(f"INDEX taut_publication {PUBLICATION} TYPE minmax GRANULARITY 1")
        # To find out whether rows went, only parts are read in which some did.
        listed.append(f"INDEX taut_sign {SIGN} TYPE minmax GRANULARITY 1")
        partition = self._options.partition_by.get(table.table)
        self._definitions.run(
            table,
            f"CREATE TABLE IF NOT EXISTS {self.rows(table)} ({', '.join(listed)}) ENGINE = MergeTree"
            + (f" PARTITION BY {partition}" if partition else "")
            + f" ORDER BY ({self._options.order_by.get(table.table) or 'tuple()'})"
            # A table that remembers inserts would drop rows that are staged again.
            + " SETTINGS allow_nullable_key = 1, non_replicated_deduplication_window = 0"
            + (f" COMMENT {text_sql(comment_of(None))}" if table in self._next else ""),
        )

    def _create_views(self, table: TableName, columns: Sequence[MirroredColumn]) -> None:
        shown = self._row_tables.shown(self.plain_name(table))
        self._create_read_view(table, shown, columns)
        names = [column.name for column in columns]
        listed = ", ".join(map(name_sql, names))
        self._create_reading_views(table, names, f"SELECT {listed} FROM {self._read_sql(table, shown)}")

    def _create_read_view(
        self, table: TableName, row_table: RowTable, columns: Sequence[MirroredColumn]
    ) -> None:
        """The view of one table of rows at a publication."""
        plain = self.plain_name(table)
        read, rows = self._qualified(row_table.view(plain)), self._qualified(row_table.name(plain))
        names = ", ".join(name_sql(column.name) for column in columns)
        grouped = f"{names}, {NULLS}"
        condition = self.visible_sql(table, _CHECKPOINT)
        has_changed = "has({changed:Array(String)}, _partition_id)"
        self._definitions.run(
            table,
            f"CREATE OR REPLACE VIEW {read} AS SELECT {names} FROM {rows} "
            f"WHERE NOT {has_changed} AND {condition} UNION ALL SELECT {names} FROM "
            f"(SELECT {grouped}, sum(toInt64({SIGN})) AS _taut_copies FROM {rows} "
            f"WHERE {has_changed} AND {condition} GROUP BY {grouped} HAVING _taut_copies > 0) "
            "ARRAY JOIN range(toUInt64(_taut_copies)) AS _taut_copy",
        )

    def _read_sql(self, table: TableName, row_table: RowTable, *, is_checked: bool = True) -> str:
        """What `orders_at` reads of one table of rows.

        Args:
            is_checked: it refuses checkpoints that are no longer kept.
        """
        plain = self.plain_name(table)
        read, rows = self._qualified(row_table.view(plain)), self._qualified(row_table.name(plain))
        changed = (
            f"assumeNotNull((SELECT groupUniqArray(_partition_id) FROM {rows} "
            f"WHERE {SIGN} < 0 AND {PUBLICATION} <= {_CHECKPOINT}))"
        )
        if is_checked:
            folded = f"ifNull((SELECT max(publication) FROM {self._qualified('taut_folded')}), 0)"
            oldest = f"greatest({folded}, {row_table.since})" if row_table.since else folded
            is_gone = f"{_CHECKPOINT} < {oldest}"
            changed = (
                f"(SELECT if(throwIf({is_gone}, 'this checkpoint is no longer kept') = 0, {changed}, []))"
            )
        return f"{read}(checkpoint = {_CHECKPOINT}, changed = {changed})"

    def _create_reading_views(self, table: TableName, names: Sequence[str], query: str) -> None:
        """The views that people read; `query` is that of a checkpoint."""
        plain = self.plain_name(table)
        view, view_at = self._qualified(plain), self._qualified(f"{plain}_at")
        self._definitions.run(table, f"CREATE OR REPLACE VIEW {view_at} AS {query}")
        newest = (
            f"SELECT publication FROM {self._qualified('taut_published')} "
            "ORDER BY fence DESC, publication DESC LIMIT 1"
        )
        listed = ", ".join(map(name_sql, names))
        self._definitions.run(
            table,
            f"CREATE OR REPLACE VIEW {view} AS SELECT {listed} FROM {view_at}"
            f"(checkpoint = ifNull(({newest}), 0))",
        )

    # -- what is staged ---------------------------------------------------------------------------

    def staging_name(self, transaction: TransactionId, table: TableName, fence: Fence) -> str:
        """The name of a staging table: of one table, transaction and owner."""
        return f"{transaction}__{_short_hash(table)}__{fence}"

    def folding_name(self, table: TableName, fence: Fence) -> str:
        """The name of the folding table: of one table and owner."""
        return f"{FOLDING_PREFIX}{_short_hash(table)}__{fence}"

    def create_staging(self, staging: str, table: TableName, *, is_new: bool = False) -> None:
        """Create an empty staging table, in the place of an older one unless its name is new."""
        if not is_new:
            self.drop(staging)
        self._engine.run(f"CREATE TABLE {self._qualified(staging)} AS {self.rows(table)}")

    def staging_tables(self, transaction: TransactionId | None = None) -> list[str]:
        """The names of the staging tables, of one transaction or of all."""
        prefix = "taut_" if transaction is None else f"{transaction}__"
        names = self._engine.rows(
            f"SELECT name FROM system.tables WHERE database = {text_sql(self._options.database)} "
            f"AND startsWith(name, {text_sql(prefix)}) AND match(name, '__[0-9a-f]{{8}}__[0-9]+$') "
            f"AND NOT match(name, '^taut_(rows|read)({TAG})?_')"
        )
        return [name for (name,) in names]

    def drop(self, staging: str) -> None:
        self._engine.run(f"DROP TABLE IF EXISTS {self._qualified(staging)} SYNC")

    def rename(self, staging: str, name: str) -> None:
        self._engine.run(f"RENAME TABLE {self._qualified(staging)} TO {self._qualified(name)}")

    def move(self, staging: str, partition: str, table: TableName) -> None:
        self._engine.run(
            f"ALTER TABLE {self._qualified(staging)} MOVE PARTITION ID {text_sql(partition)} "
            f"TO TABLE {self.rows(table)}"
        )

    def insert(self, staging: str, rows: Any, columns: Sequence[MirroredColumn]) -> None:
        types = [*(column.type.sql for column in columns), *HIDDEN.values()]
        self._engine.insert(self._qualified(staging), rows, types)

    # -- content ----------------------------------------------------------------------------------

    def staged_digests(
        self, staging: str, table: TableName, chunks: Collection[int] | None = None
    ) -> list[tuple[int, str, Digest]]:
        """The rows of a staging table by number of the chunk and partition; of all chunks or of these."""
        condition = ""
        if chunks is not None and len(chunks) <= _CHUNKS_AT_ONCE:
            condition = f"WHERE {CHUNK} IN ({', '.join(map(str, sorted(chunks)))}) "
        digests = self._engine.rows(
            f"SELECT {CHUNK}, _partition_id, toString(count()), {self._hash(table)} "
            f"FROM {self._qualified(staging)} {condition}GROUP BY {CHUNK}, _partition_id"
        )
        return [(int(number), partition, _digest(rows, text)) for number, partition, rows, text in digests]

    def counted_digests(
        self, staging: str, table: TableName, hashed: Collection[int]
    ) -> tuple[ServerRun | None, list[tuple[int, str, Digest]]]:
        """`staged_digests` without hashes but those of some chunks, and the server that counted, unless it
        has no rows."""
        counts = self._engine.rows(
            f"SELECT {CHUNK}, _partition_id, toString(count()), {SERVER_RUN_SQL} "
            f"FROM {self._qualified(staging)} GROUP BY {CHUNK}, _partition_id"
        )
        digests = {
            (int(number), partition): Digest(int(rows), COUNTED) for number, partition, rows, *_ in counts
        }
        if hashed:
            for number, partition, digest in self.staged_digests(staging, table, hashed):
                if number in hashed:
                    digests[number, partition] = digest
        run = ServerRun(*map(int, counts[0][3:])) if counts else None
        return run, [(*key, digest) for key, digest in digests.items()]

    def staged_chunks(self, staging: str) -> set[int]:
        """The numbers of the chunks of a staging table."""
        numbers = self._engine.rows(f"SELECT DISTINCT {CHUNK} FROM {self._qualified(staging)}")
        return {int(number) for (number,) in numbers}

    def delete_chunks(self, staging: str, numbers: Sequence[int]) -> None:
        """Delete chunks of a staging table."""
        # The server refuses statements of more than 256 KiB.
        for start in range(0, len(numbers), _CHUNKS_AT_ONCE):
            listed = ", ".join(map(str, numbers[start : start + _CHUNKS_AT_ONCE]))
            self._engine.run(
                f"ALTER TABLE {self._qualified(staging)} DELETE WHERE {CHUNK} IN ({listed}) "
                "SETTINGS mutations_sync = 2"
            )

    def partition_digests(
        self, source: str, table: TableName, publication: int | None = None, *, with_hash: bool
    ) -> dict[str, tuple[int, str]]:
        """By partition the number and the hash of the rows of a publication, or of a whole staging table.

        Args:
            with_hash: without it all hashes are `COUNTED`.
        """
        hash_sql = self._hash(table) if with_hash else text_sql(COUNTED)
        condition = "" if publication is None else f"WHERE {PUBLICATION} = {publication} "
        counted = self._engine.rows(
            f"SELECT _partition_id, toString(count()), {hash_sql} FROM {source} {condition}"
            "GROUP BY _partition_id"
        )
        if not with_hash:
            return {partition: (int(rows), COUNTED) for partition, rows, _ in counted}
        digests = {partition: _digest(rows, text) for partition, rows, text in counted}
        return {partition: (digest.rows, digest.hash) for partition, digest in digests.items()}

    def qualified_staging(self, staging: str) -> str:
        return self._qualified(staging)

    def net_digests(
        self, source: str, table: TableName, floor: int, partition: str | None = None
    ) -> dict[bool, tuple[str, str]]:
        """Net rows and hash of those that count at the floor, and of those after it.

        Args:
            partition: that alone; None: all of the table `source`.
        """
        condition = "" if partition is None else f" AND _partition_id = {text_sql(partition)}"
        visible = self.visible_sql(table, floor)
        digests = self._engine.rows(
            f"SELECT toUInt8({PUBLICATION} > {floor}) AS _taut_later, toString(sum(toInt64({SIGN}))), "
            f"{self._hash(table)}, toString(countIf({PUBLICATION} > {floor})) FROM {source} "
            f"WHERE ({PUBLICATION} > {floor} OR {visible}){condition} GROUP BY _taut_later"
        )
        # Rows that cancel each other leave none behind.
        return {
            bool(later): (rows, text)
            for later, rows, text, count in digests
            if (rows, text, count) != ("0",) * 3
        }

    def audit(self, table: TableName, publication: int) -> dict[str, Digest]:
        """By part the rows that count at a publication."""
        digests = self._engine.rows(
            f"SELECT toString(reinterpretAsUInt8(substring(_taut_hash, 9, 1)) % {AUDIT_PARTS}) AS _taut_part,"
            " toString(sum(_taut_sign)), toString(sum(toInt64(_taut_sign) * "
            "reinterpretAsInt64(substring(_taut_hash, 1, 8)))) "
            f"FROM ({self.row_hashes_sql(table, publication)}) GROUP BY _taut_part"
        )
        audited = {part: _digest(rows, text) for part, rows, text in digests}
        return {part: digest for part, digest in audited.items() if digest != Digest(0, f"{0:016x}")}

    def row_hashes_sql(self, table: TableName, publication: int, *, with_columns: bool = False) -> str:
        """A query of the rows that count at a publication: `_taut_hash`, `_taut_sign`, the lake's columns."""
        # A column of the user may have any name that does not begin with _taut_.
        names = (
            "".join(f", {name_sql(column.name)}" for column in self.columns(table)) if with_columns else ""
        )
        return (
            f"SELECT {self._row_hash(table)} AS _taut_hash, {SIGN} AS _taut_sign{names} "
            f"FROM {self.rows(table)} WHERE {self.visible_sql(table, publication)}"
        )

    def _row_hash(self, table: TableName) -> str:
        texts = [column.type.text(name_sql(column.name)) for column in self.columns(table)]
        texts.append(f"concat(toString(length({NULLS})), ':', {NULLS})")
        # `concat` of one argument is refused by older servers.
        return "MD5(concat('', " + ", ".join(texts) + "))"

    def _hash(self, table: TableName) -> str:
        number = f"reinterpretAsInt64(substring({self._row_hash(table)}, 1, 8))"
        return f"toString(sum(toInt64({SIGN}) * {number}))"

    def _qualified(self, name: str) -> str:
        return f"{name_sql(self._options.database)}.{name_sql(name)}"


def _columns_changed(existing: Sequence[MirroredColumn], columns: Sequence[MirroredColumn]) -> Reason | None:
    """Why rows with these columns need another table."""
    types = {column.name: column.type.sql for column in columns}
    changed = [column.name for column in existing if types.get(column.name) != column.type.sql]
    return Reason.of(ReasonCode.SINK_TABLE_REBUILT, columns=", ".join(changed)) if changed else None


def _short_hash(table: TableName) -> str:
    return hashlib.sha256(str(table).encode()).hexdigest()[:8]


def _column_sql(column: MirroredColumn) -> str:
    return f"{name_sql(column.name)} {column.type.sql} COMMENT {text_sql(column.spark_type)}"


def _digest(rows: str, total: str) -> Digest:
    return Digest(int(rows), f"{int(total) % 2**64:016x}")
