"""The options of a participant of the format `clickhouse`, one value for each server that `url` lists."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from tautochrone.errors import SettingsError
from tautochrone.sinks.clickhouse.options import ClickHouseOptions

__all__ = ["participant_options"]

_TLS = ("tls_ca", "tls_certificate", "tls_key")
_NAMES = ("url", "user", "password", "database", *_TLS)
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
    if url.hostname == "embedded" and port is None:
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
        if option not in _NAMES:
            yield f"has no option {option}", f"Options: {', '.join(_NAMES)}"
    if options.get("tls_key") and not options.get("tls_certificate"):
        yield "has tls_key without tls_certificate", "Name the file of both."
    for option in _TLS:
        if options.get(option) and not Path(options[option]).is_file():
            yield f"has {option} = {options[option]}, and there is no such file", "Name a PEM file."


def _database(url: SplitResult, options: Mapping[str, str]) -> str:
    return options.get("database") or unquote(url.path).strip("/")
