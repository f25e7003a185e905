"""The pages in Chromium: no console errors, usable by keyboard, readable text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize, expect

from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.metaservice.pages import rendering
from tautochrone.metaservice.pages.rendering import NAVIGATION
from tautochrone.model.names import TableName, Version

from . import browser
from .conftest import Site
from .world import DAILY, HOSTILE, PLAN, name

OpenSite = Callable[..., Site]
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
NARROW: ViewportSize = {"width": 390, "height": 800}
PATHS = [path for path, _ in NAVIGATION]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.chromium() as started:
        yield started


@pytest.fixture
def open_page(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a page in a browser context of its own. Messages on the console fail the test."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def open_in_new_context(site: Site, path: str = "/", **options: Any) -> Page:
        context = chromium.new_context(base_url=site.url, **options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{page.url}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"{page.url}: {error}"))
        page.on("dialog", lambda dialog: complaints.append(f"{page.url}: dialog {dialog.message}"))
        page.on("request", lambda request: _own(request.url, site.url, complaints))
        page.goto(path)
        return page

    yield open_in_new_context
    for context in contexts:
        context.close()
    assert not complaints


def _own(url: str, base: str, complaints: list[str]) -> None:
    if not url.startswith(base):
        complaints.append(f"asked for {url}")


def all_paths(table: TableName, number: int) -> list[str]:
    text = quote(str(table), safe="")
    return [
        *PATHS,
        f"/dataset?name={text}",
        f"/graph?focus={text}",
        f"/checkpoint?number={number}",
        f"/plan?id={PLAN}",
    ]


def check_shown(page: Page, path: str) -> None:
    """The page is whole; messages on the console fail the test at its end."""
    page.goto(path)
    expect(page.locator("h1")).to_be_visible()
    assert page.title().endswith("· Tautochrone")
    assert page.evaluate("typeof htmx") == "object"


def test_pages_of_an_empty_store(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    page = open_page(open_site("empty"))
    for path in PATHS:
        check_shown(page, path)


def test_pages_of_hostile_names(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    page = open_page(open_site("hostile"), viewport=NARROW)
    longest = all_paths(name(HOSTILE[-1], HOSTILE[-1]), 1)
    for path in dict.fromkeys([*all_paths(name(HOSTILE[1], HOSTILE[1]), 1), *longest]):
        check_shown(page, path)
        if path in longest:
            check_width(page, path)


def test_pages_are_readable(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    """In each theme, by those who hear them, and on narrow screens."""
    page = open_page(open_site("failing"), reduced_motion="reduce")
    wide = page.viewport_size
    assert wide is not None
    for path in all_paths(DAILY, 39):
        page.set_viewport_size(wide)
        check_shown(page, path)
        check_names(page, path)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            poor = page.evaluate(_CONTRAST)
            assert not poor, (path, theme, poor)
        if path == PATHS[0]:
            assert page.evaluate(_CONTRAST.replace("< needed", ">= needed")), "no element was measured"
        page.set_viewport_size(NARROW)
        page.reload()
        check_width(page, path)


_CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (text) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, at) => {
    const v = c[at] / 255;
    return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  }, 0);
  const behind = (element) => {
    const body = element.closest("g.box")?.querySelector(".body");
    if (body) return rgba(getComputedStyle(body).fill);
    for (let at = element; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("title, script, option")) continue;
    const style = getComputedStyle(element), svg = element.namespaceURI.endsWith("svg");
    const front = light(rgba(svg ? style.fill : style.color)), back = light(behind(element));
    const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
    const size = parseFloat(style.fontSize), bold = style.fontWeight >= 700;
    const needed = size >= 24 || (bold && size >= 18.7) ? 3 : 4.5;
    if (ratio < needed) poor.push(`${element.tagName}.${element.className.baseVal ?? element.className} `
      + `${element.textContent.trim().slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


def check_names(page: Page, path: str) -> None:
    """Every control has an accessible name."""
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, "
          + "progress, [tabindex='0'], [role=img]")]
          .filter((e) => !(e.labels?.length || e.getAttribute("aria-label") || e.textContent.trim()))
          .map((e) => e.outerHTML)"""
    )
    assert not nameless, path


def check_width(page: Page, path: str) -> None:
    """The page does not scroll sideways."""
    wide, shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= shown, path


