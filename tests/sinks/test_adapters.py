"""Every format of the project is complete: what is added in `sinks.adapters` has its page and its tests."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.docs.reference import DOCS

from tautochrone.errors import SinkError
from tautochrone.model.sink import PUBLICATIONS
from tautochrone.sinks import check_sink, known_formats, open_sink
from tautochrone.sinks.adapters import ADAPTERS

ROOT = DOCS.parent


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_format_is_complete(name: str) -> None:
    adapter = ADAPTERS[name]
    assert name in known_formats()
    functions = (adapter.opens, adapter.reads_options, adapter.examines, adapter.opens_participant)
    # The columns of a publication are those of its files.
    assert bool(adapter.checks_table) is not adapter.takes_files
    for function in (*functions, adapter.checks_table):
        if function:
            module, _, attribute = function.partition(":")
            assert callable(getattr(import_module(module), attribute))
    assert (DOCS / adapter.page).exists()
    assert f"[`{name}`]({adapter.page})" in (DOCS / "sinks.md").read_text("utf-8")
    assert f'"{adapter.page}"' in (ROOT / "zensical.toml").read_text("utf-8")
    with pytest.raises(SinkError, match=name):
        check_sink("mirror", name, {})


@pytest.mark.parametrize("name", [name for name, adapter in ADAPTERS.items() if not adapter.takes_files])
def test_a_format_passes_the_suite_of_all_sinks(name: str) -> None:
    """Its tests run it: a module with the suite, or the benches beside it, import the adapter's sink."""
    package = ADAPTERS[name].opens.partition(":")[0]
    assert any(_imports_from(package, module) for module in _suites())


def test_publications_are_the_formats_that_take_files() -> None:
    """`tests/sinks/publications` runs its suite over each of them."""
    assert set(PUBLICATIONS.values()) == {name for name, adapter in ADAPTERS.items() if adapter.takes_files}
    suite = (ROOT / "tests/sinks/publications/toy_lake.py").read_text("utf-8")
    assert all(f'"{name}":' in suite for name in PUBLICATIONS)


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_the_pages_name_the_formats_of_publications(name: str) -> None:
    (row,) = (
        line
        for line in (DOCS / "settings.md").read_text("utf-8").splitlines()
        if "`tautochrone.publish`" in line
    )
    assert f"`{name}`" in row
    page = (DOCS / "publications.md").read_text("utf-8")
    readers, columns = (line for line in page.splitlines() if line.startswith(("| | ", "| Iceberg | ")))
    assert f"{name.capitalize()}: " in readers
    assert f" {name.capitalize()} " in columns


def test_a_package_without_a_suite_is_noticed() -> None:
    """`tests/sinks` has the suite's own tests, and names the packages of all adapters."""
    assert not any(_imports_from("tautochrone.sinks.common", module) for module in _suites())
    assert len(_suites()) >= len(ADAPTERS) - len(PUBLICATIONS)


def _suites() -> list[Path]:
    """The modules that run the suite over an adapter."""
    modules = (ROOT / "tests" / "sinks").glob("*/test_*.py")
    return [
        module
        for module in modules
        if re.search(r"\((SinkConformance|FewRefusals)\b", module.read_text("utf-8"))
    ]


def _imports_from(package: str, module: Path) -> bool:
    files = [file for file in (module, module.with_name("benches.py")) if file.exists()]
    pattern = rf"^(from|import) {re.escape(package)}\.sink\b"
    return any(re.search(pattern, file.read_text("utf-8"), re.MULTILINE) for file in files)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tautochrone.sinks.postgresql.sink", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for module in ("database", "tables"):
        monkeypatch.delitem(sys.modules, f"tautochrone.sinks.postgresql.{module}", raising=False)
    with pytest.raises(SinkError) as missing:
        open_sink("mirror", "postgresql", {"url": "postgresql://reports@db.example/shop"})
    assert missing.value.error_class == "SINK_PACKAGE_MISSING"
    assert missing.value.hint == "pip install 'tautochrone[postgres]'"
