"""The support bundle is complete for healthy and broken projects, and has no secrets."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tautochrone.cli.main import main
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.meta.database import HEAD
from tautochrone.meta.protocols.checkpoints import NewCheckpoint
from tautochrone.model.checkpoint import NodeRefresh, Refresh, RefreshMode
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import unclassified

SECRETS = ('hush of "a" väriable', "hush\\of/a file", "hush-in-a-url", "hush-in-an-option", "hush-token")
NOT_OURS = "a-variable-of-somebody-else"
SPEC = "name: shop\nstorage: storage\nlibraries:\n  - glob: {include: t/**}\n"
SETTINGS = f"""
[meta]
token = "{SECRETS[4]}"
[spark.conf]
"pipeline.key" = {{ env = "PIPELINE_KEY" }}
"pipeline.login" = {{ file = "login.txt" }}
"pipeline.source" = "jdbc:postgresql://joe:{SECRETS[2]}@host/db"
"pipeline.password" = "{SECRETS[3]}"
"""
ROOT, VIEW = TableName("lake", ("default",), "orders"), TableName("lake", ("default",), "totals")


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a history that quotes every secret, as an older version might have stored it."""
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    (tmp_path / "tautochrone.toml").write_text(SETTINGS)
    (tmp_path / "login.txt").write_text(SECRETS[1] + "\n")
    monkeypatch.setenv("PIPELINE_KEY", SECRETS[0])
    monkeypatch.setenv("SOMETHING", NOT_OURS)
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")  # so that no Spark is started
    quoted_secrets = " and ".join(SECRETS)
    node = NodeRefresh(node=quoted_secrets, mode=RefreshMode.FULL, reason=unclassified(quoted_secrets))
    refresh = Refresh(
        mode=RefreshMode.FULL, reason=unclassified(quoted_secrets), rows_inserted=7, nodes=(node,)
    )
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db") as store:
        view = DatasetEntry(VIEW, "materialized view", quoted_secrets, frozenset({ROOT}))
        store.jobs.start_run("shop", "shop", [DatasetEntry(ROOT, "streaming table", quoted_secrets), view])
        fence = store.jobs.take_over("shop")
        for index in range(2):
            number = store.checkpoints.open("shop", fence, NewCheckpoint({ROOT: Version("r")}, index)).number
            if index:
                store.checkpoints.record_failure(
                    "shop", fence, number, VIEW, unclassified(f"cannot log in with {quoted_secrets}")
                )
            else:
                store.checkpoints.record_version("shop", fence, number, VIEW, Version("v"), refresh)
            store.checkpoints.publish("shop", fence, number, index)
    return tmp_path / "spark-pipeline.yml"


def bundle(spec: Path) -> dict[str, list[dict[str, Any]]]:
    path = spec.parent / "bundle.zip"
    assert main(["support-bundle", "--spec", str(spec), "--output", str(path)]) == 0
    with zipfile.ZipFile(path) as archive:
        return {
            name.removesuffix(".jsonl"): [
                json.loads(line) for line in archive.read(name).decode().splitlines()
            ]
            for name in archive.namelist()
        }


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [str(value)]


def test_bundle_has_versions_settings_and_history(spec: Path) -> None:
    parts = bundle(spec)
    assert {line.get("distribution") for line in parts["versions"]} >= {"tautochrone", "pyspark", "pyiceberg"}
    assert {"setting": "run.interval", "value": "5s", "origin": "default"} in parts["settings"]
    assert parts["store"][0]["schema"] == HEAD
    assert [line["number"] for line in parts["checkpoints"]] == [2, 1]
    assert parts["checkpoints"][0]["failures"].keys() == {str(VIEW)}
    status = {line["dataset"]: line for line in parts["datasets"]}
    assert (status[str(VIEW)]["checkpoint"], status[str(VIEW)]["inputs"]) == (1, [str(ROOT)])
    assert [line["error"] is None for line in parts["refreshes"]] == [False, True]
    assert parts["refreshes"][1]["refresh"]["rows_inserted"] == 7
    checks = {line["check"]: line["state"] for line in parts["doctor"]}
    assert (checks["python"], checks["java"], checks["session"]) == ("ok", "failed", "skipped")


def test_bundle_has_no_secrets(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = bundle(spec)
    output = capsys.readouterr()
    texts = [*strings(parts), output.out, output.err]
    assert any("cannot log in with ***" in text for text in texts), (
        "nothing was masked: the search proves nothing"
    )
    for secret in (*SECRETS, NOT_OURS):
        assert not [text for text in texts if secret in text], secret


def test_broken_project_gives_a_bundle(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec.parent / "tautochrone.toml").write_text("[run]\nintervall = 5\n")
    parts = bundle(spec)
    output = capsys.readouterr().err
    for part in ("settings", "store", "datasets", "checkpoints", "refreshes"):
        assert "UNKNOWN_SETTING" in parts[part][0]["missing"]
        assert f"without {part}: [UNKNOWN_SETTING]" in output
    assert parts["versions"][1]["distribution"] == "tautochrone"
    assert {"project": "failed"}.items() <= {c["check"]: c["state"] for c in parts["doctor"]}.items()


def test_default_file_name_has_a_timestamp(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(spec.parent)
    assert main(["support-bundle"]) == 0
    (file_name,) = [name for name in os.listdir() if name.startswith("taut-support-")]
    assert zipfile.ZipFile(file_name).testzip() is None
