"""`taut serve` in a project, in Chromium: queries and revisions with a Spark of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect
from pyspark.sql import SparkSession
from tests.runtime.commands import taut_in_process
from tests.support.harness import Pipeline

from tautochrone.app.stores import project_store
from tautochrone.model.checkpoint import CheckpointState

from .browser import chromium

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_OPERATE, _READ = "a-token-that-may-operate", "a-token-that-may-only-read"
_VIEW = (
    "CREATE MATERIALIZED VIEW totals AS SELECT kind, count(*) AS n, sum(id) AS ids FROM events GROUP BY kind;"
)


def _project(folder: Path, spark: SparkSession) -> Pipeline:
    """A pipeline with two checkpoints, the second one with wrong data."""
    pipeline = Pipeline(folder, spark, settings='[spark]\nmaster = "local[1]"\n')
    pipeline.write(
        "definitions/p.py",
        f"""
        from pyspark import pipelines as dp

        @dp.table
        def events():
            return spark.readStream.schema("id long, kind int").json({str(folder / "in")!r})
        """,
    )
    pipeline.write("definitions/totals.sql", _VIEW)
    pipeline.write("in/1.json", '{"id": 1, "kind": 1}\n{"id": 2, "kind": 2}')
    pipeline.run()
    pipeline.write("in/2.json", '{"id": -7, "kind": 1}')
    pipeline.run()
    return pipeline


@contextmanager
def _serving(folder: Path) -> Iterator[str]:
    log = folder / "serve.log"
    tokens = {"TAUTOCHRONE_SERVE_OPERATE_TOKEN": _OPERATE, "TAUTOCHRONE_SERVE_READ_TOKEN": _READ}
    command = [sys.executable, "-m", "tautochrone.cli.main", "serve", "--port", "0"]
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, cwd=folder, stderr=stderr, env={**os.environ, **tokens})
    try:
        while (address := re.search(r"serving at (http://\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        yield address[1]
    finally:
        process.terminate()
        assert process.wait(30) == 0, log.read_text()


def _login(page: Page, uri: str, token: str) -> None:
    page.context.clear_cookies()
    page.goto(f"{uri}/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def _ask(page: Page, sql: str, *, weak: bool = False) -> None:
    page.get_by_label("SQL that only reads").fill(sql)
    page.get_by_label("weak" if weak else "strong").check()
    page.get_by_role("button", name="Run").click()


def test_queries_and_a_revision(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = _project(tmp_path, spark)
    shots = os.environ.get("SHOTS")
    with _serving(tmp_path) as uri, chromium() as browser:
        page = browser.new_page()
        page.set_default_timeout(240_000)  # Spark starts meanwhile
        _login(page, uri, _READ)

        def shot(name: str) -> None:
            if shots:
                for theme in ("light", "dark"):
                    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
                    page.wait_for_timeout(400)  # until colours have changed
                    page.screenshot(path=f"{shots}/{name}-{theme}.png", full_page=True)

        page.goto(f"{uri}/query")
        expect(page.get_by_text("the first query starts it")).to_be_visible()
        shot("query-0")
        _ask(page, "SELECT * FROM totals ORDER BY kind")
        expect(page.get_by_text("2 rows, at checkpoint 2")).to_be_visible()
        assert page.locator("tbody td").all_inner_texts() == ["1", "2", "-6", "2", "1", "2"]
        expect(page.get_by_text("the first query starts it")).to_have_count(0)
        shot("query-1")
        _ask(page, "SELECT * FROM totals ORDER BY kind", weak=True)
        expect(page.get_by_text("newest version of each table")).to_be_visible()
        for wrong, error_class in (
            ("DROP TABLE totals", "QUERY_NOT_READ_ONLY"),
            ("SELECT nothing FROM totals", "UNRESOLVED_COLUMN"),
            (f"SELECT * FROM text.`{tmp_path}/serve.log`", "TABLE_OR_VIEW_NOT_FOUND"),
            ("SELECT reflect('java.lang.System', 'getenv', 'PATH')", "UNRESOLVED_ROUTINE"),
            ("SELECT '${env:TAUTOCHRONE_SERVE_OPERATE_TOKEN}' AS a, nothing", "UNRESOLVED_COLUMN"),
        ):
            _ask(page, wrong)
            alert = page.get_by_role("alert")
            expect(alert).to_contain_text(error_class)
            assert _OPERATE not in page.content()
            assert page.get_by_label("SQL that only reads").input_value() == wrong
            shot(f"query-{error_class}")
        _ask(page, "SELECT '${env:TAUTOCHRONE_SERVE_OPERATE_TOKEN}' AS a")
        expect(page.locator("tbody td")).to_have_text("${env:TAUTOCHRONE_SERVE_OPERATE_TOKEN}")

        page.goto(f"{uri}/revision")
        expect(page.get_by_text("needs the role operate")).to_be_visible()
        assert not page.locator("main form").count()
        shot("revision-read")
        _login(page, uri, _OPERATE)
        page.goto(f"{uri}/revision?name=lake.default.events")
        page.get_by_label("Back to checkpoint").select_option("1")
        page.get_by_role("button", name="Show what would happen").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        shot("revision-plan")
        page.get_by_label("read again").check()
        page.get_by_role("button", name="Show what would happen").click()
        expect(page.locator("tbody tr").first).to_contain_text("roll back")
        shot("revision-plan-again")
        page.get_by_label("I have read the list").check()
        page.get_by_role("button", name="Revise 2 tables").click()
        expect(page.get_by_role("status").filter(has_text="is done")).to_be_visible()
        shot("revision-done")
        page.goto(f"{uri}/query")
        _ask(page, "SELECT * FROM totals ORDER BY kind")
        expect(page.get_by_text("2 rows, at checkpoint 1")).to_be_visible()
        page.goto(f"{uri}/checkpoints")
        shot("checkpoints")
    with project_store(pipeline.settings) as store:
        states = {line.number: line.state for line in store.history.timeline()}
        assert states == {1: CheckpointState.PUBLISHED, 2: CheckpointState.REVOKED}
    pipeline.write("in/2.json", '{"id": 7, "kind": 1}')
    pipeline.run()
    assert pipeline.query("SELECT * FROM totals") == [(1, 2, 8), (2, 1, 2)]
    pipeline.close()


def test_a_built_plan_is_decided_and_applied(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = _project(tmp_path, spark)
    pipeline.write("definitions/totals.sql", _VIEW.replace("count(*)", "2 * count(*)"))
    built = taut_in_process(tmp_path, pipeline.session, "plan", "--build", "--key", "kind", "--json")
    assert built.returncode == 0, built.stderr
    identity = json.loads(built.stdout.splitlines()[-1])["build"]
    with _serving(tmp_path) as uri, chromium() as browser:
        page = browser.new_page()
        _login(page, uri, _READ)
        page.goto(f"{uri}/plan?id={identity}")
        expect(page.get_by_text("needs the role operate")).to_be_visible()
        expect(page.locator(".diff .added")).to_contain_text("2 * count(*)")
        _login(page, uri, _OPERATE)
        page.goto(f"{uri}/plan?id={identity}")
        page.get_by_label("I have looked at the differences").check()
        page.get_by_role("button", name="Decide to apply").click()
        expect(page.get_by_role("heading", name="Decided", exact=True)).to_be_visible()
        happened = pipeline.run()
        assert happened.refresh("totals")["reason_code"] == "BUILD_APPLIED"
        page.reload()
        expect(page.locator("h1")).to_contain_text("applied")
        answer = httpx.get(f"{uri}/api/v1/plans/{identity}", headers={"Authorization": f"Bearer {_READ}"})
        (view,) = answer.json()["tables"]
        assert (view["changed"], view["changed_values"]) == (2, {"n": 2})
    assert pipeline.query("SELECT n FROM totals ORDER BY kind") == [(2,), (4,)]
    pipeline.close()
