"""What a session of MariaDB or MySQL must not inherit from its server.

Global settings, `init_connect` and option files change what statements mean, how many rows they have, and how
values are printed. Sources and sinks give each connection these values by its first statement.
`tests/sources/mysql/test_session_settings.py` has the settings that cannot matter, each with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["MARIADB_SETTINGS", "MYSQL_SETTINGS", "SESSION_SETTINGS", "session_sql"]

SESSION_SETTINGS: Mapping[str, str] = {
    # How texts and names of statements are read.
    "sql_mode": "0",
    # Which rows a statement has.
    "sql_select_limit": "18446744073709551615",
    "sql_big_selects": "1",
    "max_join_size": "18446744073709551615",
    "sql_auto_is_null": "0",
    "sql_safe_updates": "0",
    # By so many bytes of its texts the answer of the catalog is sorted.
    "max_sort_length": "1024",
    # How values and names are printed.
    "time_zone": "'+00:00'",
    "sql_quote_show_create": "1",
    "group_concat_max_len": "1048576",
    "div_precision_increment": "4",
    "lc_time_names": "'en_US'",
    "sql_buffer_result": "0",
    # What a transaction is, and what ends it.
    "autocommit": "1",
    "completion_type": "0",
    "lock_wait_timeout": "86400",
    "net_read_timeout": "600",
    "net_write_timeout": "600",
    "wait_timeout": "28800",
    # What a table is that a statement makes, and what a row may be.
    "default_storage_engine": "'InnoDB'",
    "default_tmp_storage_engine": "'InnoDB'",
    "explicit_defaults_for_timestamp": "1",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    "auto_increment_increment": "1",
    "auto_increment_offset": "1",
}
MARIADB_SETTINGS: Mapping[str, str] = {
    "max_statement_time": "0",
    "idle_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
    "idle_write_transaction_timeout": "0",
    "tx_isolation": "'REPEATABLE-READ'",
    "tx_read_only": "0",
    "old_mode": "0",
    "query_cache_type": "0",
    "sql_if_exists": "0",
    "alter_algorithm": "0",
    "check_constraint_checks": "1",
}
MYSQL_SETTINGS: Mapping[str, str] = {
    "max_execution_time": "0",
    "transaction_isolation": "'REPEATABLE-READ'",
    "transaction_read_only": "0",
    "use_secondary_engine": "OFF",
    "show_create_table_verbosity": "0",
}
_SINCE_MYSQL_8_0_30 = "show_gipk_in_create_table_and_information_schema = 1"
"""Without it the catalog hides the first column of a table, which its rows in the log have."""


def session_sql(server: str, own: Mapping[str, str]) -> str:
    """One statement: what hinders statements, such as a limit of their time, ends with it.

    Args:
        server: what it says of its version.
        own: settings of this kind of connection, instead of these or beside them.

    >>> session_sql("11.4.2-MariaDB", {"wait_timeout": "60"}).count(", wait_timeout = ")
    1
    """
    # The number 0 stands for no modes, since '' is NULL in one of them.
    is_mariadb = "mariadb" in server.lower()
    settings = {**SESSION_SETTINGS, **(MARIADB_SETTINGS if is_mariadb else MYSQL_SETTINGS), **own}
    values = ", ".join(f"{name} = {value}" for name, value in settings.items())
    later = "" if is_mariadb else f" /*!80030 , {_SINCE_MYSQL_8_0_30} */"
    return f"SET NAMES utf8mb4 COLLATE utf8mb4_general_ci, SESSION {values}{later}"
