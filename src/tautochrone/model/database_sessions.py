"""Sessions of database servers: what they must not inherit, and why a server refused one.

Global settings, `init_connect` and option files of MariaDB or MySQL, and `ALTER SYSTEM`, `ALTER DATABASE …
SET` and `ALTER ROLE … SET` of PostgreSQL change what statements mean, how many rows they have, and how values
are printed. Sources and sinks give each connection the values of this module first.
`tests/sources/mysql/test_session_settings.py` and `tests/sources/postgresql/test_session_settings.py` have
the settings that cannot matter, each with its reason.

Drivers of sources and sinks ask here why a server refused a connection, by what it says and by the numbers of
its errors, so that both take the same refusals as final.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = [
    "MARIADB_SETTINGS",
    "MYSQL_LOGIN_REFUSED",
    "MYSQL_SESSION_SETTINGS",
    "MYSQL_SETTINGS",
    "MYSQL_UNKNOWN_DATABASE",
    "POSTGRESQL_SESSION_SETTINGS",
    "REFUSED_SETTINGS",
    "mysql_session_sql",
    "postgresql_database_is_missing",
    "postgresql_encoding_is_unknown",
    "postgresql_login_is_refused",
    "postgresql_session_sql",
    "refused_settings_sql",
]


MYSQL_SESSION_SETTINGS: Mapping[str, str] = {
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


def mysql_session_sql(server: str, own: Mapping[str, str]) -> str:
    """One statement: what hinders statements, such as a limit of their time, ends with it.

    Args:
        server: what it says of its version.
        own: settings of this kind of connection, instead of these or beside them.

    >>> mysql_session_sql("11.4.2-MariaDB", {"wait_timeout": "60"}).count(", wait_timeout = ")
    1
    """
    # The number 0 stands for no modes, since '' is NULL in one of them.
    is_mariadb = "mariadb" in server.lower()
    settings = {**MYSQL_SESSION_SETTINGS, **(MARIADB_SETTINGS if is_mariadb else MYSQL_SETTINGS), **own}
    values = ", ".join(f"{name} = {value}" for name, value in settings.items())
    later = "" if is_mariadb else f" /*!80030 , {_SINCE_MYSQL_8_0_30} */"
    return f"SET NAMES utf8mb4 COLLATE utf8mb4_general_ci, SESSION {values}{later}"


POSTGRESQL_SESSION_SETTINGS: Mapping[str, str] = {
    # Names mean the server's own functions, operators and types, whatever schemas somebody put before them.
    "search_path": "pg_catalog, pg_temp",
    # How texts of statements are read.
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "escape_string_warning": "off",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "xmloption": "content",
    # How values and names are printed.
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "quote_all_identifiers": "off",
    # Which rows a query has: with row security it fails instead of leaving out rows.
    "row_security": "off",
    "gin_fuzzy_search_limit": "0",
    "restrict_nonsystem_relation_kind": "",
    # What a transaction is, and what ends it.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "transaction_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "exit_on_error": "off",
    # Other kinds of tables may refuse updates.
    "default_table_access_method": "heap",
}
REFUSED_SETTINGS = ("ignore_checksum_failure", "zero_damaged_pages")
"""With one of these a query leaves out rows of damaged pages, or has wrong ones. Only superusers may set
them, so that a connection cannot take them back."""


def postgresql_session_sql(own: Mapping[str, str]) -> tuple[str, ...]:
    """Statements, which have one row at most.

    Args:
        own: settings of this kind of connection, beside or instead of `POSTGRESQL_SESSION_SETTINGS`.

    >>> postgresql_session_sql({"lock_timeout": "90s"})[0]
    "SET statement_timeout = '0'; SET search_path = pg_catalog, pg_temp"
    """
    settings = {**POSTGRESQL_SESSION_SETTINGS, **own}
    values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    # A server has not all of them: some came with later versions.
    known = f"FROM (VALUES {values}) AS s (name, value) WHERE current_setting(name, true) IS NOT NULL"
    return (
        # Together, so that no limit of before ends the session in between.
        f"SET statement_timeout = '{settings['statement_timeout']}'; "
        f"SET search_path = {settings['search_path']}",
        f"SELECT count(set_config(name, value, false)) {known}",
    )


def refused_settings_sql() -> str:
    """A query for the names of the settings with which nothing must be read, joined by commas."""
    names = ", ".join(f"('{name}')" for name in REFUSED_SETTINGS)
    return (
        "SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') "
        f"FROM (VALUES {names}) AS s (name) WHERE current_setting(name, true) = 'on'"
    )


MYSQL_LOGIN_REFUSED = frozenset(
    {
        1045,  # ER_ACCESS_DENIED_ERROR
        1130,  # ER_HOST_NOT_PRIVILEGED
        1698,  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
        1862,  # ER_MUST_CHANGE_PASSWORD_LOGIN
        3118,  # ER_ACCOUNT_HAS_BEEN_LOCKED of MySQL
        4151,  # ER_ACCOUNT_HAS_BEEN_LOCKED
    }
)
MYSQL_UNKNOWN_DATABASE = 1049
_LOGIN_REFUSED = re.compile(
    r"authentication failed for user|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r'|role "[^"]*" does not exist|is not permitted to log in|certificate authentication failed'
)
_DATABASE_MISSING = re.compile(r'FATAL: +database "[^"]*" does not exist')

_ENCODING_UNKNOWN = re.compile(r"FATAL: +conversion between \w+ and \w+ is not supported")


def postgresql_login_is_refused(sqlstate: str | None, text: str) -> bool:
    """Whether the server does not let the user in. libpq passes on the SQLSTATE of a refused connection not
    at all, only the text.

    >>> postgresql_login_is_refused(None, 'FATAL:  password authentication failed for user "ann"')
    True
    >>> postgresql_login_is_refused(None, "connection refused")
    False
    """
    return sqlstate.startswith("28") if sqlstate else bool(_LOGIN_REFUSED.search(text))


def postgresql_database_is_missing(sqlstate: str | None, text: str) -> bool:
    """Whether the server has no database of that name.

    >>> postgresql_database_is_missing(None, 'FATAL:  database "shop" does not exist')
    True
    """
    return sqlstate == "3D000" if sqlstate else bool(_DATABASE_MISSING.search(text))


def postgresql_encoding_is_unknown(text: str) -> bool:
    """Whether the server cannot give texts of the database as UTF-8 at all.

    >>> postgresql_encoding_is_unknown("FATAL:  conversion between UTF8 and MULE_INTERNAL is not supported")
    True
    """
    return bool(_ENCODING_UNKNOWN.search(text))