def test_graph_is_usable_by_keyboard(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    page = open_page(open_site("failing"), "/graph")
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    for _ in range(40):
        label = page.evaluate("document.activeElement.getAttribute('aria-label')")
        shown = page.evaluate(
            """() => { const e = document.activeElement;
              const body = e.tagName === "a" && e.querySelector(".body");
              return body ? parseFloat(getComputedStyle(body).strokeWidth) >= 3
                          : parseFloat(getComputedStyle(e).outlineWidth) >= 2; }"""
        )
        assert shown, page.evaluate("document.activeElement.outerHTML")
        if label == f"{DAILY}: failing":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#detail")).to_contain_text("DIVIDE_BY_ZERO")
    expect(page.locator("#detail")).to_contain_text("transformations/daily.sql:1")
    assert page.url.split("#")[0].endswith("/graph"), "the page was left"


def test_theme_follows_the_system_until_one_is_chosen(
    open_site: OpenSite, open_page: Callable[..., Page]
) -> None:
    page = open_page(open_site("young"), color_scheme="dark")
    back = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(back)
    assert dark != light
    theme = page.get_by_role("button", name="Theme")
    theme.click()
    expect(theme).to_have_text("Theme: light")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(back) == light
    theme.click()
    page.emulate_media(color_scheme="light")
    page.goto("/jobs")
    expect(page.get_by_role("button", name="Theme")).to_have_text("Theme: dark")
    assert page.evaluate(back) == dark


@pytest.fixture
def quick_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages refresh themselves ten times as often."""
    monkeypatch.setattr(rendering, "_REFRESH_S", 0.5)


@pytest.mark.usefixtures("quick_refresh")
def test_page_refreshes_itself_unless_paused_or_focused(
    open_site: OpenSite, open_page: Callable[..., Page]
) -> None:
    site = open_site("young")
    page = open_page(site)
    status, pause = page.locator("#updates"), page.get_by_role("button", name="updates")
    expect(status).to_have_text("Live")
    problems = page.get_by_role("heading", name="Problems", exact=True)
    expect(problems).to_have_count(0)
    roots = {name(table): Version("99") for table in ("orders", "payments")}
    fence = site.store.jobs.newest_fence("shop")
    number = site.store.checkpoints.open("shop", fence, NewCheckpoint(roots, 1)).number
    expect(problems).to_have_count(1, timeout=20_000)

    pause.click()
    expect(status).to_have_text("Paused")
    site.store.checkpoints.abort("shop", fence, number)
    page.wait_for_timeout(1_500)
    expect(problems).to_have_count(1)
    pause.click()
    expect(problems).to_have_count(0, timeout=20_000)

    link = page.locator("#live a").first
    link.focus()
    expect(status).to_have_text("Waits: something here has the focus", timeout=20_000)
    expect(link).to_be_focused()


@pytest.mark.usefixtures("quick_refresh")
def test_page_says_when_the_server_does_not_answer(open_site: OpenSite, chromium: Browser) -> None:
    site = open_site("young")
    page = chromium.new_page(base_url=site.url)
    page.goto("/")
    page.route("**/*", lambda route: route.abort())
    expect(page.locator("#updates")).to_have_text("No answer: this page is not up to date", timeout=20_000)
    page.close()


def test_pages_work_without_javascript(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    site = open_site("failing")
    page = open_page(site, java_script_enabled=False)
    expect(page.locator("#pause")).to_be_hidden()
    page.goto("/graph")
    page.locator("svg a", has_text="daily_revenue").first.click()
    expect(page.locator("h1")).to_contain_text("daily_revenue")
    page.get_by_role("button", name="Show rows").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    page.goto("/datasets")
    page.get_by_label("Name contains").fill("clean")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto("/query")
    page.get_by_label("SQL that only reads").fill("SELECT 1")
    page.get_by_label("weak").check()
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("at the newest version of each table")).to_be_visible()


def test_preview_and_revision_in_the_browser(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    site = open_site("failing")
    page = open_page(site, f"/dataset?name={DAILY}")
    page.get_by_label("At checkpoint").select_option("38")
    page.get_by_role("button", name="Show rows").click()
    expect(page.locator("#rows tbody tr")).to_have_count(3)
    expect(page.locator("#rows")).to_contain_text("at checkpoint 38")
    page.get_by_role("link", name="Revise…").click()
    page.get_by_label("Back to checkpoint").select_option("38")
    page.get_by_role("button", name="Show what would happen").click()
    confirm = page.get_by_role("button", name="Revise 1 table")
    confirm.click()
    expect(confirm).to_be_visible()
    assert not site.plans.done, "the box was not ticked"
    page.get_by_label("I have read the list").check()
    confirm.click()
    expect(page.get_by_role("status")).to_contain_text("Revision r-1 is done")
    assert len(site.plans.done) == 1


def test_a_plan_in_the_browser(open_site: OpenSite, open_page: Callable[..., Page]) -> None:
    site = open_site("failing")
    page = open_page(site, "/plans")
    page.get_by_role("link", name=PLAN).click()
    expect(page.locator("main")).to_contain_text(f"taut apply {PLAN} --takeover")
    site.store.jobs.end_run("shop", site.store.jobs.newest_fence("shop"))
    page.reload()
    decide = page.get_by_role("button", name="Decide to apply")
    decide.click()
    expect(decide).to_be_visible()
    page.get_by_label("I have looked at the differences").check()
    decide.click()
    expect(page.get_by_role("heading", name="Decided", exact=True)).to_be_visible()
    expect(page.locator("h1")).to_contain_text("decided")
