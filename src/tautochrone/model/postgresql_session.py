"""What a session of PostgreSQL must not inherit from its server, database or role.

`ALTER SYSTEM`, `ALTER DATABASE … SET` and `ALTER ROLE … SET` change what statements mean and how values are
printed. Sources and sinks give each connection these values before its first statement.
`tests/sources/postgresql/test_session_settings.py` has the settings that cannot matter, each with its reason.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED_SETTINGS", "SESSION_SETTINGS", "refused_settings_sql", "session_sql"]

SESSION_SETTINGS: Mapping[str, str] = {
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


def session_sql(own: Mapping[str, str]) -> tuple[str, ...]:
    """Statements, which have one row at most.

    Args:
        own: settings of this kind of connection, beside or instead of `SESSION_SETTINGS`.

    >>> session_sql({"lock_timeout": "90s"})[0]
    "SET statement_timeout = '0'; SET search_path = pg_catalog, pg_temp"
    """
    settings = {**SESSION_SETTINGS, **own}
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
