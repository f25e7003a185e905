"""The options of a sink of the format `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.sinks.common.options import (
    invalid_option,
    needs_package,
    positive_number,
    refuse_password,
    require_known,
    require_option,
)

__all__ = ["PostgresqlOptions", "postgresql_options"]

_NAMES = frozenset({"url", "user", "password", "schema", "chunk_rows", "key"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresqlOptions:
    """Options with their types.

    Attributes:
        url: a connection string of libpq.
        schema: has the mirrored tables; created if it is missing.
    """

    url: str
    user: str = ""
    password: str = field(default="", repr=False)
    schema: str = "lake"
    chunk_rows: int = 100_000


def postgresql_options(name: str, options: Mapping[str, str]) -> PostgresqlOptions:
    """Read the options of a sink.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> postgresql_options("mirror", {"url": "postgresql://reports@db.example/shop"}).schema
        'lake'
    """
    hint = "postgresql://user@host:5432/database?sslmode=verify-full, or host=… dbname=…"
    url = require_option(name, "postgresql", options, "url", hint)
    require_known(name, options, _NAMES)
    with needs_package(name, "psycopg", "postgres"):
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    try:
        parts = conninfo_to_dict(url)
    except ProgrammingError:
        # The error has the text in it, which may have a password.
        raise invalid_option(
            name, "has a url that is no connection string of PostgreSQL", f"Write {hint}."
        ) from None
    password = parts.get("password")
    refuse_password(name, str(password) if password else None)
    return PostgresqlOptions(
        url=options["url"],
        user=options.get("user", ""),
        password=options.get("password", ""),
        schema=options.get("schema", "lake"),
        chunk_rows=positive_number(name, options, "chunk_rows", 100_000, " of rows"),
    )
