"""Settings of a server change nothing that captures and the sink read or write.

Every variable that a session has is set by us, refused, or has a reason why it cannot matter; all that can be
set for the whole server are set to another value, and captures and sinks do the same as before.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pymysql
import pytest
from pymysql.converters import escape_string
from pyspark.sql import types as spark
from tests.sinks.benches import ORDERS, deliver
from tests.sinks.mariadb.benches import MariadbBench

from tautochrone.model.database_sessions import MARIADB_SETTINGS, MYSQL_SESSION_SETTINGS, MYSQL_SETTINGS
from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.sources.mysql.connection import address_of, connect, fetch
from tautochrone.sources.mysql.server import check_prerequisites
from tautochrone.sources.mysql.tables import captured_tables
from tautochrone.testing.sink_conformance import transaction
from tautochrone.testing.sqlite_sink import ListRows

from .conftest import Schema

_WITHOUT_MEANING = {
    "the connection says its character set, after which these follow, and our tables say theirs": (
        "character_set_*", "collation_*", "default_collation_for_utf8mb4", "character_set_collations",
    ),
    "how a query is done, not which rows it has": (
        "optimizer_*", "join_*", "eq_range_*", "expensive_subquery_limit",
        "in_predicate_conversion_threshold",
        "max_length_for_sort_data", "max_seeks_for_key", "max_rowid_filter_size", "mrr_*", "use_stat_tables",
        "histogram_*", "analyze_*", "secondary_engine_cost_threshold", "set_operations_buffer_size",
        "innodb_parallel_read_threads", "range_optimizer_max_mem_size", "rowid_merge_buff_size",
        "enable_secondary_engine_statistics", "big_tables", "old", "low_priority_updates",
        "information_schema_stats_expiry",
    ),
    "memory, disk and speed; where there is too little, a statement fails": (
        "*_buffer_size", "*_buff_size", "*_alloc_block_size", "*_prealloc_size", "max_heap_table_size",
        "tmp_*", "internal_tmp_mem_storage_engine", "aria_*", "myisam_*", "innodb_tmpdir", "innodb_ddl_*",
        "innodb_compression_default", "innodb_default_encryption_key_id", "column_compression_*",
        "max_session_mem_used", "connection_memory_*", "global_connection_memory_*", "parser_max_mem_size",
        "max_tmp_tables", "select_into_*", "tcp_nodelay", "thread_pool_*", "net_buffer_length",
        "net_retry_count", "default_table_encryption", "max_relay_log_size", "deadlock_*",
        "keep_files_on_create",
    ),
    # Values are read as columns, since functions of long ones are NULL.
    "what is longer is refused when it is sent, and received whatever it says": ("max_allowed_packet",),
    "connections that are refused or cut are a server that does not answer": (
        "max_user_connections", "interactive_timeout",
    ),
    "what the server writes of itself, and its messages": (
        "log_*", "long_query_time", "slow_query_log", "min_examined_row_limit", "profiling*", "sql_log_off",
        "lc_messages", "sql_notes", "sql_warnings", "note_verbosity", "max_error_count",
        "progress_report_time",
        "terminology_use_previous", "error_count", "warning_count", "statement_id", "histogram_*",
    ),
    "the connection does not ask for what these tell": ("session_track_*", "resultset_metadata"),
    "statements, functions and kinds of tables that we do not use": (
        "block_encryption_mode", "default_week_format", "default_regex_flags", "max_points_in_geometry",
        "windowing_use_high_precision", "end_markers_in_json", "explain_*", "standard_compliant_cte",
        "*_recursion_depth", "max_recursive_iterations", "*delayed*", "insert_id",
        "last_insert_id", "identity",
        "innodb_ft_*", "updatable_views_with_limit", "generated_random_password_length",
        "print_identified_with_as_hex", "old_passwords", "external_table_*",
        "restrict_fk_on_non_standard_key",
        "sql_generate_invisible_primary_key", "sql_require_primary_key", "enable_cascade_triggers",
        "show_create_table_skip_secondary_engine", "default_master_connection", "sql_slave_skip_counter",
        "rand_seed*", "timestamp", "query_cache_strip_comments", "query_cache_wlock_invalidate",
        "old_alter_table", "require_row_format",
    ),
    "a snapshot and READ COMMITTED, which the sink asks for, are the same with it": (
        "innodb_snapshot_isolation", "innodb_table_locks", "transaction_allow_batching",
    ),
    "a capture refuses versioned tables, and a sink's table has other columns when it is one": (
        "system_versioning_*",
    ),
    "a server that would make other tables refuses ours, which say their engine": ("enforce_storage_engine",),
    "how our own writes are logged; the server refuses what it cannot log": (
        "binlog_alter_two_phase", "binlog_annotate_row_events", "binlog_direct_non_transactional_updates",
        "binlog_rows_query_log_events", "binlog_transaction_compression*", "sql_log_bin", "gtid_*",
        "last_gtid",
        "server_id", "skip_*", "pseudo_*", "original_*", "immediate_server_version", "rbr_exec_mode",
        "xa_detach_on_prepare",
    ),
    "of the cluster; a node's log and snapshot are its own": ("wsrep_*", "group_replication_consistency"),
    "what the session is": ("external_user", "proxy_user", "in_transaction"),
}  # fmt: skip
_REFUSED = ("binlog_format", "binlog_row_image", "binlog_row_value_options")
"""By `check_server`."""
_SET_BY_OTHERS = (
    "show_gipk_in_create_table_and_information_schema",
    "innodb_lock_wait_timeout",
    "innodb_strict_mode",
)
_UNTOUCHED = (
    # Nobody could set them back, or statements fail for want of memory.
    "max_session_mem_used", "max_user_connections", "connection_memory_limit", "parser_max_mem_size",
    "global_connection_memory_tracking", "tmp_disk_table_size", "sort_buffer_size",
    "server_id", "innodb_tmpdir", "enforce_storage_engine",
    *_REFUSED,
)  # fmt: skip
_HOSTILE: Mapping[str, str] = {
    "sql_mode": "'ANSI_QUOTES,PIPES_AS_CONCAT,NO_BACKSLASH_ESCAPES,IGNORE_SPACE,HIGH_NOT_PRECEDENCE,"
    "PAD_CHAR_TO_FULL_LENGTH,REAL_AS_FLOAT,NO_UNSIGNED_SUBTRACTION'",
    "time_zone": "'+05:30'",
    "sql_select_limit": "1",
    "max_join_size": "1",
    "max_statement_time": "0.000001",
    "max_execution_time": "1",
    "completion_type": "'CHAIN'",
    "tx_isolation": "'READ-UNCOMMITTED'",
    "transaction_isolation": "'READ-UNCOMMITTED'",
    "default_storage_engine": "'MyISAM'",
    "default_tmp_storage_engine": "'MyISAM'",
    "lc_time_names": "'de_DE'",
    "lc_messages": "'de_DE'",
    "old_mode": "'ZERO_DATE_TIME_CAST'",
    "alter_algorithm": "'INSTANT'",
    "use_secondary_engine": "'FORCED'",
    "system_versioning_asof": "'2001-01-01 00:00:00'",
    "optimizer_switch": "'mrr=on,derived_merge=off,materialization=off'",
    "default_regex_flags": "'DOTALL,EXTENDED'",
    "wait_timeout": "1",
    "query_cache_type": "'DEMAND'",
    # Less than a blob in hexadecimal digits. The server does not find its way in a log with longer events.
    "max_allowed_packet": "2499584",
}
_SERVER_MODES = {
    "mariadb": "'ORACLE,EMPTY_STRING_IS_NULL,SIMULTANEOUS_ASSIGNMENT,TIME_ROUND_FRACTIONAL,"
    "PAD_CHAR_TO_FULL_LENGTH,NO_BACKSLASH_ESCAPES,REAL_AS_FLOAT,HIGH_NOT_PRECEDENCE'",
    "mysql": f"{_HOSTILE['sql_mode'][:-1]},TIME_TRUNCATE_FRACTIONAL'",
}


def session_variables(schema: Schema) -> dict[str, str]:
    """Those that a session has a value of its own of, which `SHOW` does not say."""
    values = {}
    for name, value in schema.rows("SHOW SESSION VARIABLES"):
        try:
            schema.run(f"SET SESSION {name} = @@SESSION.{name}")
        except pymysql.Error as error:
            # It is read-only, needs a right, or is of the server alone.
            if error.args[0] in (1229, 1193) or (error.args[0] == 1238 and not is_of_session(schema, name)):
                continue
        values[name] = value
    return values


def is_of_session(schema: Schema, name: str) -> bool:
    try:
        schema.rows(f"SELECT @@SESSION.{name}")
    except pymysql.Error:
        return False
    return True


def is_classified(name: str) -> bool:
    known = {*MYSQL_SESSION_SETTINGS, *MARIADB_SETTINGS, *MYSQL_SETTINGS, *_REFUSED, *_SET_BY_OTHERS}
    # Older names of the same.
    aliases = {"storage_engine": "default_storage_engine", "transaction_isolation": "tx_isolation"}
    patterns = [pattern for group in _WITHOUT_MEANING.values() for pattern in group]
    return aliases.get(name, name) in known or any(matches(name, pattern) for pattern in patterns)


def matches(name: str, pattern: str) -> bool:
    begin, star, end = pattern.partition("*")
    if pattern.startswith("*") and pattern.endswith("*") and len(pattern) > 1:
        return pattern.strip("*") in name
    return name.startswith(begin) and name.endswith(end) if star else name == pattern


def test_every_variable_of_a_session_is_classified(schema: Schema) -> None:
    unknown = [name for name in session_variables(schema) if not is_classified(name)]
    assert not unknown


def hostile_values(schema: Schema) -> dict[str, str]:
    """Another value of each variable that has one for the whole server."""
    values = {}
    for name, value in schema.rows("SHOW GLOBAL VARIABLES"):
        if name in _UNTOUCHED or not is_of_session(schema, name):
            continue
        other = _HOSTILE.get(name) or {"ON": "0", "OFF": "1"}.get(value)
        if other is None and value.replace(".", "").isdigit():
            other = "1"
        elif other is None and "latin1" not in value and name.startswith("character_set"):
            other = "latin1"
        elif other is None and name.startswith("collation"):
            other = "latin1_swedish_ci"
        if other is not None:
            values[name] = other
    values["sql_mode"] = _SERVER_MODES["mysql" if schema.is_mysql else "mariadb"]
    return values


@contextmanager
def hostile(schema: Schema) -> Iterator[dict[str, str]]:
    """Global settings are others, but for those that the server keeps."""
    before = dict(schema.rows("SHOW GLOBAL VARIABLES"))
    schema.run("SET SESSION wait_timeout = 28800")
    done = {}
    try:
        for name, value in hostile_values(schema).items():
            try:
                schema.run(f"SET GLOBAL {name} = {value}")
            except pymysql.Error:
                continue
            done[name] = value
        yield done
    finally:
        for name in done:
            value = before[name]
            is_number = value.replace(".", "").isdigit()
            literal = value if is_number else f"'{escape_string(value)}'"
            # What is shown of some is no value that they take.
            for text in (literal, "DEFAULT"):
                with suppress(pymysql.Error):
                    schema.run(f"SET GLOBAL {name} = {text}")
                    break


def prepare(schema: Schema) -> None:
    schema.run(
        "SET SESSION sql_mode = '', time_zone = '+00:00'",
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE v (id INT, k VARCHAR(20) CHARACTER SET cp1251, c CHAR(9), ts TIMESTAMP(3) NULL, "
        "f FLOAT, d DOUBLE, n DECIMAL(9, 3), b LONGBLOB, bin BINARY(5), e ENUM('a', '\\\\', 'c''d'), "
        "z INT(6) ZEROFILL, "
        "t TIME(2), day DATE, bits BIT(9), l LONGTEXT, p INT, PRIMARY KEY (k, id), "
        "FOREIGN KEY (p) REFERENCES p (id))",
        "INSERT INTO p VALUES (1), (2)",
        *map(insert, range(30)),
    )


def insert(number: int) -> str:
    size = 50_000 * number if number == 29 else number
    return (
        f"INSERT INTO v VALUES ({number}, '\u042f{number}\\\\', 'c{number} ', "
        f"'2024-05-05 01:02:03.{number}', "
        f"{number / 7}, {number / 3}, -{number}.125, REPEAT('x', {size}), 'b', {number % 3 + 1}, "
        f"{number}, '-12:{number}:00.5', '0000-00-00', {number}, REPEAT('\xe9', {size // 5}), 1)"
    )


def read_everything(schema: Schema) -> Any:
    """All that a capture asks for: the catalog, a copy, the log, what `doctor` says."""
    log = schema.change_log()
    position = log.begin("reader")
    schema.run("UPDATE v SET c = CONCAT(id), d = d + 1 WHERE id < 9")
    relation = f"{schema.name}.v"
    chunks = position.bulk.pending[relation]
    copied = [row for chunk in chunks for row in log.read_chunk(relation, chunk)[0]["columns"].to_pylist()]
    batch = log.read(position, 1_000)
    log.close()
    connection = connect(address_of(schema.server.server_url(), "test"))
    tables = captured_tables(connection, [f"{schema.name}.*"], (), "test")
    report = check_prerequisites(connection, "test", tables).partition(";")[0]
    connection.close()
    logged = sorted(map(str, batch.rows.select(["operation", "relation", "columns"]).to_pylist()))
    schema.run("UPDATE v SET d = d - 1 WHERE id < 9")
    return tables, report, sorted(map(str, copied)), logged


def test_captures_read_the_same_whatever_the_server_is_set_to(schema: Schema) -> None:
    prepare(schema)
    expected = read_everything(schema)
    assert (len(expected[2]), len(expected[3])) == (30, 9)
    with hostile(schema) as values:
        assert {"sql_select_limit", "sql_mode", "time_zone", "completion_type"} <= values.keys()
        tables, report, copied, logged = read_everything(schema)
    # Sizes are estimates.
    assert [(t.name, t.logged, t.keys) for t in tables] == [(t.name, t.logged, t.keys) for t in expected[0]]
    assert report == expected[1]
    assert copied == expected[2]
    assert logged == expected[3]


def test_a_session_has_the_values_that_we_say(schema: Schema) -> None:
    """Also where the server is set to others, and where it sets them itself for each connection."""
    own = MYSQL_SETTINGS if schema.is_mysql else MARIADB_SETTINGS
    address = address_of(schema.server.server_url(), "test")

    def of_connection() -> dict[str, str]:
        connection = connect(address)
        values = dict(fetch(connection, "SHOW SESSION VARIABLES"))
        connection.close()
        return {name: values[name] for name in {**MYSQL_SESSION_SETTINGS, **own}}

    expected = of_connection()
    schema.run("SET GLOBAL init_connect = 'SET sql_mode = ''ANSI_QUOTES'', sql_select_limit = 1'")
    try:
        with hostile(schema):
            assert of_connection() == expected
    finally:
        schema.run("SET GLOBAL init_connect = ''")


NOON = dt.datetime.fromisoformat("2024-01-02T12:00:00")
TYPES = spark.StructType(
    [
        spark.StructField("id", spark.LongType()),
        spark.StructField("word", spark.StringType()),
        spark.StructField("ts", spark.TimestampNTZType()),
        spark.StructField("d", spark.DoubleType()),
    ]
)


def test_a_sink_holds_the_same_whatever_the_server_is_set_to(schema: Schema) -> None:
    if schema.is_mysql:
        pytest.skip("the sink is MariaDB's")
    bench = MariadbBench()
    bench.columns = ("id", "word", "ts", "d")
    rows = [(n, f"w'\\{n} \"`", NOON + dt.timedelta(microseconds=n), n / 7) for n in range(40)]
    rows.append((99, None, None, None))
    try:
        with hostile(schema):
            sink: Any = bench.open()
            sink.fence(Fence(1))
            sink.ensure(ORDERS, TYPES, ["id"], Fence(1))
            deliver(sink, transaction(1), rows, columns=list(bench.columns))
            deliver(sink, transaction(2), [(7, "new", None, 1.5)], rows[5:8], columns=list(bench.columns))
            expected = [*rows[:5], *rows[8:], (7, "new", None, 1.5)]
            frame = ListRows(list(bench.columns), expected)
            assert sink.audit(ORDERS, CheckpointNumber(2)) == sink.digest(ORDERS, frame)
        assert sorted(bench.read(ORDERS)) == sorted(expected, key=lambda row: row[0])
    finally:
        bench.close()
