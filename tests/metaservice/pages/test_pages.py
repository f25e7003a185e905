"""The content of each page: empty stores, a hundred tables, failures, hostile text."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from urllib.parse import urlencode

import httpx
import pytest
from sqlalchemy import Engine, event
from starlette.testclient import TestClient

from tautochrone.errors import MetaError
from tautochrone.meta import DatasetState
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.meta.sql.datasets import SqlHistory
from tautochrone.metaservice.pages.graph import STATE_SHAPES
from tautochrone.metaservice.pages.rendering import ASSETS, NAVIGATION
from tautochrone.metaservice.pages.routes import _Count, _Counted
from tautochrone.model.names import CheckpointNumber, Fence, TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.run_report import CaptureReport, Quarantine, RunReport, Work, WorkPhase
from tautochrone.model.sink import Intent, SinkDeclaration, SinkFlow, TransactionId
from tautochrone.model.source import KeptLog

from .conftest import Site
from .html import Element, parse
from .serving import serving
from .world import DAILY, HOSTILE, ORDERS, SEEDS, TOP, Seeder, name, outside

OpenSite = Callable[..., Site]
PagesOf = Callable[[str], dict[str, Element]]


def get(site: Site, path: str, **query: object) -> Element:
    answer = site.client.get(path, params={key: str(value) for key, value in query.items()})
    assert answer.status_code == 200, (path, query, answer.status_code)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return parse(answer.text)


def every_page(site: Site, tables: int = 7) -> dict[str, Element]:
    """All pages of a site: those of the navigation and those of each dataset and checkpoint."""
    pages = {path: get(site, path) for path, _ in NAVIGATION}
    for status in site.store.datasets.statuses()[:tables]:
        for path in ("/dataset", "/dataset/summary", "/graph"):
            key = "focus" if path == "/graph" else "name"
            pages[f"{path}?{status.dataset}"] = get(site, path, **{key: status.dataset})
    for line in site.store.history.timeline(5):
        pages[f"/checkpoint?{line.number}"] = get(site, "/checkpoint", number=line.number)
    for build in site.store.builds.remembered():
        pages[f"/plan?{build.id}"] = get(site, "/plan", id=build.id)
    return pages


@pytest.fixture(scope="module")
def pages_of_seeds() -> dict[str, dict[str, Element]]:
    """The pages of the seeds that a test has asked for."""
    return {}


@pytest.fixture
def pages_of(open_site: OpenSite, pages_of_seeds: dict[str, dict[str, Element]]) -> PagesOf:
    """All pages of a seed, got once."""

    def pages(seed: str) -> dict[str, Element]:
        if seed not in pages_of_seeds:
            # Of a hundred tables the first ones are like the others.
            pages_of_seeds[seed] = every_page(open_site(seed), 2 if seed == "many" else 7)
        return pages_of_seeds[seed]

    return pages


def test_every_page_without_forms_is_valid(open_site: OpenSite) -> None:
    check_valid(every_page(open_site("shop", bare=True)))


@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed not in ("young", "wide", "narrow")])
def test_every_page_of_every_store_is_valid(pages_of: PagesOf, seed: str) -> None:
    check_valid(pages_of(seed))


def check_valid(pages: dict[str, Element]) -> None:
    for path, page in pages.items():
        ids = [e.attributes["id"] for e in page.all() if "id" in e.attributes]
        assert len(ids) == len(set(ids)), path
        if path.startswith("/dataset/summary"):
            continue
        (heading,) = page.all("h1")
        assert heading.text, path
        (html,) = page.all("html")
        assert html.attributes["lang"] == "en"


def test_pages_load_nothing_from_other_sites_and_inline_nothing(pages_of: PagesOf) -> None:
    for path, page in pages_of("failing").items():
        for element in page.all():
            for attribute in ("src", "href", "action", "hx-get", "hx-post"):
                where = element.attributes.get(attribute, "/")
                assert where.startswith(("/", "#")), (path, where)
                assert not where.startswith("//"), (path, where)
            assert "style" not in element.attributes, path
            assert not [a for a in element.attributes if a.startswith("on")], path
        assert all(script.attributes.get("src") and not script.text for script in page.all("script")), path
        assert not page.all("style"), path


def test_pages_have_security_headers(open_site: OpenSite) -> None:
    site = open_site("shop")
    for path in ("/", "/dataset?name=nobody", "/static/pages.css", "/static/none"):
        headers = site.client.get(path).headers
        policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == "'self'"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"


def test_links_lead_to_pages(open_site: OpenSite) -> None:
    """From the overview over every link of our own, until nothing new is site."""
    site = open_site("failing")
    seen: set[str] = set()
    todo = ["/"]
    while todo:
        path = todo.pop()
        answer = site.client.get(path)
        assert answer.status_code == 200, path
        for link in parse(answer.text).all("a"):
            target = link.attributes["href"].split("#")[0]
            if target and target not in seen:
                seen.add(target)
                # Of forty checkpoints some are like the others.
                if not target.startswith("/checkpoint?") or target[-1] == "9":
                    todo.append(target)
    # Eight pages, seven tables, forty checkpoints at the least.
    assert len(seen) > 55


def test_static_files_have_types_and_may_be_cached(open_site: OpenSite) -> None:
    site = open_site("empty")
    for file, media in ASSETS.items():
        answer = site.client.get(f"/static/{file}")
        assert answer.headers["content-type"] == media
        assert "immutable" in answer.headers["cache-control"]
    for path in ("/static/htmx.LICENSE.txt", "/static/..%2frouting.py", "/static/%2e%2e/__init__.py"):
        assert site.client.get(path).status_code == 404


def test_empty_store_names_the_first_command(open_site: OpenSite) -> None:
    assert "taut run" in get(open_site("empty"), "/").text


def test_problems_come_first_with_cause_and_dependents(open_site: OpenSite) -> None:
    page = get(open_site("failing"), "/")
    (problem,) = [e for e in page.all("article") if "failing" in e.attributes["class"]]
    assert problem.text.startswith("failing shop.daily_revenue last complete at 38,")
    assert "[DIVIDE_BY_ZERO]" in problem.text
    assert problem.text.endswith("Holds backshop.top_customers")
    headings = [heading.text for heading in page.all("h2")]
    assert headings[0] == "Problems"
    assert "No problems" not in page.text
    assert "No problems" in get(open_site("shop"), "/").text


def test_datasets_are_sorted_and_filtered(open_site: OpenSite) -> None:
    site = open_site("failing")
    rows = [row.text for row in get(site, "/datasets").all("tbody")[0].all("tr")]
    assert [row.split()[0] for row in rows] == [
        "shop.daily_revenue",
        "shop.top_customers",
        "shop.orders",
        "shop.orders_clean",
        "shop.payments",
    ]
    assert ["failing" in rows[0], "held back" in rows[1], "fresh" in rows[2]] == [True] * 3
    rows = [row.text for row in get(site, "/datasets", q="ORDERS_").all("tbody")[0].all("tr")]
    assert [row.split()[0] for row in rows] == ["shop.orders_clean"]
    assert "No dataset" in get(site, "/datasets", q="nothing like it").text


def test_dataset_shows_definition_columns_and_history(open_site: OpenSite) -> None:
    page = get(open_site("shop"), "/dataset", name=DAILY)
    text = page.text
    assert "transformations/daily.sql:1" in text
    assert "-- revenue per day and currency" in page.all("pre")[0].text
    columns = {row.all("td")[0].text: row.all("td")[2].text for row in page.all("tbody")[0].all("tr")}
    assert columns == {
        "day": "shop.orders_clean · at",
        "revenue": "ref.rates · rateshop.orders_clean · amount",
        "orders": "no column of the lake",
    }
    assert "decided by 3 columns" in text
    assert len([e for e in page.all("figure") if e.attributes["class"] == "chart"]) == 3
    history = page.all("tbody")[1].all("tr")
    assert len(history) == 20
    assert "its groups are remembered" in history[0].text
    assert len(get(open_site("failing"), "/dataset", name=TOP, all="true").all("tbody")[-1].all("tr")) > 30


def test_dataset_shows_its_expectations(open_site: OpenSite) -> None:
    site = open_site("shop")
    (row,) = get(site, "/dataset", name=TOP).all("tbody")[0].all("tr")
    cells = [cell.text.replace("\N{NARROW NO-BREAK SPACE}", "").replace(" ", "") for cell in row.all("td")]
    assert cells == ["hasanid", "isdropped", "1200", "-3"]
    assert "Expectations" not in get(site, "/dataset", name=DAILY).text


def test_unknown_lineage_has_a_reason(open_site: OpenSite) -> None:
    text = get(open_site("shop"), "/dataset", name=name("orders_clean")).text
    assert "Where columns come from is unknown: its plan cannot be followed" in text
    assert "has not told about columns" in get(open_site("shop"), "/dataset", name=name("orders")).text


def test_checkpoint_lists_failed_datasets(open_site: OpenSite) -> None:
    page = get(open_site("failing"), "/checkpoint", number=40)
    failed, changes, _jobs, refreshes = page.all("table")
    assert [row.all("td")[0].text for row in failed.all("tbody")[0].all("tr")] == [
        "shop.daily_revenue",
        "shop.top_customers",
    ]
    assert "failed" in refreshes.text
    # Three roots have another version; the rates stay.
    assert [row.all("td")[1].text for row in changes.all("tbody")[0].all("tr")].count("root") == 3


def test_old_open_checkpoint_is_stuck(open_site: OpenSite) -> None:
    page = get(open_site("many"), "/checkpoints")
    rows = [row.text for row in page.all("tbody")[0].all("tr")]
    assert sum("stuck" in row for row in rows) == 2
    assert all("open" in row for row in rows if "stuck" in row)
    assert "1 of 5 datasets" not in page.text
    assert "2 of 5 datasets" in page.text


def test_shared_checkpoint_shows_each_jobs_part(open_site: OpenSite) -> None:
    site = open_site("connected")
    page = get(site, "/checkpoint", number=2)
    _changes, jobs, _refreshes = page.all("tbody")
    rows = {row.all("td")[0].text: row.all("td")[1].text for row in jobs.all("tr")}
    assert rows == {
        "counts": "done",
        "joins": "pending waits for sums",
        "sums": "pending is at it",
        "words": "done",
    }
    assert "joins waits for sums" in get(site, "/checkpoints").text


def test_graph_shows_states_and_can_be_focused(open_site: OpenSite) -> None:
    site = open_site("failing")
    boxes = {
        link.attributes["aria-label"]: link.all("g")[0].attributes["class"]
        for link in get(site, "/graph").all("a")
        if "aria-label" in link.attributes
    }
    assert boxes["lake.shop.daily_revenue: failing"] == "box failing view"
    assert boxes["lake.shop.top_customers: held back: waits for daily_revenue"] == "box held-back view"
    assert boxes["lake.ref.rates: written by others"] == "box outside outside"
    assert len(boxes) == 7
    narrowed = get(site, "/graph", focus=name("payments")).text
    assert "daily_revenue" in narrowed
    assert "orders_clean: " not in narrowed


def test_hundred_tables_are_all_shown(open_site: OpenSite) -> None:
    site = open_site("many")
    assert len([e for e in get(site, "/graph").all("a") if "hx-get" in e.attributes]) == 100
    assert len(get(site, "/datasets").all("tbody")[0].all("tr")) == 100
    assert len(get(site, "/jobs").all("tbody")[0].all("tr")) == 20


def test_jobs_page_lists_sinks_with_their_batches(open_site: OpenSite) -> None:
    site = open_site("hostile")
    site.store.jobs.start_run("etl", "sender", [])
    fence = site.store.jobs.take_over("sender")
    sink = SinkDeclaration(name="<b>alerts", format="console", tables=())
    sink_fence = site.store.deliveries.claim("sender", fence, sink, Fence(0))
    flows = {"large_orders": SinkFlow(batch=2, rows=7)}
    site.store.deliveries.record_streamed("sender", fence, sink.name, sink_fence, flows, None, {})
    transaction = TransactionId(
        incarnation="i", sink=sink.name, checkpoint=CheckpointNumber(8), fence=sink_fence
    )
    site.store.deliveries.record_intent("sender", fence, Intent(transaction=transaction, versions={}))
    text = get(site, "/jobs").text
    assert "writing checkpoint 8" in text
    assert "<b>alerts" in text
    assert "large_orders: batch 2, 7 rows" in text


def test_hostile_text_stays_text(pages_of: PagesOf) -> None:
    all_text = ""
    for path, page in pages_of("hostile").items():
        assert all("src" in script.attributes for script in page.all("script")), path
        assert not [e for e in page.all("img") if e.attributes["src"] == "x"], path
        all_text += page.text
    for part in HOSTILE:
        assert " ".join(part.split()) in all_text
    assert str(7301 * 9091) not in all_text, "a template was evaluated"


def test_unknown_names_are_404(open_site: OpenSite) -> None:
    site = open_site("shop")
    for path, query in (
        ("/dataset", {"name": "lake.shop.nothing"}),
        ("/dataset", {"name": HOSTILE[0]}),
        ("/dataset/summary", {"name": "x"}),
        ("/graph", {"focus": "lake.no.table"}),
        ("/checkpoint", {"number": "4711"}),
        ("/plan", {"id": HOSTILE[0][:30]}),
    ):
        answer = site.client.get(f"{path}?{urlencode(query)}")
        assert answer.status_code == 404, path
        assert parse(answer.text).all("h1")
    for bad in ("-1", "x", "1" * 40, ""):
        assert site.client.get("/checkpoint", params={"number": bad}).status_code == 404


def test_links_include_the_root_path(open_site: OpenSite) -> None:
    site = open_site("shop")
    with serving(site.app, root_path="/meta") as url:
        page = parse(httpx.get(f"{url}/datasets", timeout=60).text)
    assert all(e.attributes["href"].startswith(("/meta/", "#")) for e in page.all("a"))
    (current,) = [e for e in page.all("a") if "aria-current" in e.attributes]
    assert current.text == "Datasets"


def test_changes_show_at_the_next_request(open_site: OpenSite) -> None:
    site = open_site("shop")
    job, fence = "shop", site.store.jobs.newest_fence("shop")
    roots = {TableName.parse(t): Version("99") for t in ("lake.shop.orders", "lake.shop.payments")}
    assert "Under way" not in get(site, "/").text
    site.store.checkpoints.open(job, fence, NewCheckpoint(roots, time.time_ns() // 1_000_000))
    assert "Under way" in get(site, "/").text


def test_graph_has_sources_and_sinks_with_the_newest_refresh(open_site: OpenSite) -> None:
    site = open_site("young")
    seeder = Seeder(site.store, 0, {"shop": site.store.jobs.newest_fence("shop")})
    outside(seeder, "shop", ORDERS, DAILY, ["orders of kafka:9092", "/data/in"])
    page = get(site, "/graph")
    boxes = {link.attributes["aria-label"]: link for link in page.all("a") if "aria-label" in link.attributes}
    assert boxes["topic orders of kafka:9092: topic"].attributes["href"] == "/sources#read"
    assert boxes["files /data/in: files"].all("text")[0].text == "in"
    assert boxes["sink sink /data/in: toy sink: lacks a checkpoint"].attributes["href"] == "/jobs#sinks"
    (daily,) = [label for label in boxes if label.startswith(f"{DAILY}: fresh; checkpoint 8: ")]
    assert daily.endswith(" removed")
    # A state has a shape of its own besides its colour.
    marks = {path.attributes["d"] for link in boxes.values() for path in link.all("path")[-1:]}
    assert {STATE_SHAPES[DatasetState.FRESH], STATE_SHAPES[DatasetState.BUILDING]} <= marks
    assert len(set(STATE_SHAPES.values())) == len(DatasetState)
    around = get(site, "/graph", focus=name("payments")).text
    assert "topic orders of kafka" not in around
    assert "sink /data/in" in around


def test_dataset_names_its_sources_and_sinks(open_site: OpenSite) -> None:
    site = open_site("young")
    seeder = Seeder(site.store, 0, {"shop": site.store.jobs.newest_fence("shop")})
    outside(seeder, "shop", ORDERS, DAILY, ["orders of kafka:9092"])
    assert "topic orders of kafka:9092" in get(site, "/dataset", name=ORDERS).text
    daily = get(site, "/dataset", name=DAILY).text
    assert "toy sink sink orders of kafka:9092" in daily
    assert "Rows added" in daily
    assert "Rows in" not in daily


def test_sources_have_phase_lag_and_kept_log(open_site: OpenSite) -> None:
    site = open_site("young")
    seeder = Seeder(site.store, 0, {"shop": site.store.jobs.newest_fence("shop")})
    outside(seeder, "shop", ORDERS, DAILY, ["PostgreSQL capture erp"], phase="copying")
    (row,) = get(site, "/sources").all("tbody")[0].all("tr")
    assert [cell.text for cell in row.all("td")][4:] == ["shop.orders", "copying", "3.4 s", "16 MB"]


def test_checkpoint_shows_changes_neighbours_and_rows(open_site: OpenSite) -> None:
    site = open_site("young")
    page = get(site, "/checkpoint", number=7)
    links = [link.attributes["href"] for link in page.all("a")]
    assert {"/checkpoint?number=6", "/checkpoint?number=8"} <= set(links)
    (rows,) = [link for link in links if "orders_clean" in link and link.startswith("/query")]
    query = parse(site.client.get(rows).text)
    assert query.all("textarea")[0].raw == "SELECT * FROM `lake`.`shop`.`orders_clean` LIMIT 100"
    assert [o.text for o in query.all("option") if "selected" in o.attributes] == ["7"]
    assert not site.rows.queries, "a link ran a query"
    bare = open_site("young", bare=True)
    assert "/query?" not in bare.client.get("/checkpoint?number=7").text


def test_overview_sums_up_the_last_day(open_site: OpenSite) -> None:
    page = get(open_site("young"), "/")
    (section,) = [e for e in page.all("section") if e.attributes.get("aria-labelledby") == "day"]
    rows = {row.all("td")[0].text: row for row in section.all("tbody")[0].all("tr")}
    assert rows.keys() == {"shop.orders_clean", "shop.daily_revenue", "shop.top_customers"}
    assert "full" in rows["shop.orders_clean"].text


def test_only_the_graph_reads_the_newest_refreshes(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newest_refreshes(_history: SqlHistory) -> None:
        raise MetaError("STORE_AWAY", "not now")

    site = open_site("young")
    monkeypatch.setattr(SqlHistory, "newest_refreshes", newest_refreshes)
    paths = [*(path for path, _ in NAVIGATION), f"/dataset?name={name('orders_clean')}"]
    assert [path for path in paths if site.client.get(path).status_code != 200] == ["/graph"]


def test_the_overview_is_shown_when_the_day_cannot_be_counted(
    open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def totals(_history: SqlHistory, _since_ms: int) -> None:
        raise MetaError("STORE_AWAY", "not now")

    monkeypatch.setattr(SqlHistory, "totals", totals)
    page = get(open_site("young"), "/")
    (section,) = [e for e in page.all("section") if e.attributes.get("aria-labelledby") == "day"]
    assert "[STORE_AWAY] not now" in section.text


def test_a_count_is_shown_while_it_is_not_too_old() -> None:
    clock, may_end, counts = SimpleNamespace(ms=0), Event(), iter(range(9))

    def count() -> int:
        assert may_end.wait(30)
        return next(counts)

    may_end.set()
    counted = _Counted(count, 60_000, 300_000, lambda: clock.ms)
    assert counted() == _Count(0, 0)
    clock.ms = 60_000
    assert counted() == _Count(0, 0)
    may_end.clear()
    shown = {}
    for clock.ms in (60_001, 300_000, 300_001):
        shown[clock.ms] = counted()
    assert shown == {60_001: _Count(0, 0), 300_000: _Count(0, 0), 300_001: None}
    may_end.set()
    # It is as old as the beginning of its counting.
    assert counted() == _Count(1, 60_001)


def test_pages_ask_as_often_of_many_datasets(open_site: OpenSite) -> None:
    """Sixty views with sixty sources and sinks, all failing, ask the store as often as two do."""
    statements: list[str] = []

    def record(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", record)
    try:
        counts: dict[str, list[int]] = {}
        for seed in ("narrow", "wide"):
            client = TestClient(open_site(seed).app)
            for path in (
                *(path for path, _ in NAVIGATION),
                f"/dataset?name={name('view1')}",
                "/checkpoint?number=2",
            ):
                statements.clear()
                assert client.get(path).status_code == 200
                counts.setdefault(path, []).append(len(statements))
    finally:
        event.remove(Engine, "before_cursor_execute", record)
    assert {path: few for path, (few, many) in counts.items() if few != many} == {}, counts


def test_until_when_a_database_keeps_the_log_of_a_capture(open_site: OpenSite) -> None:
    site = open_site("empty")
    site.store.jobs.start_run("shop", "shop", [])
    fence = site.store.jobs.take_over("shop")
    at_ms = 4_000_000_000_000
    kept = KeptLog(
        name="bin.000007",
        is_own=True,
        distance_bytes=None,
        kept_bytes=None,
        is_lost=False,
        last_read=None,
        drop="",
        expires_ms=at_ms,
        expires_after_ms=60_000,
    )
    capture = CaptureReport(source="erp", dataset="log", phase="streaming", kept=(kept,))
    site.store.jobs.heartbeat("shop", fence, report=RunReport(captures={"log": capture}))
    assert "bin.000007 kept until 2096-10-02 07:06:40 UTC at least" in get(site, "/sources").text


def test_what_a_run_does_and_its_last_bad_record(open_site: OpenSite) -> None:
    site = open_site("shop")
    fence = site.store.jobs.newest_fence("shop")
    number = site.store.checkpoints.open("shop", fence, NewCheckpoint({}, time.time_ns() // 10**6)).number
    since_ms = site.store.now_ms() - 54_000
    work = Work(
        phase=WorkPhase.REFRESHING,
        since_ms=since_ms,
        checkpoint=number,
        total=3,
        refreshing={str(TOP): since_ms},
    )
    quarantine = Quarantine(
        table="lake.shop.q", records=1, reason=unclassified("<b>"), last_ms=since_ms, first="line 17"
    )
    report = RunReport(work=work, quarantines={str(ORDERS): quarantine})
    site.store.jobs.heartbeat("shop", fence, 900_000, report=report)
    for path in ("/", "/checkpoints", "/jobs"):
        text = get(site, path).text
        expected = rf"shop: refreshing checkpoint {number} for 5\d s: 0 of 3 refreshed, now {TOP} \(5\d s\)"
        assert re.search(expected, text), path
    text = get(site, "/dataset", name=ORDERS).text
    assert "1 record is set aside in lake.shop.q, the last" in text
    assert "The first of the last batch: line 17: <b>" in text
    # Before a checkpoint is open, the page of jobs says it.
    work = Work(phase=WorkPhase.INGESTING, since_ms=since_ms)
    site.store.checkpoints.abort("shop", fence, number)
    site.store.jobs.heartbeat("shop", fence, 900_000, report=RunReport(work=work))
    assert "ingesting for 5" in get(site, "/jobs").text
