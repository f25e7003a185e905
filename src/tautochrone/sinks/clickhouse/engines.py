"""How statements reach ClickHouse: by HTTP, or in the engine of this process."""

from __future__ import annotations

import errno
import json
import re
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pyarrow as pa

from tautochrone.errors import SinkError
from tautochrone.sinks.clickhouse.options import ClickHouseOptions
from tautochrone.sinks.clickhouse.rows import arrow_stream
from tautochrone.sinks.clickhouse.statements import (
    OWN,
    defaults_of_profile_settings,
    name_sql,
    setting_refused_error,
    text_sql,
    unknown_setting,
)
from tautochrone.sinks.common.errors import (
    login_refused_error,
    object_missing_error,
    rights_missing_error,
)

__all__ = [
    "SERVER_RUN_SQL",
    "Engine",
    "HttpEngine",
    "ReadingEngine",
    "ServerRun",
    "known_refusal_error",
    "open_engine",
    "running_statements",
]

_CODE = re.compile(r"[Cc]ode: (\d+)")
_STATUS = re.compile(r"received HTTP status (401|403)\b")
"""Of a proxy, which does not answer with a code of ClickHouse."""
_LOGIN_CODES = frozenset({192, 193, 194, 195, 516, 746})
"""UNKNOWN_USER, WRONG_PASSWORD, REQUIRED_PASSWORD, IP_ADDRESS_NOT_ALLOWED, AUTHENTICATION_FAILED,
USER_EXPIRED."""
_RIGHTS_CODES = frozenset({164, 291, 392, 497})
"""READONLY, DATABASE_ACCESS_DENIED, QUERY_IS_PROHIBITED, ACCESS_DENIED."""
SERVER_RUN_SQL = "toInt64(toUnixTimestamp(now())) - toInt64(uptime()), uptime()"
"""The values of a `ServerRun`."""
_NO_UTF8 = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as `surrogateescape` decodes it."""


class ServerRun(NamedTuple):
    """What a server says of its process, in whole seconds.

    The clock of this process does not count: it may stand still while this machine does.

    Attributes:
        started_s: of the epoch, by the server's clock.
    """

    started_s: int
    uptime_s: int

    def is_same(self, later: ServerRun) -> bool:
        """Whether the server was not restarted between two answers. Each is right to a second."""
        return abs(later.started_s - self.started_s) <= 1


class Engine(Protocol):
    """Runs one statement after the other.

    Whatever ClickHouse answers with an error raises `SinkError`. After any other error it is not known
    whether the statement was done.
    """

    def run(self, statement: str) -> None:
        """Run a statement that answers no rows."""

    def rows(self, query: str) -> list[list[Any]]:
        """The rows of a query. Write `toString` around numbers of 64 bits and more."""

    def insert(self, table: str, rows: pa.Table, types: Sequence[str]) -> None:
        """Insert rows.

        Args:
            table: as SQL, with its database.
            types: of the columns of `rows`, as ClickHouse spells them.
        """

    @property
    def settings(self) -> Mapping[str, str]:
        """What is sent with each statement: see `statements`."""

    def renew_settings(self) -> None:
        """Look again what the profile of the user says.

        Raises:
            SinkError: `SINK_SETTING_REFUSED`.
        """

    def close(self) -> None:
        """Give the connection back. Repeatable."""


def open_engine(name: str, options: ClickHouseOptions) -> Engine:
    """The engine that a sink's options name.

    Raises:
        SinkError: `SINK_PACKAGE_MISSING`, `SINK_NOT_REACHABLE`, `SINK_LOGIN_REFUSED`, `SINK_FOLDER_UNUSABLE`,
            `SINK_ENGINE_IN_USE`, `SINK_SETTING_REFUSED`.
    """
    if options.folder:
        return _EmbeddedEngine(name, options.folder)
    return HttpEngine(name, options)


class ReadingEngine:
    """Passes queries on, and refuses statements that write: what they would create is missing, or its owner
    is at work."""

    def __init__(self, name: str, engine: Engine, database: str) -> None:
        self._name = name
        self._engine = engine
        self._database = database

    def run(self, statement: str) -> None:
        raise self._error(statement)

    def rows(self, query: str) -> list[list[Any]]:
        return self._engine.rows(query)

    def insert(self, table: str, rows: pa.Table, types: Sequence[str]) -> None:  # noqa: ARG002
        raise self._error(f"INSERT INTO {table}")

    @property
    def settings(self) -> Mapping[str, str]:
        return self._engine.settings

    def renew_settings(self) -> None:
        self._engine.renew_settings()

    def close(self) -> None:
        self._engine.close()

    def _error(self, statement: str) -> SinkError:
        answer = f"not sent is {statement[:100]}"
        return object_missing_error(self._name, "ClickHouse", answer, f"the database {self._database}")


def running_statements(engine: Engine, tables: Sequence[str]) -> int:
    """How many statements run on the server that name one of these tables."""
    used = " OR ".join(f"position(query, {text_sql(name)}) > 0" for name in tables)
    ((count,),) = engine.rows(
        "SELECT toUInt32(count()) FROM system.processes "
        f"WHERE query_id != queryID() AND query NOT LIKE '%system.processes%' AND ({used})"
    )
    return int(count)


# -- inside this process --------------------------------------------------------------------------


_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE})
"""Of a file system that may work again later: it is full, or a network does not answer."""
_lock = threading.RLock()
_sessions: dict[str, tuple[Any, int]] = {}
"""By folder the engine of this process, and how many sinks use it."""


class _EmbeddedEngine:
    """`chdb`: one folder in a process at a time, and one process in a folder."""

    def __init__(self, name: str, folder: str) -> None:
        self._name = name
        self._folder = str(Path(folder).resolve())
        self._session: Any = self._opened()

    def run(self, statement: str) -> None:
        self._query(statement, "TabSeparated")

    def rows(self, query: str) -> list[list[Any]]:
        return _parsed(self._query(query, "JSONCompactEachRow"))

    @property
    def settings(self) -> Mapping[str, str]:
        return OWN

    def renew_settings(self) -> None:
        """Nobody but this process has settings in it."""

    def insert(self, table: str, rows: pa.Table, types: Sequence[str]) -> None:
        columns = ", ".join(map(name_sql, rows.column_names))
        structure = ", ".join(
            f"{name_sql(column)} {type_sql}"
            for column, type_sql in zip(rows.column_names, types, strict=True)
        )
        with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
            file.write(arrow_stream(rows))
            file.flush()
            source = f"file({text_sql(file.name)}, 'ArrowStream', {text_sql(structure)})"
            self.run(f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {source}")

    def close(self) -> None:
        if self._session is None:
            return
        self._session = None
        with _lock:
            session, users = _sessions.pop(self._folder)
            if users > 1:
                _sessions[self._folder] = (session, users - 1)
            else:
                session.close()

    def _opened(self) -> Any:
        try:
            import chdb.session as embedded
        except ImportError as missing:
            raise _package_missing_error(self._name, "chdb", "clickhouse-embedded") from missing
        session: Any
        with _lock:
            if self._folder in _sessions:
                session, users = _sessions[self._folder]
                _sessions[self._folder] = (session, users + 1)
                return session
            if _sessions:
                raise SinkError(
                    "SINK_ENGINE_IN_USE",
                    f"Sink {self._name}: this process already runs ClickHouse's engine in "
                    f"{next(iter(_sessions))}, and it can run in one folder only",
                    hint="Give all embedded sinks of a job the same folder and different databases, "
                    "or use a server.",
                )
            self._make_folder()
            try:
                session = embedded.Session(self._folder)  # type: ignore[no-untyped-call]
                # Threads that write answers of a few rows cost more than the queries.
                session.query("SET output_format_parallel_formatting = 0")
                _set_own(session)
            except Exception as error:
                raise SinkError(
                    "SINK_NOT_REACHABLE",
                    f"Sink {self._name}: ClickHouse's engine does not open {self._folder}: {error}",
                    hint="One process at a time can use the folder of an embedded engine.",
                    retryable=True,
                ) from error
            _sessions[self._folder] = (session, 1)
            return session

    def _make_folder(self) -> None:
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno in _PASSING:
                raise SinkError(
                    "SINK_NOT_REACHABLE",
                    f"Sink {self._name}: the folder {self._folder} cannot be made now: {error.strerror}",
                    hint="See the state of the file system.",
                    retryable=True,
                ) from error
            raise SinkError(
                "SINK_FOLDER_UNUSABLE",
                f"Sink {self._name}: the folder {self._folder} cannot be made: {error.strerror}",
                hint="Name a folder in the url that the user of the run may write to; one that does not "
                "begin with a slash is below the folder where the run is started.",
                sqlstate="22023",
            ) from error

    def _query(self, statement: str, output_format: str) -> bytes:
        # The engine's session is not made for several threads.
        with _lock:
            try:
                return bytes(self._session.query(statement, output_format).bytes())
            except Exception as error:
                if "DB::Exception" not in str(error):
                    raise
                raise _statement_error(f"Sink {self._name}", str(error), OWN) from error


def _set_own(session: Any) -> None:
    """Set the settings of ours that the engine knows, without the one that `SET` does not take."""
    known = set(str(session.query("SELECT name FROM system.settings", "TabSeparated")).split())
    known.discard("run_query_in_background")
    listed = [
        f"{name} = {text_sql(value)}"
        for name, value in OWN.items()
        if name in known - {"run_query_in_background"}
    ]
    session.query(f"SET {', '.join(listed)}")


# -- a server -------------------------------------------------------------------------------------


class HttpEngine:
    """A server by `clickhouse-connect`. Used by one thread at a time."""

    def __init__(self, name: str, options: ClickHouseOptions, subject: str | None = None) -> None:
        """`subject`: who asks, for errors; the sink of this name without it."""
        self._subject = subject or f"Sink {name}"
        try:
            import clickhouse_connect
            from clickhouse_connect.driver import exceptions
        except ImportError as missing:
            raise _package_missing_error(name, "clickhouse-connect", "clickhouse") from missing
        self._refusal: type[Exception] = exceptions.DatabaseError
        self._no_answer: type[Exception] = exceptions.OperationalError
        self._settings = dict(OWN)
        self._pool = _Pool(options, self._settings)
        self._client: Any
        while True:
            try:
                self._client = clickhouse_connect.get_client(
                    host=options.host,
                    port=options.port,
                    username=options.user,
                    password=options.password,
                    secure=options.is_encrypted,
                    client_cert=options.tls_certificate or None,
                    client_cert_key=options.tls_key or None,
                    pool_mgr=self._pool,
                    autogenerate_session_id=False,
                    query_retries=0,
                )
                break
            except exceptions.Error as error:
                unknown = unknown_setting(str(error), self._settings)
                if unknown is None:
                    self._pool.clear()
                    raise self._connection_error(options, str(error)) from error
                del self._settings[unknown]
        try:
            self.renew_settings()
        except BaseException:
            self.close()
            raise

    def _connection_error(self, options: ClickHouseOptions, answer: str) -> SinkError:
        return known_refusal_error(self._subject, answer, self._settings) or SinkError(
            "SINK_NOT_REACHABLE",
            f"{self._subject}: no connection to ClickHouse at {options.host}:{options.port}: {answer}",
            hint="Is it up, and are host, port and TLS right?",
            retryable=True,
        )

    def run(self, statement: str) -> None:
        self._call(lambda: self._client.command(statement))

    def rows(self, query: str) -> list[list[Any]]:
        return _parsed(self._call(lambda: self._client.raw_query(query, fmt="JSONCompactEachRow")))

    def insert(self, table: str, rows: pa.Table, types: Sequence[str]) -> None:  # noqa: ARG002
        block = arrow_stream(rows)
        columns = ", ".join(map(name_sql, rows.column_names))
        self._call(
            lambda: self._client.raw_insert(f"{table} ({columns})", insert_block=block, fmt="ArrowStream")
        )

    @property
    def settings(self) -> Mapping[str, str]:
        return self._settings

    def renew_settings(self) -> None:
        self._settings.update(defaults_of_profile_settings(self._subject, self.rows, self._settings))

    def close(self) -> None:
        self._client.close()
        self._pool.clear()

    def _call(self, send: Any) -> Any:
        try:
            return send()
        except self._refusal as error:
            if isinstance(error, self._no_answer):
                raise
            raise _statement_error(self._subject, str(error), self._settings) from error


class _Pool:
    """The connections of one client, which send its settings with every request.

    The client itself sends settings only after it has read those of the server, whose answer may depend on
    them, and leaves out what it does not find there.
    """

    def __init__(self, options: ClickHouseOptions, settings: Mapping[str, str]) -> None:
        from clickhouse_connect.driver import httputil

        self._settings = settings
        scheme = "https" if options.is_encrypted else "http"
        proxy = httputil.check_env_proxy(scheme, options.host, options.port)
        arguments: dict[str, Any] = {f"{scheme}_proxy": proxy}
        if options.is_encrypted:
            arguments |= {
                "ca_cert": options.tls_ca or None,
                "client_cert": options.tls_certificate or None,
                "client_cert_key": options.tls_key or None,
            }
        self._manager: Any = httputil.get_pool_manager(**arguments)

    def request(self, method: str, url: str, **arguments: Any) -> Any:
        parts = urlsplit(url)
        query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **self._settings}
        return self._manager.request(method, urlunsplit(parts._replace(query=urlencode(query))), **arguments)

    def clear(self) -> None:
        self._manager.clear()


def _parsed(answer: bytes) -> list[list[Any]]:
    """The rows of an answer of the format JSONCompactEachRow.

    ClickHouse's strings are bytes, and it writes those that are not UTF-8 as they are: such a byte becomes
    a backslash, `x`, and its number. Texts may have characters that Python counts as ends of lines.
    """
    text = _NO_UTF8.sub(
        lambda match: f"\\\\x{ord(match[0]) - 0xDC00:02x}", answer.decode(errors="surrogateescape")
    )
    return [json.loads(line) for line in text.split("\n") if line]


def _package_missing_error(name: str, package: str, extra: str) -> SinkError:
    return SinkError(
        "SINK_PACKAGE_MISSING",
        f"Sink {name}: the Python package {package} is not installed",
        hint=f"pip install 'tautochrone[{extra}]'",
    )


def known_refusal_error(subject: str, answer: str, settings: Mapping[str, str]) -> SinkError | None:
    """The error of an answer that says who may not do what, or set which of the settings that were sent; None
    for any other answer."""
    match = _CODE.search(answer)
    code = int(match[1]) if match else 0
    status = _STATUS.search(answer)
    if code in _LOGIN_CODES or (not code and status and status[1] == "401"):
        options = "the options url, user, password and tls_certificate"
        return login_refused_error(subject, "ClickHouse", answer[:1000], settings=options)
    if code in _RIGHTS_CODES or (not code and status):
        return rights_missing_error(
            subject,
            "ClickHouse",
            answer[:1000],
            needed="docs/clickhouse.md says what the user needs: GRANT it, and leave `readonly` and "
            "`allow_ddl` unset.",
        )
    return setting_refused_error(subject, answer, settings)


def _statement_error(subject: str, answer: str, settings: Mapping[str, str]) -> SinkError:
    refusal = known_refusal_error(subject, answer, settings)
    if refusal is not None:
        return refusal
    return SinkError("CLICKHOUSE_REFUSED", f"{subject}: ClickHouse answers: {answer[:1000]}")
