"""The options of a sink of the format `mariadb`, and how it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import (
    invalid_option_error,
    needs_package,
    positive_number,
    refuse_password,
    require_known,
    require_option,
)

__all__ = ["MariadbOptions", "examine_mariadb_sink", "mariadb_options", "open_mariadb_sink"]

_NAMES = frozenset({"url", "user", "password", "database", "chunk_rows", "key"})
_PARAMETERS = frozenset({"ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity", "unix_socket"})


@dataclass(frozen=True, slots=True, kw_only=True)
class MariadbOptions:
    """Options with their types.

    Attributes:
        connection: arguments of a connection, without user and password.
        database: has the mirrored tables; created if it is missing.
    """

    connection: Mapping[str, Any]
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = "lake"
    chunk_rows: int = 100_000


def mariadb_options(name: str, options: Mapping[str, str]) -> MariadbOptions:
    """Read the options of a sink.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> mariadb_options("mirror", {"url": "mariadb://reports@db.example:3306/shop"}).database
        'shop'
    """
    hint = "mariadb://user@host:3306/database?ssl_ca=…"
    url = urlsplit(require_option(name, "mariadb", options, "url", hint))
    require_known(name, options, _NAMES)
    try:
        port = url.port or 3306
    except ValueError as error:
        raise invalid_option_error(
            name, f"cannot read the port of its url: {error}", f"Write {hint}"
        ) from error
    parameters: dict[str, Any] = dict(parse_qsl(url.query, keep_blank_values=True))
    if url.scheme not in ("mariadb", "mysql"):
        raise invalid_option_error(name, f"cannot read the url {url.scheme}://…", f"Write {hint}")
    refuse_password(name, url.password)
    for parameter in sorted(parameters.keys() - _PARAMETERS):
        raise invalid_option_error(
            name, f"has {parameter} in its url", "Parameters: " + ", ".join(sorted(_PARAMETERS))
        )
    if "ssl_verify_identity" in parameters:
        text = parameters["ssl_verify_identity"].lower()
        parameters["ssl_verify_identity"] = text in ("1", "true", "yes")
    if "ssl_ca" in parameters:
        parameters["ssl_verify_cert"] = True
    return MariadbOptions(
        connection={"host": url.hostname or "127.0.0.1", "port": port, **parameters},
        user=options.get("user") or unquote(url.username or ""),
        password=options.get("password", ""),
        database=options.get("database") or unquote(url.path).strip("/") or "lake",
        chunk_rows=positive_number(name, options, "chunk_rows", 100_000, " of rows"),
    )


def open_mariadb_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of an empty server, create its database.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, or `SINK_NOT_REACHABLE`.
    """
    parsed = mariadb_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.mariadb.sink import MariadbSink
    return MariadbSink(name, parsed)


def observe_mariadb_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink only to look at it: the server refuses whatever would write.

    Raises:
        SinkError: as `open_mariadb_sink`; where something of the sink is missing, `SINK_OBJECT_MISSING`.
    """
    parsed = mariadb_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.mariadb.sink import MariadbSink
    return MariadbSink(name, parsed, only_looks=True)


def examine_mariadb_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_mariadb_sink`, and `SINK_LOGIN_REFUSED`.
    """
    parsed = mariadb_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.mariadb.database import MariaDBDatabase
    database = MariaDBDatabase(name, parsed)
    try:
        with database.autocommit() as cursor:
            cursor.execute("SELECT VERSION(), CURRENT_USER()")
            version, user = cursor.fetchone()
    finally:
        database.close()
    return f"MariaDB {version} lets {user} in"
