"""The options of a sink of the format `postgresql`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tautochrone.errors import SinkError

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
    if "url" not in options:
        raise SinkError(
            "SINK_OPTION_MISSING",
            f"Sink {name}: postgresql needs the option url",
            hint="postgresql://user@host:5432/database?sslmode=verify-full",
        )
    for option in options:
        if option not in _NAMES:
            raise _invalid(name, f"has no option {option}", "Options: " + ", ".join(sorted(_NAMES)))
    url = urlsplit(options["url"])
    if url.scheme not in ("postgresql", "postgres"):
        raise _invalid(
            name, f"cannot read the url {url.scheme}://…", "Write postgresql://user@host/database."
        )
    if url.password:
        raise _invalid(
            name,
            "has a password in its url",
            f'Write [sinks.{name}.options] password = {{ env = "…" }} in tautochrone.toml.',
        )
    chunk_rows = options.get("chunk_rows", "100000")
    if not chunk_rows.isdigit() or int(chunk_rows) == 0:
        raise _invalid(name, f"has chunk_rows = {chunk_rows}", "Write a number of rows, 1 or more.")
    return PostgresqlOptions(
        url=options["url"],
        user=options.get("user", ""),
        password=options.get("password", ""),
        schema=options.get("schema", "lake"),
        chunk_rows=int(chunk_rows),
    )


def _invalid(name: str, problem: str, hint: str) -> SinkError:
    return SinkError("SINK_OPTION_INVALID", f"Sink {name} {problem}", hint=hint, sqlstate="22023")
