"""Tokens, roles, and what browsers are made to send."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from starlette.testclient import TestClient

from tautochrone.app.serve import ListenAddress, access_for
from tautochrone.errors import SettingsError
from tautochrone.metaservice.http.access import COOKIE, Access, Role

READ, OPERATE = "a-token-that-may-read", "a-token-that-may-operate"
Made = Callable[[Access], TestClient]
TOKENS = Access.by_tokens({READ: Role.READ, OPERATE: Role.OPERATE})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_every_route_asks_for_a_token(with_access: Made) -> None:
    client = with_access(TOKENS)
    document = client.get("/openapi.json", headers=bearer(READ)).json()
    assert len(document["paths"]) > 15
    for path, operations in document["paths"].items():
        for method in operations:
            if path == "/healthz":
                continue
            answer = client.request(method, path.replace("{", "").replace("}", ""))
            assert (answer.status_code, answer.json()["error_class"]) == (401, "TOKEN_MISSING"), path
            assert answer.headers["www-authenticate"].startswith("Bearer")
    for path in ("/openapi.json", "/metrics", "/nowhere"):
        assert client.get(path).status_code == 401
    assert client.get("/healthz").status_code == 200
    assert client.get("/v1/config").json()["error"]["type"] == "NotAuthorizedException"


def test_every_change_asks_for_the_role_operate(with_access: Made) -> None:
    client = with_access(TOKENS)
    document = client.get("/openapi.json", headers=bearer(READ)).json()
    for path, operations in document["paths"].items():
        for method in operations:
            url = path.replace("{consistency}", "strong").replace("{", "").replace("}", "")
            answer = (
                client.request(method, url, headers=bearer(READ), json={})
                if path != "/api/v1/events"
                else None
            )
            if answer is None:
                continue
            # Readers hold pins of their own, see `test_pin_owners`.
            reads = ("/version/", "/api/v1/tokens", "/api/v1/pins", "/api/v1/query")
            changes = method != "get" and not path.startswith(reads)
            refused = answer.status_code == 403 and answer.json()["error_class"] == "ROLE_MISSING"
            assert refused == changes, (method, path, answer.text)
    assert client.post("/register/sink/etl/lake/db/x", headers=bearer(OPERATE)).status_code == 200


def test_readers_may_query_by_form_but_not_revise(with_access: Made) -> None:
    client = with_access(TOKENS)
    for path, error in (
        ("/query", "FORM_REFUSED"),
        ("/preview", "FORM_REFUSED"),
        ("/revision", "ROLE_MISSING"),
    ):
        assert error in client.post(path, headers=bearer(READ)).text
    assert "FORM_REFUSED" in client.post("/revision", headers=bearer(OPERATE)).text
    page = client.get("/revision", headers=bearer(READ)).text
    assert "knows no project" in page


@pytest.mark.parametrize("token", ["", "wrong", READ + "x", READ[:-1], "naïve"])
def test_wrong_tokens_are_refused_and_never_shown(
    with_access: Made, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    header = {"Authorization": f"Bearer {token}".encode()}
    answer = with_access(TOKENS).get("/api/v1/jobs", headers=header)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["error_class"]) == (401, "TOKEN_UNKNOWN")
    assert not token or token not in answer.text + caplog.text


def test_tokens_are_kept_as_hashes_only() -> None:
    assert READ not in repr(TOKENS)


def test_a_page_of_another_site_changes_nothing(with_access: Made) -> None:
    client = with_access(Access(anonymous=Role.OPERATE))
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        answer = client.post("/register/sink/etl/lake/db/x", headers=headers)
        assert (answer.status_code, answer.json()["error_class"]) == (403, "CROSS_SITE_REQUEST"), headers
    own = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    assert client.post("/register/sink/etl/lake/db/x", headers=own).status_code == 200


def test_without_tokens_only_local_host_names_are_served(with_access: Made) -> None:
    client = with_access(Access.on_loopback(Role.OPERATE))
    for host, status in (("evil.example", 403), ("evil.example:7117", 403), ("localhost:7117", 200),
                         ("127.0.0.1", 200), ("[::1]:1", 200), ("[", 403), ("", 403)):  # fmt: skip
        assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == status, host


def test_an_embedded_service_is_read_only(with_access: Made) -> None:
    client = with_access(Access(anonymous=Role.READ))
    assert client.get("/api/v1/jobs").status_code == 200
    assert client.post("/unregister/shop").json()["error_class"] == "ROLE_MISSING"


def test_browser_sessions_need_the_same_origin(with_access: Made) -> None:
    client = with_access(TOKENS)
    own = {"Origin": "http://testserver"}
    assert client.get("/login").status_code == 200
    for token, headers, status in ((OPERATE, {"Origin": "http://evil.example"}, 403), ("wrong", own, 401)):
        answer = client.post("/login", data={"token": token}, headers=headers, follow_redirects=False)
        assert (answer.status_code, "set-cookie" in answer.headers) == (status, False)
    opened = client.post("/login", data={"token": OPERATE}, headers=own, follow_redirects=False)
    cookie = opened.headers["set-cookie"].lower()
    assert (opened.status_code, OPERATE in cookie) == (303, False)
    assert "httponly" in cookie
    assert "samesite=strict" in cookie

    assert client.get("/api/v1/jobs").status_code == 200
    url = "/register/sink/etl/lake/db/x"
    assert client.post(url).json()["error_class"] == "CROSS_SITE_REQUEST"
    assert client.post(url, headers={"Origin": "http://evil.example"}).status_code == 403
    assert client.post(url, headers=own).status_code == 200
    session = client.cookies[COOKIE]
    client.post("/logout", headers=own, follow_redirects=False)
    client.cookies.set(COOKIE, session)
    assert client.get("/api/v1/jobs").status_code == 401


def test_a_session_has_the_role_of_its_token(with_access: Made) -> None:
    client = with_access(TOKENS)
    own = {"Origin": "http://testserver"}
    client.post("/login", data={"token": READ}, headers=own, follow_redirects=False)
    assert client.get("/api/v1/jobs").status_code == 200
    assert client.post("/unregister/shop", headers=own).json()["error_class"] == "ROLE_MISSING"


def test_other_machines_need_a_token() -> None:
    with pytest.raises(SettingsError, match="TOKENS_MISSING"):
        access_for(ListenAddress("0.0.0.0", 0), None, {})
    with pytest.raises(SettingsError, match="TOKENS_MISSING"):
        access_for(ListenAddress("::", 0), None, {})
    assert access_for(ListenAddress("127.0.0.1", 0), None, {}).anonymous is Role.OPERATE
    given = access_for(ListenAddress("0.0.0.0", 0), None, {"TAUTOCHRONE_SERVE_READ_TOKEN": READ})
    caller = given.caller_of(READ)
    assert caller is not None
    assert (given.anonymous, caller.role) == (None, Role.READ)
    with pytest.raises(SettingsError, match="TOKEN_TOO_SHORT"):
        access_for(ListenAddress("127.0.0.1", 0), None, {"TAUTOCHRONE_SERVE_READ_TOKEN": "short"})
