"""The options of sinks and participants of the format `clickhouse`: one value for each server in `url`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from tautochrone.errors import SettingsError
from tautochrone.sinks.common.options import (
    invalid_option_error,
    positive_number,
    refuse_password,
    require_known,
    require_option,
    whole_number,
)

__all__ = ["ClickHouseOptions", "clickhouse_options", "participant_options", "server_options"]


_EMBEDDED_HOST = "embedded"
_TLS = ("tls_ca", "tls_certificate", "tls_key")
_NAMES = frozenset(
    {
        *("url", "user", "password", "database", "key", *_TLS),
        *("chunk_rows", "chunk_bytes", "task_rows", "compare"),
        *("max_parts", "keep_checkpoints", "keep_minutes"),
    }
)
_COMPARE = ("auto", "hash", "count")
_TABLE_PREFIXES = ("order_by.", "partition_by.", "shard_by.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickHouseOptions:
    """Options with their types.

    Attributes:
        folder: of the embedded engine; empty for a server.
        database: created if it is missing.
        tls_ca: a file with the certificates of authorities to trust; empty for the usual ones.
        tls_certificate: a file with the certificate that the client shows, and `tls_key` that of its key.
        chunk_rows: rows of one insert at most. Each chunk is a part, which costs to move and to look at.
        chunk_bytes: about how many bytes one insert has at most.
        task_rows: more changed rows of a table than this are inserted by Spark's tasks; 0: never.
        compare: how staged rows are compared with what was sent: see `comparison`.
        max_parts: with more parts in a partition of a table, deliveries wait until some are merged.
        keep_checkpoints: so many of the newest delivered checkpoints can be read by number.
        keep_minutes: so long, also older ones.
        order_by: the sorting key by name of the mirrored table, as ClickHouse expressions.
        partition_by: the same for the partition key.
        shard_by: by name of the table the columns that say to which of several servers a row goes.
    """

    folder: str = ""
    host: str = ""
    port: int = 0
    is_encrypted: bool = False
    user: str = "default"
    password: str = field(default="", repr=False)
    database: str = "lake"
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    chunk_rows: int = 500_000
    chunk_bytes: int = 32 * 1024 * 1024
    task_rows: int = 100_000
    compare: str = "auto"
    max_parts: int = 300
    keep_checkpoints: int = 100
    keep_minutes: int = 10
    order_by: Mapping[str, str] = field(default_factory=dict)
    partition_by: Mapping[str, str] = field(default_factory=dict)
    shard_by: Mapping[str, str] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"{self.folder or f'{self.host}:{self.port}'}/{self.database}"


def server_options(name: str, options: Mapping[str, str]) -> list[ClickHouseOptions]:
    """Read the options of a sink, one value for each server that `url` lists.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> len(server_options("mirror", {"url": "clickhouse://one/shop, clickhouse://two/shop"}))
        2
    """
    urls = [url.strip() for url in options.get("url", "").split(",") if url.strip()]
    servers = [clickhouse_options(name, {**options, "url": url}) for url in urls]
    if not servers:
        return [clickhouse_options(name, options)]
    if len({server.address for server in servers}) < len(servers):
        raise invalid_option_error(
            name, "names a server twice in its url", "Each server has a part of the rows."
        )
    return servers


def clickhouse_options(name: str, options: Mapping[str, str]) -> ClickHouseOptions:
    """Read the options of a sink.

    Raises:
        SinkError: `SINK_OPTION_MISSING`, `SINK_OPTION_INVALID`.

    Example:
        >>> clickhouse_options("mirror", {"url": "clickhouse://reports@ch.example:8123/shop"}).database
        'shop'
    """
    hint = "clickhouse://user@host:8123/database, clickhouses://… with TLS, or clickhouse://embedded/folder"
    url = urlsplit(require_option(name, "clickhouse", options, "url", hint))
    of_tables = "".join(f", {prefix}TABLE" for prefix in _TABLE_PREFIXES)
    require_known(name, options, _NAMES, _TABLE_PREFIXES, note=of_tables)
    if url.scheme not in ("clickhouse", "clickhouses") or not url.hostname:
        raise invalid_option_error(
            name, f"cannot read the url {url.scheme}://…", "Write clickhouse://user@host:8123/database."
        )
    refuse_password(name, url.password)
    if url.scheme != "clickhouses" and any(options.get(option) for option in _TLS):
        raise invalid_option_error(
            name, "has options of TLS without TLS", "Write clickhouses://… in its url."
        )
    if options.get("tls_key") and not options.get("tls_certificate"):
        raise invalid_option_error(name, "has tls_key without tls_certificate", "Name the file of both.")
    is_embedded = url.hostname == _EMBEDDED_HOST and url.port is None
    path = unquote(url.path)
    if is_embedded and not path.strip("/"):
        hint = "Write clickhouse://embedded/folder; //folder is absolute."
        raise invalid_option_error(name, "names no folder", hint)
    return ClickHouseOptions(
        # One slash ends the host, so an absolute path has two.
        folder=path[1:] if is_embedded else "",
        host="" if is_embedded else url.hostname,
        port=url.port or (8443 if url.scheme == "clickhouses" else 8123),
        is_encrypted=url.scheme == "clickhouses",
        user=options.get("user") or unquote(url.username or "default"),
        password=options.get("password", ""),
        database=options.get("database") or ("" if is_embedded else path.strip("/")) or "lake",
        chunk_rows=positive_number(name, options, "chunk_rows", 500_000, " of rows"),
        tls_ca=options.get("tls_ca", ""),
        tls_certificate=options.get("tls_certificate", ""),
        tls_key=options.get("tls_key", ""),
        chunk_bytes=positive_number(name, options, "chunk_bytes", 32 * 1024 * 1024, " of bytes"),
        task_rows=whole_number(name, options, "task_rows", 100_000, " of rows", least=0),
        compare=_compare(name, options),
        max_parts=positive_number(name, options, "max_parts", 300, " of parts"),
        # With less than two, a query of the newest checkpoint could find it folded when the next one comes.
        keep_checkpoints=whole_number(name, options, "keep_checkpoints", 100, " of checkpoints", least=2),
        keep_minutes=whole_number(name, options, "keep_minutes", 10, " of minutes", least=0),
        order_by=_by_table(options, "order_by."),
        partition_by=_by_table(options, "partition_by."),
        shard_by=_by_table(options, "shard_by."),
    )


def _compare(name: str, options: Mapping[str, str]) -> str:
    way = options.get("compare", "auto")
    if way not in _COMPARE:
        raise invalid_option_error(
            name, f"has compare = {way}", f"Write {', '.join(_COMPARE[:-1])} or {_COMPARE[-1]}."
        )
    return way


def _by_table(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in options.items() if key.startswith(prefix)}


_PARTICIPANT_NAMES = ("url", "user", "password", "database", *_TLS)
_EXAMPLE = "clickhouse://user@host:8123/database, or clickhouses://… with TLS"


def participant_options(name: str, options: Mapping[str, str], location: str) -> Sequence[ClickHouseOptions]:
    """Read the options: those of each server. Nothing is connected to.

    Args:
        location: of the participant's section, for errors.

    Raises:
        SettingsError: `PARTICIPANT_OPTION_MISSING`, `PARTICIPANT_OPTION_INVALID`,
            `PARTICIPANT_PACKAGE_MISSING`.
    """
    urls = [url.strip() for url in options.get("url", "").split(",") if url.strip()]
    if not urls:
        raise SettingsError(
            "PARTICIPANT_OPTION_MISSING",
            f"Participant {name}: clickhouse needs the option url",
            hint=_EXAMPLE,
            location=location,
        )
    by_url = [{**options, "url": url} for url in urls]
    problems = [problem for each in by_url for problem in _url_problems(name, each)]
    for problem, hint in chain(problems, _repeated_servers(by_url, problems), _other_problems(options)):
        raise SettingsError(
            "PARTICIPANT_OPTION_INVALID", f"Participant {name} {problem}", hint=hint, location=location
        )
    if find_spec("clickhouse_connect") is None:
        raise SettingsError(
            "PARTICIPANT_PACKAGE_MISSING",
            f"Participant {name}: the Python package clickhouse-connect is not installed",
            hint="pip install 'tautochrone[clickhouse]'",
            location=location,
        )
    return [_server(each) for each in by_url]


def _server(options: Mapping[str, str]) -> ClickHouseOptions:
    url = urlsplit(options["url"])
    return ClickHouseOptions(
        host=url.hostname or "",
        port=url.port or (8443 if url.scheme == "clickhouses" else 8123),
        is_encrypted=url.scheme == "clickhouses",
        user=options.get("user") or unquote(url.username or "default"),
        password=options.get("password", ""),
        database=_database(url, options),
        tls_ca=options.get("tls_ca", ""),
        tls_certificate=options.get("tls_certificate", ""),
        tls_key=options.get("tls_key", ""),
    )


def _url_problems(name: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What is wrong with the url, and what to do about it."""
    try:
        url = urlsplit(options["url"])
        port = url.port
    except ValueError:
        yield "has a url that cannot be read", f"Write {_EXAMPLE}."
        return
    if url.password is not None:
        section = f"[transactions.participants.{name}.options]"
        yield "has a password in its url", f'Write {section} password = {{ env = "…" }}.'
    if url.scheme not in ("clickhouse", "clickhouses") or not url.hostname:
        yield "needs urls of servers", f"Write {_EXAMPLE}; several with commas between them."
    if url.hostname == _EMBEDDED_HOST and port is None:
        yield "names the embedded engine, which no other program can write to", f"Write {_EXAMPLE}."
    if not _database(url, options):
        yield "names no database", "Write it behind the host in the url, or as the option database."
    if url.scheme != "clickhouses" and any(options.get(option) for option in _TLS):
        yield "has options of TLS without TLS", "Write clickhouses://… in its url."


def _repeated_servers(
    by_url: Sequence[Mapping[str, str]], problems: Sequence[object]
) -> Iterator[tuple[str, str]]:
    servers = [] if problems else [_server(options) for options in by_url]
    if len({(server.host, server.port) for server in servers}) < len(servers):
        yield "names a server twice in its url", "Each server has a part of the rows."


def _other_problems(options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for option in options:
        if option not in _PARTICIPANT_NAMES:
            yield f"has no option {option}", f"Options: {', '.join(_PARTICIPANT_NAMES)}"
    if options.get("tls_key") and not options.get("tls_certificate"):
        yield "has tls_key without tls_certificate", "Name the file of both."
    for option in _TLS:
        if options.get(option) and not Path(options[option]).is_file():
            yield f"has {option} = {options[option]}, and there is no such file", "Name a PEM file."


def _database(url: SplitResult, options: Mapping[str, str]) -> str:
    return options.get("database") or unquote(url.path).strip("/")
