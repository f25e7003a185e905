"""Forms: CSRF protection, what reaches the runner and the revisions, and errors."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from tautochrone.metaservice.pages.forms import csv_of
from tautochrone.metaservice.pages.safety import CSRF_COOKIE, CSRF_FIELD
from tautochrone.model.checkpoint import Consistency
from tautochrone.model.names import CheckpointNumber, Version
from tautochrone.model.project_build import BuildState, BuiltTable
from tautochrone.runtime.revision.plan import RevisionRequest

from .conftest import Site
from .html import parse
from .world import DAILY, HOSTILE, ORDERS, PLAN, TOP, built

OpenSite = Callable[..., Site]
FORMS = {
    "/query": {"sql": "SELECT 1", "consistency": "strong"},
    "/preview": {"name": str(DAILY)},
    "/revision": {"names": str(DAILY), "to": "3"},
    "/plan": {"id": PLAN, "confirm": "1"},
}


@pytest.mark.parametrize("path", FORMS)
def test_form_of_another_site_is_refused(open_site: OpenSite, path: str) -> None:
    site = open_site("young")
    built(site.store, "shop", [DAILY], "n")
    token, fields = site.csrf(), FORMS[path]
    own = {CSRF_FIELD: token, **fields}
    assert site.client.post(path, data=own).status_code == 200
    queries = len(site.rows.queries)
    refused = [
        site.client.post(path, data=fields),
        site.client.post(path, data={CSRF_FIELD: "x" * len(token), **fields}),
        site.client.post(path, data={CSRF_FIELD: "", **fields}),
        site.client.post(path, data=own, headers={"Origin": "http://elsewhere.example"}),
        site.client.post(path, data=own, headers={"Origin": "null"}),
    ]
    site.client.cookies.clear()
    refused += [site.client.post(path, data=own), site.client.post(path, data={CSRF_FIELD: "", **fields})]
    assert [answer.status_code for answer in refused] == [403] * len(refused)
    assert all("FORM_REFUSED" in answer.text for answer in refused)
    assert len(site.rows.queries) == queries
    assert not site.plans.done


def test_cookie_is_same_site_and_http_only(open_site: OpenSite) -> None:
    site = open_site("young")
    cookie = site.client.get("/").headers["set-cookie"].lower()
    assert cookie.startswith(CSRF_COOKIE)
    assert "samesite=strict" in cookie
    assert "httponly" in cookie
    assert "set-cookie" not in site.client.get("/jobs").headers


def test_get_requests_change_nothing(open_site: OpenSite) -> None:
    site = open_site("young")
    site.client.get("/query", params={"sql": "SELECT 1", "consistency": "weak", "checkpoint": "3"})
    site.client.get("/revision", params={"names": str(DAILY), "to": "3", "confirm": "1", "seen": "x"})
    assert site.client.get("/preview").status_code == 405
    assert not site.rows.queries
    assert not site.plans.done


def test_too_long_and_undecodable_forms_are_refused(open_site: OpenSite) -> None:
    site = open_site("young")
    assert site.post("/query", sql="x" * 300_000).status_code == 403
    body = f"{CSRF_FIELD}={site.csrf()}&sql=".encode() + b"\xff%FF"
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert site.client.post("/query", content=body, headers=headers).status_code == 403


def test_query_reaches_the_runner(open_site: OpenSite) -> None:
    site = open_site("young")
    page = parse(site.post("/query", sql="SELECT 1", consistency="weak", checkpoint="").text)
    site.post("/query", sql="SELECT 2", consistency="strong", checkpoint="7")
    assert site.rows.queries == [
        ("SELECT 1", Consistency.WEAK, None, 200),
        ("SELECT 2", Consistency.STRONG, 7, 200),
    ]
    assert "3 rows, and there are more, at the newest version of each table" in page.text
    assert [cell.text for cell in page.all("tbody")[0].all("td")][:4] == ["1", HOSTILE[0], "2", "NULL"]
    assert page.all("textarea")[0].text == "SELECT 1"


def test_error_keeps_the_query_and_shows_its_position(open_site: OpenSite) -> None:
    page = parse(open_site("young").post("/query", sql="SELECT boom", consistency="strong").text)
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
def test_invalid_queries_are_refused(open_site: OpenSite, fields: dict[str, str], error: str) -> None:
    site = open_site("young")
    assert error in site.post("/query", **fields).text
    assert not site.rows.queries


def test_preview_reads_one_known_table(open_site: OpenSite) -> None:
    site = open_site("young")
    whole = site.post("/preview", name=str(DAILY), checkpoint="5")
    assert "<html" in whole.text
    headers = {"HX-Request": "true", "HX-Target": "rows"}
    fields = {CSRF_FIELD: site.csrf(), "name": str(DAILY)}
    part = site.client.post("/preview", data=fields, headers=headers)
    assert "<html" not in part.text
    assert [(sql, checkpoint) for sql, _, checkpoint, _ in site.rows.queries] == [
        ("SELECT * FROM `lake`.`shop`.`daily_revenue` LIMIT 20", 5),
        ("SELECT * FROM `lake`.`shop`.`daily_revenue` LIMIT 20", None),
    ]
    assert site.post("/preview", name="lake.shop.other").status_code == 404
    unknown = {CSRF_FIELD: site.csrf(), "name": "lake.shop.other"}
    message = site.client.post("/preview", data=unknown, headers=headers)
    assert message.status_code == 200, "htmx shows only answers with status 200"
    assert "DATASET_NOT_FOUND" in message.text


def test_pages_say_why_forms_are_unavailable(open_site: OpenSite) -> None:
    site = open_site("young", bare=True)
    for path, message in (
        ("/query", "knows no project"),
        ("/revision", "knows no project"),
        (f"/dataset?name={DAILY}", "knows no project"),
    ):
        page = parse(site.client.get(path).text)
        assert message in page.text
        assert not page.all("form")
    assert "QUERIES_UNAVAILABLE" in site.post("/query", **FORMS["/query"]).text
    assert "REVISIONS_UNAVAILABLE" in site.post("/revision", **FORMS["/revision"]).text


def test_revision_is_shown_then_confirmed(open_site: OpenSite) -> None:
    site = open_site("young")
    fields = {"names": f"{DAILY}\n  {TOP}\n", "to": "7"}
    page = parse(site.post("/revision", **fields).text)
    assert not site.plans.done
    assert "Revoked checkpoints: 39, 40" in page.text
    assert "clickhouse.daily" in page.text
    hidden = {e.attributes["name"]: e.attributes["value"] for e in page.all("form")[1].all("input")}
    assert {key: hidden[key] for key in ("names", "to")} == {"names": f"{DAILY}\n{TOP}", "to": "7"}

    unconfirmed = {key: hidden[key] for key in ("names", "to", "seen")}
    assert "What would happen" in site.post("/revision", **unconfirmed).text
    assert not site.plans.done
    done = site.post("/revision", **unconfirmed, confirm="1")
    assert "Revision r-1 is done" in done.text
    assert site.plans.done == [RevisionRequest(named=(DAILY, TOP), to=CheckpointNumber(7))]


def test_a_built_plan_is_decided(open_site: OpenSite) -> None:
    site = open_site("young")
    built(site.store, "shop", [DAILY], "n", ["0000000a", "0000000b", "0000000c"])
    fence = site.store.jobs.newest_fence("shop")
    fields_of_plan = FORMS["/plan"]

    def refused(**fields: str) -> str:
        text = parse(site.post("/plan", **fields_of_plan | fields).text).text
        assert site.store.builds.get(PLAN).state is BuildState.BUILT
        return text

    assert "JOB_RUNNING" in refused()
    assert not parse(site.client.get("/plan", params={"id": PLAN}).text).all("form")
    site.store.jobs.end_run("shop", fence)
    assert "BUILD_CHECKS_FAILED" in refused(id="0000000a")
    assert "BUILD_NOT_FOUND" in refused(id="0000000b")
    assert site.post("/plan", id="nothing", confirm="1").status_code == 404
    assert "PLAN_NOT_CONFIRMED" in parse(site.post("/plan", id=PLAN).text).text
    site.store.builds.finish(replace(site.store.builds.get(PLAN), tables=(built_version("8"),)))
    assert "BUILD_GONE" in refused()
    site.store.builds.finish(replace(site.store.builds.get(PLAN), tables=(built_version("7", "d1"),)))
    assert "BUILD_BASE_CHANGED" in refused()
    site.store.builds.finish(replace(site.store.builds.get(PLAN), tables=(built_version("7"),)))
    page = parse(site.post("/plan", **fields_of_plan).text)
    assert "Decided" in [heading.text for heading in page.all("h2")]
    assert site.store.builds.get(PLAN).state is BuildState.DECIDED
    assert "Decided" in site.post("/plan", **fields_of_plan).text, "once more"


def built_version(version: str, replaces: str | None = None) -> BuiltTable:
    return BuiltTable(table=DAILY, version=Version(version), definition="n", replaces=replaces)


def test_without_a_lake_no_plan_is_decided(open_site: OpenSite) -> None:
    site = open_site("young", bare=True)
    built(site.store, "shop", [DAILY], "n")
    site.store.jobs.end_run("shop", site.store.jobs.newest_fence("shop"))
    page = parse(site.client.get("/plan", params={"id": PLAN}).text)
    assert f"taut apply {PLAN}" in page.text
    assert "APPLY_UNAVAILABLE" in site.post("/plan", **FORMS["/plan"]).text


@pytest.mark.parametrize("bare", [False, True])
def test_rows_of_a_plan_are_shown_where_queries_are_answered(open_site: OpenSite, bare: bool) -> None:
    site = open_site("young", bare=bare)
    built(site.store, "shop", [DAILY, TOP], "n")
    text = site.client.get("/plan", params={"id": PLAN}).text
    assert ("Rows that come" in text, "2026-01-01" in text) == (not bare, not bare)
    assert (f"taut diff 1 plan-{PLAN}" in text) == bare


def test_changed_plan_is_shown_again(open_site: OpenSite) -> None:
    site = open_site("young")
    page = parse(site.post("/revision", names=str(DAILY), to="7", full="1").text)
    hidden = {e.attributes["name"]: e.attributes["value"] for e in page.all("form")[1].all("input")}
    fields = {key: value for key, value in hidden.items() if key not in (CSRF_FIELD, "confirm")}
    site.plans.drift = " differently"
    again = site.post("/revision", **fields, confirm="1")
    assert "The list has changed since you saw it" in again.text
    assert not site.plans.done
    # More published checkpoints do not change the plan: a running job publishes all the time.
    site.plans.drift, site.plans.revoked = "", (39, 40, 41)
    assert "Revision r-1 is done" in site.post("/revision", **fields, confirm="1").text
    assert site.plans.done.pop().full
    # A plan with other options is another plan.
    ways = {key: value for key, value in fields.items() if key != "full"}
    assert "The list has changed" in site.post("/revision", **ways, confirm="1").text
    # A plan that was never shown cannot be confirmed.
    site.post("/revision", names=str(ORDERS), to="7", confirm="1", seen="")
    site.post("/revision", names=str(ORDERS), to="7", confirm="1")
    assert not site.plans.done


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
def test_invalid_revisions_are_refused(open_site: OpenSite, fields: dict[str, str], error: str) -> None:
    assert error in open_site("young").post("/revision", **fields).text


def test_queries_are_remembered_for_their_browser_alone(open_site: OpenSite) -> None:
    site = open_site("young")
    for sql in ("SELECT 1", "SELECT 2", "boom", "SELECT 1", " ", HOSTILE[0]):
        site.post("/query", sql=sql, consistency="strong")

    def remembered() -> list[str]:
        page = parse(site.client.get("/query").text)
        sections = [e for e in page.all("section") if e.attributes.get("aria-labelledby") == "history"]
        return [code.text for section in sections for code in section.all("code")]

    assert remembered() == [HOSTILE[0], "SELECT 1", "boom", "SELECT 2"]
    for number in range(30):
        site.post("/query", sql=f"SELECT {number}", consistency="strong")
    assert remembered()[0] == "SELECT 29"
    assert len(remembered()) == 20
    site.client.cookies.clear()
    assert remembered() == []


def test_result_can_be_downloaded(open_site: OpenSite) -> None:
    site = open_site("young")
    fields = {"consistency": "strong", "checkpoint": "3", "download": "csv"}
    answer = site.post("/query", sql="SELECT 1", **fields)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == 'attachment; filename="query-checkpoint-3.csv"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows == [["id", "tags", "raw", "t"], ["1", '["a", "\\""]', "00FF", ""], ["2", "", "", ""]]
    refused = site.post("/query", sql="boom", **fields)
    assert "UNRESOLVED_COLUMN" in refused.text
    assert HOSTILE[0] not in refused.text
    assert "content-disposition" not in refused.headers
    assert "QUERY_EMPTY" in site.post("/query", sql=" ", **fields).text


def test_query_page_lists_tables_and_columns(open_site: OpenSite) -> None:
    site = open_site("young")
    page = parse(site.client.get("/query").text)
    schema = {d.all("summary")[0].text: d.all("ul")[0].text for d in page.all("details")}
    assert schema["shop.daily_revenue"].startswith("day date")
    assert "its job says its columns" in schema["shop.orders"]
    links = [link.attributes["href"] for link in page.all("a")]
    assert "/query?sql=SHOW+TABLES" in links


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (Decimal("1.50"), pa.decimal128(10, 2), "1.50"),
        (Decimal("0E-6"), pa.decimal128(10, 6), "0.000000"),
        (Decimal("0E-8"), pa.decimal128(10, 8), "0.00000000"),
        (Decimal("-1E-20"), pa.decimal256(40, 20), "-0.00000000000000000001"),
        ([Decimal("0E-8")], pa.list_(pa.decimal128(10, 8)), '["0.00000000"]'),
        (date(2026, 1, 2), pa.date32(), "2026-01-02"),
        (datetime(2026, 1, 2, 3, 4, 5, 6, UTC), pa.timestamp("us", "UTC"), "2026-01-02 03:04:05.000006Z"),
        (timedelta(days=1, microseconds=5), pa.duration("us"), "1 day, 0:00:00.000005"),
        (b"\x00\xff", pa.binary(), "00FF"),
        (b"\x00\xff", pa.large_binary(), "00FF"),
        (b"\x00\xff", pa.binary(2), "00FF"),
        ('x\n,"', pa.large_string(), 'x\n,"'),
        (True, pa.bool_(), "true"),
        ({"a": Decimal("1.0"), "b": [b"\x01"]}, None, '{"a": "1.0", "b": ["01"]}'),
        ([("k", None)], pa.map_(pa.string(), pa.int32()), '[["k", null]]'),
    ],
)
def test_values_in_a_download(value: object, kind: pa.DataType | None, text: str) -> None:
    rows = pa.table([pa.array([value, None], kind), pa.array([1, 2])], names=["a", "a"])
    lines = list(csv.reader(io.StringIO(csv_of(rows).decode())))
    assert lines == [["a", "a"], [text, "1"], ["", "2"]]
