"""A real run whose definitions try to reveal two secrets, and a search for
them in everything that the run leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.process import TautProcess

from .processes import run_taut

pytestmark = pytest.mark.spark

SECRETS = ("hush/of a variable", "hush%of a file")
SPEC = "name: hunt\nstorage: storage\nlibraries:\n  - glob:\n      include: definitions/**\n"
SETTINGS = """
[spark.conf]
"pipeline.key" = { env = "PIPELINE_KEY" }
"pipeline.login" = { file = "../login.txt" }
"spark.eventLog.enabled" = true
"spark.eventLog.dir" = "events"
"""
DEFINITIONS = """
import os
import subprocess

from pyspark import pipelines as dp
from pyspark.sql import functions as f

print("printed")
subprocess.run(["echo", "echoed"])
secrets = spark.conf.get("pipeline.key") + " and " + spark.conf.get("pipeline.login")
if "BREAK" in os.environ:
    raise ValueError("cannot log in with " + secrets)


@dp.table
def stream():
    rows = spark.readStream.schema("value STRING").text("input")
    return rows.select(f.when(f.col("value") == "x", f.raise_error(f.lit(secrets))).otherwise("a").alias("a"))


@dp.materialized_view
def view():
    return spark.range(3).select(f.raise_error(f.lit(secrets)).cast("string").alias("b"))


@dp.materialized_view
def healthy():
    rows = spark.sql("SELECT id FROM range(3) WHERE '${pipeline.key}' <> ''")
    return rows.where(f.col("id").cast("string") != f.lit(secrets))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    for name in ("definitions", "input", "events"):
        (folder / name).mkdir(parents=True)
    (tmp_path / "login.txt").write_text(f"{SECRETS[1]}\n")
    (folder / "spark-pipeline.yml").write_text(SPEC)
    settings = SETTINGS.replace('"events"', f'"{(folder / "events").as_uri()}"')
    (folder / "tautochrone.toml").write_text(settings)
    (folder / "definitions" / "all.py").write_text(DEFINITIONS)
    (folder / "input" / "1.txt").write_text("x\n")
    monkeypatch.setenv("PIPELINE_KEY", SECRETS[0])
    return folder


def shown_anywhere(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text or secret.replace("/", "\\/") in text]


def command_lines(root: int) -> str:
    """The command lines of all processes below `root`, as every user of the machine sees them."""
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if parent == root:
            lines += [line, command_lines(int(folder.name))]
    return "\n".join(lines)


@pytest.mark.quick
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_nothing_shows_a_secret(project: Path) -> None:
    process_arguments = ""
    with TautProcess(project / "spark-pipeline.yml") as run:

        def run_ended(events: list[dict[str, object]]) -> bool:
            nonlocal process_arguments
            process_arguments += command_lines(os.getpid())
            return any(event["event"] == "run" for event in events)

        run.wait_for(run_ended)
        run.stop()
        all_events = str(run.events)
        assert run.other_lines == [], "what definitions print is no event"
    # The search is not empty: the run failed twice, on Spark, with errors that contained the secrets.
    assert "org.apache.spark.deploy.SparkSubmit" in process_arguments
    assert sum(event["event"] in ("flow_failed", "refresh_failed") for event in run.events) == 2
    assert all_events.count("***") >= 4
    assert not shown_anywhere(process_arguments)
    assert not shown_anywhere(all_events)

    output = "".join(
        taut(project, *command)
        for command in (
            ["status", "--json"],
            ["status", "view", "--history", "--json"],
            ["config", "show", "--origin"],
        )
    )
    assert "***" in output
    assert '{ env = "PIPELINE_KEY" }' in output
    assert not shown_anywhere(output)

    files = [path for path in project.rglob("*") if path.is_file()]
    assert any(path.name.endswith("meta.db") for path in files)
    assert any("events" in path.parts for path in files)
    assert [str(path) for path in files if shown_anywhere(path.read_bytes().decode("latin-1"))] == []


@pytest.mark.slow
def test_no_answer_shows_a_secret(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = taut(project, "dry-run", "--explain", "healthy")
    assert "***" in tree
    assert not shown_anywhere(tree)
    monkeypatch.setenv("BREAK", "1")
    broken = taut(project, "dry-run", "--debug", expect=1)
    assert "Traceback" in broken
    assert "cannot log in with *** and ***" in broken
    assert not shown_anywhere(broken)


def taut(folder: Path, *arguments: str, expect: int = 0) -> str:
    """All output of a command."""
    done = run_taut(folder, *arguments, expect=expect)
    return done.stdout + done.stderr
