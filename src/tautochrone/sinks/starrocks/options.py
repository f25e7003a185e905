"""The options of a sink of the format `starrocks`, and how it is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from tautochrone.model.sink import Sink
from tautochrone.sinks.common.options import (
    invalid_option_error,
    needs_package,
    positive_number,
    refuse_password,
    require_known,
    require_option,
)

__all__ = ["StarrocksOptions", "examine_starrocks_sink", "open_starrocks_sink", "starrocks_options"]

_NAMES = frozenset(
    {
        "url",
        "user",
        "password",
        "database",
        "sql_port",
        "ssl_ca",
        "replication_num",
        "chunk_rows",
        "transaction_timeout",
        "key",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StarrocksOptions:
    """Options with their types.

    Attributes:
        http_url: of a frontend, without user and path.
        host: of the frontend, also for statements.
        sql_port: of the MySQL protocol.
        database: has the mirrored tables; created if it is missing.
        ssl_ca: a file of certificates; both protocols then need TLS.
        replication_num: of new tables; None is the server's default.
        timeout_s: how long a transaction of StarRocks may be open.
        visible_wait_s: how long a commit waits until readers see it.
        pause_s: between two looks at an unfinished transaction.
    """

    http_url: str
    host: str
    sql_port: int = 9030
    user: str = "root"
    password: str = field(default="", repr=False)
    database: str = "lake"
    ssl_ca: str | None = None
    replication_num: int | None = None
    chunk_rows: int = 50_000
    timeout_s: int = 3600
    visible_wait_s: float = 120.0
    pause_s: float = 0.5


def starrocks_options(name: str, options: Mapping[str, str]) -> StarrocksOptions:
    """Read the options of a sink.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> starrocks_options("mirror", {"url": "http://taut@fe.example:8030/shop"}).database
        'shop'
    """
    hint = "http://user@frontend:8030/database"
    url = urlsplit(require_option(name, "starrocks", options, "url", hint))
    require_known(name, options, _NAMES)
    try:
        port = url.port or 8030
    except ValueError as error:
        raise invalid_option_error(
            name, f"cannot read the port of its url: {error}", f"Write {hint}"
        ) from error
    if url.scheme not in ("http", "https") or not url.hostname or url.query:
        raise invalid_option_error(name, f"cannot read the url {url.scheme}://…", f"Write {hint}")
    refuse_password(name, url.password)
    database = options.get("database") or unquote(url.path).strip("/") or "lake"
    if not re.fullmatch(r"[A-Za-z0-9_]+", database):
        raise invalid_option_error(
            name, f"has database = {database}", "Write letters, digits and underscores."
        )
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    return StarrocksOptions(
        http_url=f"{url.scheme}://{host}:{port}",
        host=url.hostname,
        sql_port=positive_number(name, options, "sql_port", 9030),
        user=options.get("user") or unquote(url.username or "") or "root",
        password=options.get("password", ""),
        database=database,
        ssl_ca=options.get("ssl_ca"),
        replication_num=positive_number(name, options, "replication_num", 1)
        if "replication_num" in options
        else None,
        chunk_rows=positive_number(name, options, "chunk_rows", 50_000, " of rows"),
        timeout_s=positive_number(name, options, "transaction_timeout", 3600, " of seconds"),
    )


def open_starrocks_sink(name: str, options: Mapping[str, str]) -> Sink:
    """Open a sink; of a server without its database, create the database.

    Raises:
        SinkError: what is wrong with the options, `SINK_PACKAGE_MISSING`, `SINK_NOT_REACHABLE`,
            or `SINK_SERVER_TOO_OLD`.
    """
    parsed = starrocks_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.starrocks.database import StarRocksDatabase
    from tautochrone.sinks.starrocks.client import TransactionClient
    from tautochrone.sinks.starrocks.sink import StarrocksSink

    return StarrocksSink(name, parsed, StarRocksDatabase(name, parsed), TransactionClient(name, parsed))


def examine_starrocks_sink(name: str, options: Mapping[str, str]) -> str:
    """Log in, and write nothing; a sentence about what answers.

    Raises:
        SinkError: as `open_starrocks_sink`, and `SINK_LOGIN_REFUSED`.
    """
    parsed = starrocks_options(name, options)
    with needs_package(name, "pymysql", "mysql"):
        from tautochrone.sinks.starrocks.database import StarRocksDatabase
    database = StarRocksDatabase(name, parsed)
    try:
        ((version,),) = database.query("SELECT current_version()")
    finally:
        database.close()
    return f"StarRocks {version} lets {parsed.user} in"
