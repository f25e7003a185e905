"""What is too large, too long, too deep or no value of the store is refused by class, whoever sends it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from starlette.testclient import TestClient
from tests.metaservice.conftest import Shop
from tests.metaservice.serving import serving
from tests.metaservice.test_process import started

from tautochrone.meta import MetaStore
from tautochrone.metaservice.app import create_app
from tautochrone.metaservice.http.access import Access, Role

READ, OPERATE = "a-token-that-may-read", "a-token-that-may-operate"
TOKENS = Access.by_tokens({READ: Role.READ, OPERATE: Role.OPERATE})
JSON = {"Content-Type": "application/json"}
MIB = 1 << 20


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """Nothing here changes the store, so one is enough."""
    with MetaStore.open(f"sqlite:///{tmp_path_factory.mktemp('store')}/meta.db") as store:
        Shop(store).checkpoint(1)
        with TestClient(create_app(access=TOKENS, store=store), raise_server_exceptions=False) as test_client:
            yield test_client


def error_class(answer: httpx.Response) -> str:
    content = answer.json()
    return str(content.get("error_class") or content["error"]["error_class"])


BAD_BODIES = {
    "an integer above 2^63": '{"number": 9223372036854775808}',
    "an integer below -2^63": '{"number": -9223372036854775809}',
    "an integer of 5000 digits": '{"number": ' + "9" * 5_000 + "}",
    "a huge exponent": '{"number": 1e999}',
    "NaN": '{"number": NaN}',
    "infinity": '{"number": -Infinity}',
    "NUL": '{"number": "\\u0000"}',
    "NUL in a key": '{"\\u0000": 1}',
    "half a character": '{"number": "\\ud800"}',
    "a key twice": '{"number": 1, "number": 2}',
    "deep lists": '{"number": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep objects": '{"a":' * 200 + "1" + "}" * 200,
    "a long list": '{"number": [' + "1," * 20_000 + "1]}",
    "a long text": json.dumps({"number": "x" * 500_000}),
    "no JSON": "{",
    "a list": "[]",
    "a text": '"x"',
    "nothing": "",
    "a negative number": '{"number": -1}',
    "a number too large to count on": '{"number": 9223372036854775807}',
}


@pytest.mark.parametrize("body", BAD_BODIES)
@pytest.mark.parametrize("path", ["/rpc/checkpoints.get", "/version/strong", "/api/v1/pins"])
def test_bad_bodies_are_refused(client: TestClient, body: str, path: str) -> None:
    for token in (READ, OPERATE):
        answer = client.post(path, headers=bearer(token) | JSON, content=BAD_BODIES[body])
        assert 400 <= answer.status_code < 500, answer.text
        assert error_class(answer)


@pytest.mark.parametrize("content", [b'{"number": "\xff"}', b"\xff\xfe{\x00}\x00", b'\xef\xbb\xbf{"a": 1}'])
def test_what_is_no_utf8_is_refused(client: TestClient, content: bytes) -> None:
    for path in ("/rpc/checkpoints.get", "/version/strong"):
        answer = client.post(path, headers=bearer(READ) | JSON, content=content)
        assert (answer.status_code, error_class(answer)) == (422, "REQUEST_INVALID")


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"]
)
def test_other_content_types_are_refused(client: TestClient, kind: str) -> None:
    for path in ("/rpc/checkpoints.get", "/version/strong"):
        answer = client.post(path, headers=bearer(READ) | {"Content-Type": kind}, content='{"number": 1}')
        assert (answer.status_code, error_class(answer)) == (415, "CONTENT_TYPE_REFUSED"), path


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/datasets/lake.db.%00",
        "/api/v1/datasets?x=%00",
        "/version/strong/lake/db/x%00",
        "/v1/strong/namespaces/a%00b",
        "/datasets?q=%00",
        "/dataset?name=%00",
    ],
)
def test_nul_in_addresses_is_refused(client: TestClient, path: str) -> None:
    answer = client.get(path, headers=bearer(READ))
    assert answer.status_code == 422, answer.text


def test_addresses_have_a_length(client: TestClient) -> None:
    for path in ("/api/v1/datasets?x=" + "y" * 40_000, "/api/v1/datasets/" + "y" * 10_000):
        answer = client.get(path, headers=bearer(READ))
        assert (answer.status_code, error_class(answer)) == (414, "ADDRESS_TOO_LONG")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("checkpoints.newest", {"limit": -1}),
        ("history.timeline", {"limit": 10**9}),
        ("history.refreshes", {"dataset": "a.b.c", "limit": -1}),
        ("reads.resolve", {"owner": "x" * 300}),
        ("reads.resolve", {"owner": "a\nb"}),
        ("reads.resolve", {"owner": ""}),
        ("reads.resolve", {"checkpoint": -5}),
        ("pins.renew", {"pin": "nonsense", "lease_ms": 0}),
        ("checkpoints.cut_times", {"numbers": list(range(20_000))}),
        ("roots.aligned_cut", {"job": "shop", "roots": {}, "max_skew_ms": -(2**63)}),
        ("checkpoints.busy_jobs", {"job": "shop", "patience_ms": 2**63 - 1}),
        ("revisions.published_after", {"number": 2**63 - 1, "jobs": []}),
    ],
)
def test_arguments_of_calls_have_bounds(client: TestClient, method: str, arguments: dict[str, Any]) -> None:
    answer = client.post(f"/rpc/{method}", headers=bearer(READ), json=arguments)
    assert 400 <= answer.status_code < 500, answer.text
    assert error_class(answer) in ("META_CALL_UNREADABLE", "REQUEST_INVALID", "LEASE_INVALID", "NAME_INVALID")


def test_large_body_is_refused_with_and_without_length(shop: Shop) -> None:
    with (
        serving(create_app(access=TOKENS, store=shop.store)) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):

        def chunks() -> Iterator[bytes]:
            for _ in range(40):
                yield b" " * MIB

        for token, content in ((READ, b" " * (2 * MIB)), (READ, chunks()), (OPERATE, chunks())):
            answer = http.post("/rpc/checkpoints.get", headers=bearer(token) | JSON, content=content)
            assert (answer.status_code, error_class(answer)) == (413, "BODY_TOO_LARGE")
        # It goes on for others, on other connections.
        assert http.get("/api/v1/jobs", headers=bearer(READ)).status_code == 200


def test_a_large_body_takes_no_memory(shop: Shop, tmp_path: Path) -> None:
    arguments = ("--meta", f"sqlite:///{tmp_path}/meta.db")
    variables = {"TAUTOCHRONE_SERVE_READ_TOKEN": READ}
    with started(tmp_path, *arguments, **variables) as (url, _):
        (process,) = [p for p in psutil.Process().children() if "serve" in p.cmdline()]
        assert httpx.get(f"{url}/api/v1/jobs", headers=bearer(READ), timeout=60).status_code == 200
        before, most = process.memory_info().rss, 0
        text = b'{"number": "' + b"x" * (64 * MIB) + b'"}'
        host, port = url.removeprefix("http://").split(":")
        for head in (f"Content-Length: {len(text)}", "Transfer-Encoding: chunked"):
            with closing(socket.create_connection((host, int(port)))) as connection:
                connection.settimeout(30)
                connection.sendall(
                    f"POST /rpc/checkpoints.get HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {READ}\r\n"
                    f"Content-Type: application/json\r\n{head}\r\n\r\n".encode()
                )
                try:
                    for start in range(0, len(text), MIB):
                        part = text[start : start + MIB]
                        connection.sendall(part if "Length" in head else b"%x\r\n%b\r\n" % (len(part), part))
                        most = max(most, process.memory_info().rss)
                except OSError:
                    pass  # the service hung up, as it may
                else:
                    if "chunked" in head:
                        connection.sendall(b"0\r\n\r\n")
                time.sleep(0.5)
                most = max(most, process.memory_info().rss)
        assert most - before < 30 * MIB, f"{(most - before) / MIB:.0f} MiB"
