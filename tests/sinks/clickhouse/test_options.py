"""The options of a sink in ClickHouse, and servers that it cannot use."""

from __future__ import annotations

import os
import socket
import threading
from errno import EACCES, EEXIST, ENOSPC, ENOTDIR, EPERM, EROFS
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import clickhouse_connect
import pytest
from clickhouse_connect.driver import httputil

from tautochrone.errors import SinkError
from tautochrone.sinks import open_sink
from tautochrone.sinks.clickhouse.engines import HttpEngine
from tautochrone.sinks.clickhouse.options import clickhouse_options
from tautochrone.sinks.clickhouse.sink import require_version

LOGIN, RIGHTS = "SINK_LOGIN_REFUSED", "SINK_RIGHTS_MISSING"


class OldServer:
    """Answers its version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def rows(self, query: str) -> list[list[Any]]:
        assert query == "SELECT version()"
        return [[self.version]]


def test_urls_name_servers_and_folders() -> None:
    server = clickhouse_options("m", {"url": "clickhouses://a%40b@host/shop", "password": "p"})
    assert (server.host, server.port, server.is_encrypted) == ("host", 8443, True)
    assert (server.user, server.password, server.database, server.folder) == ("a@b", "p", "shop", "")
    assert "password" not in repr(server)
    embedded = clickhouse_options("m", {"url": "clickhouse://embedded//data/ch", "order_by.t": "a, b"})
    assert (embedded.folder, embedded.database, embedded.order_by) == ("/data/ch", "lake", {"t": "a, b"})
    assert clickhouse_options("m", {"url": "clickhouse://embedded/ch"}).folder == "ch"


@pytest.mark.parametrize(
    ("options", "error_class"),
    [
        ({}, "SINK_OPTION_MISSING"),
        ({"url": "http://host"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://user:secret@host"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://embedded/"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://host", "chunk_rows": "0"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://host", "orderby": "a"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://host", "keep_checkpoints": "1"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouse://host", "tls_ca": "ca.pem"}, "SINK_OPTION_INVALID"),
        ({"url": "clickhouses://host", "tls_key": "key.pem"}, "SINK_OPTION_INVALID"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, str], error_class: str) -> None:
    with pytest.raises(SinkError) as refused:
        open_sink("mirror", "clickhouse", options)
    assert refused.value.error_class == error_class
    assert refused.value.hint
    assert "secret" not in str(refused.value)


def test_the_client_gets_user_password_and_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(clickhouse_connect, "get_client", lambda **arguments: given.update(arguments))
    monkeypatch.setattr(httputil, "get_pool_manager", lambda **arguments: given.update(arguments))
    monkeypatch.setattr(HttpEngine, "renew_settings", lambda _engine: None)
    options = {
        "url": "clickhouses://host:9443/shop",
        "user": "reports",
        "password": "secret-1",
        "tls_ca": "ca.pem",
        "tls_certificate": "client.pem",
        "tls_key": "client.key",
    }
    HttpEngine("mirror", clickhouse_options("mirror", options))
    expected = {
        "host": "host",
        "port": 9443,
        "secure": True,
        "username": "reports",
        "password": "secret-1",
        "ca_cert": "ca.pem",
        "client_cert": "client.pem",
        "client_cert_key": "client.key",
    }
    assert {name: given[name] for name in expected} == expected


def test_a_server_that_does_not_answer_is_named_without_the_password() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    url = f"clickhouse://127.0.0.1:{port}/shop"
    with pytest.raises(SinkError) as refused:
        open_sink("mirror", "clickhouse", {"url": url, "user": "reports", "password": "secret-1"})
    assert (refused.value.error_class, refused.value.retryable) == ("SINK_NOT_REACHABLE", True)
    assert str(port) in str(refused.value)
    assert "secret-1" not in f"{refused.value} {refused.value.hint} {refused.value.parameters}"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SinkError, match="SINK_FOLDER_UNUSABLE") as refused:
        open_sink("mirror", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/file/lake"})
    assert f"{tmp_path}/file/lake" in str(refused.value)
    assert not refused.value.retryable
    assert "below the folder where the run is started" in str(refused.value.hint)


@pytest.mark.parametrize(
    ("number", "error_class"),
    [
        *((number, "SINK_FOLDER_UNUSABLE") for number in (ENOTDIR, EACCES, EPERM, EROFS, EEXIST)),
        (ENOSPC, "SINK_NOT_REACHABLE"),
    ],
)
def test_a_folder_is_tried_again_only_if_that_can_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, error_class: str
) -> None:
    def mkdir(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with pytest.raises(SinkError, match=os.strerror(number)) as refused:
        open_sink("mirror", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/lake"})
    assert refused.value.error_class == error_class
    assert refused.value.retryable == (error_class == "SINK_NOT_REACHABLE")


class Refusing(BaseHTTPRequestHandler):
    """Answers every request with one error, as ClickHouse does, or as a proxy without a code."""

    status, code, text = 403, "", ""

    def do_POST(self) -> None:
        body = self.text.encode()
        self.send_response(self.status)
        if self.code:
            self.send_header("X-ClickHouse-Exception-Code", self.code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *arguments: Any) -> None: ...


@pytest.mark.parametrize(
    ("status", "code", "text", "error_class"),
    [
        (403, "516", "Authentication failed: password is incorrect (AUTHENTICATION_FAILED)", LOGIN),
        (404, "192", "There is no user `reports` (UNKNOWN_USER)", LOGIN),
        (401, "", "proxy: unknown user", LOGIN),
        (500, "497", "reports: Not enough privileges (ACCESS_DENIED)", RIGHTS),
        (403, "", "proxy: forbidden", RIGHTS),
        (500, "81", "Database shop does not exist (UNKNOWN_DATABASE)", "SINK_NOT_REACHABLE"),
        (502, "", "Bad gateway", "SINK_NOT_REACHABLE"),
    ],
)
def test_a_server_that_does_not_let_the_user_in_is_not_asked_again(
    status: int, code: str, text: str, error_class: str
) -> None:
    text = f"Code: {code}. DB::Exception: {text}" if code else text
    handler = type("Handler", (Refusing,), {"status": status, "code": code, "text": text})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        url = f"clickhouse://127.0.0.1:{server.server_port}/shop"
        with pytest.raises(SinkError) as refused:
            open_sink("mirror", "clickhouse", {"url": url, "user": "reports", "password": "secret-1"})
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert refused.value.error_class == error_class
    assert refused.value.retryable == (error_class == "SINK_NOT_REACHABLE")
    assert text[-20:] in str(refused.value)
    assert "secret-1" not in f"{refused.value} {refused.value.hint}"


def test_options_of_tables_are_among_those_that_are_known() -> None:
    with pytest.raises(SinkError, match=r"no option orderby\.totals") as refused:
        clickhouse_options("mirror", {"url": "clickhouse://ch/shop", "orderby.totals": "customer"})
    assert "order_by.TABLE" in str(refused.value.hint)


def test_one_process_runs_the_engine_in_one_folder(tmp_path: Path) -> None:
    first = open_sink("one", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/one"})
    with pytest.raises(SinkError) as refused:
        open_sink("two", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/two"})
    assert refused.value.error_class == "SINK_ENGINE_IN_USE"
    first.close()
    open_sink("two", "clickhouse", {"url": f"clickhouse://embedded/{tmp_path}/two"}).close()


def test_a_server_without_parameterised_views_is_refused() -> None:
    engine: Any = OldServer("18.16.1")
    with pytest.raises(SinkError) as refused:
        require_version("mirror", engine)
    assert refused.value.error_class == "SINK_SERVER_TOO_OLD"
    require_version("mirror", OldServer("26.9.2.1"))  # type: ignore[arg-type]
