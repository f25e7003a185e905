"""`taut doctor`: one line for each check, a hint where it fails, the exit code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tautochrone.app.finding import Finding, State, check
from tautochrone.app.health import health_findings
from tautochrone.app.locate import Options

ALL = [
    *("python", "java", "spark", "jars", "classes", "project", "ports", "storage", "store", "master"),
    *("session", "catalog", "definitions", "kafka", "captures", "sinks"),
]
SPEC = "name: shop\nstorage: {storage}\nlibraries:\n  - glob: {{include: t/**}}\n"


def write(folder: Path, *, settings: str = "", storage: str = "storage", files: dict[str, str]) -> Path:
    (folder / "spark-pipeline.yml").write_text(SPEC.format(storage=storage))
    (folder / "tautochrone.toml").write_text(settings)
    for name, text in files.items():
        (folder / "t").mkdir(exist_ok=True)
        (folder / "t" / name).write_text(text)
    return folder / "spark-pipeline.yml"


def taut_doctor(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tautochrone.cli.main", "doctor", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )


def failing(options: Options) -> dict[str, Finding]:
    """The failed checks. One must fail before Spark is started."""
    return {f.check: f for f in health_findings(options) if f.state is State.FAILED}


@pytest.fixture
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps `health_findings` from starting Spark."""
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")


@pytest.mark.spark
def test_unreachable_kafka_is_a_finding(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    write(
        tmp_path,
        settings='[sinks.mirror]\nformat = "postgresql"\n[sinks.mirror.options]\n'
        f'url = "postgresql://taut_nobody@127.0.0.1:{address.partition(":")[2]}/shop"\n',
        files={
            "a.py": "from pyspark import pipelines as dp\n@dp.table\ndef events():\n"
            "    return (spark.readStream.format('kafka').option('subscribe', 'flights')\n"
            f"        .option('kafka.bootstrap.servers', '{address}').load())\n",
            "b.sql": "CREATE MATERIALIZED VIEW b TBLPROPERTIES ('tautochrone.sinks' = 'mirror') "
            "AS SELECT count(*) n FROM events",
        },
    )
    before = sorted(tmp_path.rglob("*"))
    done = taut_doctor(tmp_path, "--json")
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    findings = {line["check"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert list(findings) == ALL
    states = {name: line["state"] for name, line in findings.items()}
    expected = {"kafka": "failed", "captures": "skipped", "sinks": "failed"}
    assert states == {**dict.fromkeys(ALL, "ok"), **expected}
    assert findings["sinks"]["error"] == "SINK_NOT_REACHABLE"
    assert "tautochrone.toml:2" in findings["sinks"]["detail"]
    assert findings["kafka"]["error"] == "KAFKA_NOT_REACHABLE"
    assert address in findings["kafka"]["detail"]
    assert findings["kafka"]["hint"]
    assert findings["definitions"]["detail"] == "2 datasets, 2 flows"
    after = sorted(path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts)
    assert after == before, "it writes nothing"


def test_checks_without_java_and_project(tmp_path: Path) -> None:
    done = taut_doctor(tmp_path, JAVA_HOME="/nonexistent")
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", "python"],
        ["FAILED", "java"],
        ["ok", "spark"],
        ["ok", "jars"],
        ["skipped", "classes"],
        ["skipped", "project"],
        ["ok", "ports"],
        ["skipped", "session"],
    ]
    assert "[JAVA_MISSING] No Java was found: JAVA_HOME is /nonexistent" in lines[1]


@pytest.mark.usefixtures("without_java")
def test_every_problem_of_a_project_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with (
        socket.create_server(("127.0.0.1", 0)) as open_server,
        socket.create_server(("127.0.0.1", 0)) as closed_server,
    ):
        port, closed_port = open_server.getsockname()[1], closed_server.getsockname()[1]
        closed_server.close()
        spec = write(
            tmp_path,
            storage="file/storage",
            settings=f'[spark]\nmaster = "spark://127.0.0.1:{closed_port}"\n'
            f'conf = {{"spark.driver.port" = "{port}"}}\n'
            '[meta]\nurl = "nonsense://user:secret@host/db"\n',
            files={},
        )
        findings = failing(Options(spec=str(spec)))
    classes = {name: finding.error for name, finding in findings.items()}
    assert classes == {
        "java": "JAVA_MISSING",
        "ports": "PORT_TAKEN",
        "storage": "STORAGE_NOT_WRITABLE",
        "store": "META_URL_INVALID",
        "master": "MASTER_NOT_REACHABLE",
    }
    assert all(finding.hint for finding in findings.values())
    assert "secret" not in str(findings)


@pytest.mark.usefixtures("without_java")
def test_unreadable_store_is_a_finding(tmp_path: Path) -> None:
    spec = write(tmp_path, files={})
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / "meta.db").write_text("this is no SQLite file, and long enough to be read" * 100)
    findings = failing(Options(spec=str(spec)))
    assert findings["store"].error == "META_STORE_FAILED"
    assert findings["store"].hint


@pytest.mark.usefixtures("without_java")
def test_invalid_or_missing_spec_is_a_finding(tmp_path: Path) -> None:
    spec = write(tmp_path, files={})
    spec.write_text(spec.read_text() + "colour: red\n")
    findings = failing(Options(spec=str(spec)))
    assert findings["project"].error == "PIPELINE_SPEC_UNEXPECTED_FIELD"
    assert f"{spec}:5" in findings["project"].detail
    missing_spec = failing(Options(spec=str(tmp_path / "gone.yml")))
    assert missing_spec["project"].error == "PIPELINE_SPEC_FILE_DOES_NOT_EXIST"


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> str:
        raise ZeroDivisionError("by zero")

    finding = check("kafka", broken)
    assert (finding.state, finding.detail) == (State.FAILED, "ZeroDivisionError: by zero")
    assert finding.hint
