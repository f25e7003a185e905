"""Forms: who may send them, what reaches the runner and the revisions, and what an error looks like."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tautochrone.metaservice.pages.safety import CSRF_COOKIE, CSRF_FIELD
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import CheckpointNumber
from tautochrone.runtime.revision.plan import RevisionRequest

from .conftest import Site
from .html import parse
from .world import DAILY, HOSTILE, ORDERS, TOP

Made = Callable[..., Site]
FORMS = {
    "/query": {"sql": "SELECT 1", "consistency": "strong"},
    "/preview": {"name": str(DAILY)},
    "/revision": {"names": str(DAILY), "to": "3"},
}


@pytest.mark.parametrize("path", FORMS)
def test_a_form_of_somebody_else_is_refused(site: Made, path: str) -> None:
    found = site("shop")
    token, fields = found.csrf(), FORMS[path]
    own = {CSRF_FIELD: token, **fields}
    assert found.client.post(path, data=own).status_code == 200
    asked = len(found.rows.asked)
    refused = [
        found.client.post(path, data=fields),
        found.client.post(path, data={CSRF_FIELD: "x" * len(token), **fields}),
        found.client.post(path, data={CSRF_FIELD: "", **fields}),
        found.client.post(path, data=own, headers={"Origin": "http://elsewhere.example"}),
        found.client.post(path, data=own, headers={"Origin": "null"}),
    ]
    found.client.cookies.clear()
    refused += [found.client.post(path, data=own), found.client.post(path, data={CSRF_FIELD: "", **fields})]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert all("FORM_REFUSED" in answer.text for answer in refused)
    assert len(found.rows.asked) == asked
    assert not found.plans.done


def test_the_cookie_is_of_this_site_only(site: Made) -> None:
    found = site("shop")
    cookie = found.client.get("/").headers["set-cookie"].lower()
    assert cookie.startswith(CSRF_COOKIE)
    assert "samesite=strict" in cookie
    assert "httponly" in cookie
    assert "set-cookie" not in found.client.get("/jobs").headers


def test_only_posts_act(site: Made) -> None:
    found = site("shop")
    found.client.get("/query", params={"sql": "SELECT 1", "consistency": "weak", "checkpoint": "3"})
    found.client.get("/revision", params={"names": str(DAILY), "to": "3", "confirm": "1", "seen": "x"})
    assert found.client.get("/preview").status_code == 405
    assert not found.rows.asked
    assert not found.plans.done


def test_too_long_and_undecodable_forms_are_refused(site: Made) -> None:
    found = site("shop")
    assert found.post("/query", sql="x" * 300_000).status_code == 403
    body = f"{CSRF_FIELD}={found.csrf()}&sql=".encode() + b"\xff%FF"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert found.client.post("/query", content=body, headers=headers).status_code == 403


def test_a_query_reaches_the_runner_as_it_was_asked(site: Made) -> None:
    found = site("shop")
    page = parse(found.post("/query", sql="SELECT 1", consistency="weak", checkpoint="").text)
    found.post("/query", sql="SELECT 2", consistency="strong", checkpoint="7")
    assert found.rows.asked == [
        ("SELECT 1", Consistency.WEAK, None, 200),
        ("SELECT 2", Consistency.STRONG, 7, 200),
    ]
    assert "3 rows, and there are more, at the newest version of each table" in page.text
    assert [cell.text for cell in page.all("tbody")[0].all("td")][:4] == ["1", HOSTILE[0], "2", "NULL"]
    assert page.all("textarea")[0].text == "SELECT 1"


def test_an_error_keeps_the_query_and_shows_the_place(site: Made) -> None:
    page = parse(site("shop").post("/query", sql="SELECT boom", consistency="strong").text)
    (alert,) = [e for e in page.all() if e.attributes.get("role") == "alert"]
    assert "UNRESOLVED_COLUMN" in alert.text
    assert HOSTILE[0] in alert.text
    assert "^^^^" in alert.text
    assert page.all("textarea")[0].text == "SELECT boom"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"sql": " ", "consistency": "strong"}, "QUERY_EMPTY"),
        ({"sql": "SELECT 1", "consistency": "<b>"}, "QUERY_INSTANT_INVALID"),
        ({"sql": "SELECT 1", "consistency": "strong", "checkpoint": "-1"}, "QUERY_INSTANT_INVALID"),
        ({"sql": "SELECT 1", "consistency": "strong", "checkpoint": "9" * 30}, "QUERY_INSTANT_INVALID"),
        ({"sql": "SELECT 1", "consistency": "strong", "checkpoint": "٣"}, "QUERY_INSTANT_INVALID"),
    ],
)
def test_what_is_no_query(site: Made, fields: dict[str, str], error: str) -> None:
    found = site("shop")
    assert error in found.post("/query", **fields).text
    assert not found.rows.asked


def test_a_preview_reads_one_known_table(site: Made) -> None:
    found = site("shop")
    whole = found.post("/preview", name=str(DAILY), checkpoint="5")
    assert "<html" in whole.text
    headers = {"HX-Request": "true", "HX-Target": "rows"}
    fields = {CSRF_FIELD: found.csrf(), "name": str(DAILY)}
    part = found.client.post("/preview", data=fields, headers=headers)
    assert "<html" not in part.text
    assert [(sql, at) for sql, _, at, _ in found.rows.asked] == [
        ("SELECT * FROM `lake`.`shop`.`daily_revenue` LIMIT 20", 5),
        ("SELECT * FROM `lake`.`shop`.`daily_revenue` LIMIT 20", None),
    ]
    assert found.post("/preview", name="lake.shop.other").status_code == 404
    unknown = {CSRF_FIELD: found.csrf(), "name": "lake.shop.other"}
    said = found.client.post("/preview", data=unknown, headers=headers)
    assert said.status_code == 200, "htmx shows nothing else"
    assert "DATASET_NOT_FOUND" in said.text


def test_without_runner_and_revisions_the_pages_say_why(site: Made) -> None:
    found = site("shop", bare=True)
    for path, said in (
        ("/query", "knows no project"),
        ("/revision", "knows no project"),
        (f"/dataset?name={DAILY}", "knows no project"),
    ):
        page = parse(found.client.get(path).text)
        assert said in page.text
        assert not page.all("form")
    assert "QUERIES_UNAVAILABLE" in found.post("/query", **FORMS["/query"]).text
    assert "REVISIONS_UNAVAILABLE" in found.post("/revision", **FORMS["/revision"]).text


def test_a_revision_is_shown_then_confirmed(site: Made) -> None:
    found = site("shop")
    asked = {"names": f"{DAILY}\n  {TOP}\n", "to": "7"}
    page = parse(found.post("/revision", **asked).text)
    assert not found.plans.done
    assert "Revoked checkpoints: 39, 40" in page.text
    assert "clickhouse.daily" in page.text
    hidden = {e.attributes["name"]: e.attributes["value"] for e in page.all("form")[1].all("input")}
    assert {key: hidden[key] for key in ("names", "to")} == {"names": f"{DAILY}\n{TOP}", "to": "7"}

    unconfirmed = {key: hidden[key] for key in ("names", "to", "seen")}
    assert "What would happen" in found.post("/revision", **unconfirmed).text
    assert not found.plans.done
    done = found.post("/revision", **unconfirmed, confirm="1")
    assert "Revision r-1 is done" in done.text
    assert found.plans.done == [RevisionRequest(named=(DAILY, TOP), to=CheckpointNumber(7))]


def test_a_list_that_changed_meanwhile_is_shown_again(site: Made) -> None:
    found = site("shop")
    page = parse(found.post("/revision", names=str(DAILY), to="7", full="1").text)
    hidden = {e.attributes["name"]: e.attributes["value"] for e in page.all("form")[1].all("input")}
    fields = {key: value for key, value in hidden.items() if key not in (CSRF_FIELD, "confirm")}
    found.plans.drift = " differently"
    again = found.post("/revision", **fields, confirm="1")
    assert "The list has changed since you saw it" in again.text
    assert not found.plans.done
    # That more checkpoints are published meanwhile is no other list: a job that runs never stops doing it.
    found.plans.drift, found.plans.revoked = "", (39, 40, 41)
    assert "Revision r-1 is done" in found.post("/revision", **fields, confirm="1").text
    assert found.plans.done.pop().full
    # Nor is a list of another way the one that was shown.
    ways = {key: value for key, value in fields.items() if key != "full"}
    assert "The list has changed" in found.post("/revision", **ways, confirm="1").text
    # A list that was never shown is none that somebody confirmed, either.
    found.post("/revision", names=str(ORDERS), to="7", confirm="1", seen="")
    found.post("/revision", names=str(ORDERS), to="7", confirm="1")
    assert not found.plans.done


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"names": "", "to": "7"}, "QUERY_EMPTY"),
        ({"names": "lake.shop.other", "to": "7"}, "DATASET_NOT_FOUND"),
        ({"names": str(DAILY), "to": ""}, "QUERY_INSTANT_INVALID"),
        ({"names": str(DAILY), "to": "seven"}, "QUERY_INSTANT_INVALID"),
        ({"names": str(DAILY), "to": "7", "read_again": "1"}, "REVISION_NOT_REPLAYABLE"),
    ],
)
def test_what_is_no_revision(site: Made, fields: dict[str, str], error: str) -> None:
    assert error in site("shop").post("/revision", **fields).text
