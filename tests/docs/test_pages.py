"""The pages made from the code are up to date, and links outside of `docs/` lead somewhere.

Links inside `docs/` are checked when the site is built (`make check`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .errors import KINDS, UnreadError, raised, read
from .follow import ROOT
from .reference import DOCS, PAGES, stale

PAGES_OUTSIDE = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *ROOT.glob("[!.]*/**/README.md"),
]
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def test_the_generated_pages_are_up_to_date() -> None:
    assert not stale(), "run `python -m tests.docs.reference`"


def test_a_page_that_is_not_there_or_differs_is_stale(tmp_path: Path) -> None:
    for name in PAGES:
        (tmp_path / name).write_text((DOCS / name).read_text("utf-8"), "utf-8")
    first, second, *_ = sorted(PAGES)
    (tmp_path / first).unlink()
    (tmp_path / second).write_text("old", "utf-8")
    assert sorted(stale(tmp_path)) == [first, second]


def test_every_kind_of_error_has_its_classes() -> None:
    """But for the root, which catches."""
    assert set(KINDS) - {entry.kind for entry in raised()} <= {"TautochroneError"}


@pytest.mark.parametrize(
    ("source", "classes"),
    [
        ("raise SpecError('A_B', f'{x.path} is bad', hint='no')", [("A_B", "<path> is bad", "no")]),
        ("raise SpecError('A' if x else 'B', 'bad')", [("A", "bad", ""), ("B", "bad", "")]),
        ("W = {1: ('A', 'gone')}\ndef f():\n    c, w = W[1]\n    raise SpecError(c, w)", [("A", "<w>", "")]),
        ("def f(error_class): raise SpecError(error_class, 'x')\nf('A_B')", [("A_B", "", "")]),
        (
            "class K:\n  error_class: str = 'A'\nK('B_C')\nraise SpecError(k.error_class, 'x')",
            [("A", "x", ""), ("B_C", "x", "")],
        ),
        ("raise SpecError(problem.error_class, 'x')", []),
        (
            "raise SpecError('A', f'{len(bad_files)} files of {flow.name}')",
            [("A", "<number of bad files> files of <flow>", "")],
        ),
        ("self.emit(events.Left(error_class='A_B', reason=why_left))", [("A_B", "<why left>", "")]),
        ("answer(404, f'[NO_TABLE] No {table}.')", [("NO_TABLE", "No <table>.", "")]),
        ("raise SpecError('NO_TABLE', 'x')\nanswer('[NO_TABLE] y')", [("NO_TABLE", "x", "")]),
    ],
)
def test_ways_to_raise_and_report(source: str, classes: list[tuple[str, str, str]]) -> None:
    assert [(entry.error_class, entry.sentence, entry.hint) for entry in read([source])] == classes


def test_a_class_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(UnreadError, match="name_of"):
        read(["raise SpecError(name_of(x), 'x')"])


def test_every_page_is_in_the_site_and_every_record_in_its_index() -> None:
    site = (ROOT / "zensical.toml").read_text("utf-8")
    index = (DOCS / "design" / "index.md").read_text("utf-8")
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f'"{page}"' not in site] == []
    records = [page.name for page in DOCS.glob("design/[0-9]*.md")]
    assert [record for record in records if f"({record})" not in index] == []


@pytest.mark.parametrize("page", PAGES_OUTSIDE, ids=lambda page: str(page.relative_to(ROOT)))
def test_links(page: Path) -> None:
    broken = [link for link in _LINK.findall(page.read_text("utf-8")) if not _leads_somewhere(page, link)]
    assert not broken


def _leads_somewhere(page: Path, link: str) -> bool:
    if re.match(r"https?://|mailto:", link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub and the site spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-") for text in headings}
