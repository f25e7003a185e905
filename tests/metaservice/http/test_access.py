"""Tokens, roles, and what browsers are made to send."""

from __future__ import annotations

import html
import logging
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from tautochrone.app.locate import Options
from tautochrone.app.serve import ListenAddress, access_for, run
from tautochrone.errors import SettingsError
from tautochrone.meta import Store
from tautochrone.metaservice.app import create_app
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
    assert "samesite=lax" in cookie

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


PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_browser_without_a_session_is_sent_to_the_form_and_back(with_access: Made) -> None:
    client = with_access(TOKENS)
    for page in ("/", "/datasets?state=failed&name=a%20b", "/api/v1/jobs"):
        sent = client.get(page, headers=PAGE, follow_redirects=False)
        assert sent.status_code == 303
        form = client.get(sent.headers["location"], headers=PAGE)
        assert (form.status_code, form.headers["x-frame-options"]) == (200, "DENY")
        (shown,) = re.findall(r'name="next" value="([^"]*)"', form.text)
        fields = {"token": READ, "next": html.unescape(shown)}
        opened = client.post("/login", data=fields, headers=PAGE, follow_redirects=False)
        assert (opened.status_code, unquote(opened.headers["location"])) == (303, unquote(page))
        assert client.get(page, headers=PAGE, follow_redirects=False).status_code == 200
        assert client.get("/login", headers=PAGE, follow_redirects=False).status_code == 303
        client.post("/logout", headers={"Origin": "http://testserver"}, follow_redirects=False)
    renewed = client.get("/datasets", headers={"HX-Request": "true"}, follow_redirects=False)
    assert (renewed.status_code, renewed.headers["hx-redirect"]) == (401, "/login?next=%2Fdatasets")
    for headers in ({}, {"Accept": "application/json"}):
        assert client.get("/datasets", headers=headers).json()["error_class"] == "TOKEN_MISSING"
    assert client.get("/static/pages.css").status_code == 200


def test_pages_show_the_role_and_a_wrong_token_is_said_in_the_form(with_access: Made) -> None:
    client = with_access(TOKENS)
    wrong = client.post("/login", data={"token": "wrong", "next": "/jobs"}, headers=PAGE)
    assert wrong.status_code == 401
    assert "not known here" in wrong.text
    assert 'value="/jobs"' in wrong.text
    assert "Log out" not in wrong.text
    for token, role in ((READ, "read"), (OPERATE, "operate")):
        page = client.post("/login", data={"token": token}, headers=PAGE)
        assert page.url.path == "/"
        assert f"role: {role}" in page.text
        assert "Log out" in page.text
        assert token not in page.text
        client.post("/logout", headers={"Origin": "http://testserver"})
    page = with_access(Access.on_loopback(Role.OPERATE)).get("/", headers={"Host": "localhost", **PAGE})
    assert "role: operate" in page.text
    assert "Log out" not in page.text


@pytest.mark.parametrize(
    "page",
    ["//evil.example", "https://evil.example", "/\\evil.example", "\\\\evil.example", "/\t/evil.example",
     "evil", "javascript:alert(1)", "/login", "/logout?x", "", "//[", "/\n//evil.example"],
)  # fmt: skip
def test_logging_in_opens_no_other_site(with_access: Made, page: str) -> None:
    client = with_access(TOKENS)
    opened = client.post("/login", data={"token": READ, "next": page}, headers=PAGE, follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    form = client.get("/login", params={"next": page}, headers=PAGE, follow_redirects=False)
    assert form.headers["location"] == "/"


def test_a_session_link_of_another_site_shows_and_changes_nothing(with_access: Made) -> None:
    """The cookie is sent with a link of another site: that page opens, and no form of that site is taken."""
    client = with_access(TOKENS)
    client.post("/login", data={"token": OPERATE}, headers=PAGE)
    other = {"Sec-Fetch-Site": "cross-site", **PAGE}
    assert client.get("/datasets", headers=other).status_code == 200
    assert client.post("/logout", headers=other).json()["error_class"] == "CROSS_SITE_REQUEST"
    assert client.post("/unregister/x", headers=other).json()["error_class"] == "CROSS_SITE_REQUEST"


def test_behind_a_proxy_a_request_is_what_the_browser_sent(store: Store) -> None:
    forwarded = {
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "pipelines.example",
        "X-Forwarded-Prefix": "/taut/",
        "X-Forwarded-For": "203.0.113.9, 10.0.0.7",
        "Origin": "https://pipelines.example",
    }
    app = create_app(access=TOKENS, store=store, proxies=["10.1.1.1"])
    proxy = TestClient(app, client=("10.1.1.1", 5000))
    opened = proxy.post("/login", data={"token": READ}, headers=forwarded | PAGE, follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/taut/")
    assert "secure" in opened.headers["set-cookie"].lower()
    page = TestClient(app, client=("10.1.1.1", 5000)).get(
        "/datasets?a=b", headers=forwarded | PAGE, follow_redirects=False
    )
    assert page.headers["location"] == "/taut/login?next=%2Fdatasets%3Fa%3Db"
    form = TestClient(app, client=("10.1.1.1", 5000)).get("/login", headers=forwarded | PAGE)
    assert 'action="/taut/login"' in form.text
    assert 'href="/taut/static/' in form.text
    # Another spelling of the proxy, as a socket for both versions of IP shows it.
    mapped = TestClient(app, client=("::ffff:10.1.1.1", 5000))
    answer = mapped.post("/login", data={"token": READ}, headers=forwarded, follow_redirects=False)
    assert answer.headers["location"] == "/taut/"
    # A prefix that the proxy left in the path is no endless redirection.
    left = proxy.get("/taut/login", headers=forwarded | PAGE, follow_redirects=False)
    assert left.json()["error_class"] == "TOKEN_MISSING"
    # Anybody else's headers count for nothing.
    for other in ("10.1.1.2", "testclient", ""):
        client = TestClient(app, client=(other, 5000))
        assert client.post("/login", data={"token": READ}, headers=forwarded).status_code == 403


@pytest.mark.parametrize("prefix", ["/version", "/api/v1/query", "/rpc", "/query", "/v1"])
def test_a_prefix_gives_no_rights(store: Store, prefix: str) -> None:
    """A proxy may pass on what a client says. The role is asked for by the path that is routed."""
    app = create_app(access=TOKENS, store=store, proxies=["10.1.1.1"])
    client = TestClient(app, client=("10.1.1.1", 5000))
    store.jobs.start_run("shop", "shop", [])
    headers = {"X-Forwarded-Prefix": prefix, **bearer(READ)}
    for path in (f"{prefix}/unregister/shop", f"{prefix}{prefix}/unregister/shop", "/unregister/shop"):
        assert client.post(path, headers=headers).status_code in (403, 404, 405, 422), path
    assert [job.name for job in store.jobs.states()] == ["shop"]


def test_a_proxy_is_an_address_and_needs_tokens(tmp_path: Path) -> None:
    store, address = f"sqlite:///{tmp_path}/meta.db", ListenAddress("127.0.0.1", 0)
    with pytest.raises(SettingsError, match="TOKENS_MISSING"):
        run(Options(), address, meta_url=store, proxies=["127.0.0.1"])
    with pytest.raises(SettingsError, match="PROXY_INVALID"):
        run(Options(), address, meta_url=store, proxies=["proxy.example"])


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
