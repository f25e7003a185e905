"""The support bundle has what helps, from healthy and from broken projects, and a hunt finds no secret."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tautochrone.cli.main import main
from tautochrone.meta import DatasetEntry, MetaStore
from tautochrone.model.names import TableName, Version
from tautochrone.model.reason import unclassified
from tautochrone.model.refresh import NodeRefresh, Refresh, RefreshMode

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
    """A project with a history that quotes every secret, as a version without masks would have left it."""
    (tmp_path / "spark-pipeline.yml").write_text(SPEC)
    (tmp_path / "tautochrone.toml").write_text(SETTINGS)
    (tmp_path / "login.txt").write_text(SECRETS[1] + "\n")
    monkeypatch.setenv("PIPELINE_KEY", SECRETS[0])
    monkeypatch.setenv("SOMETHING", NOT_OURS)
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")  # so that no Spark is started
    said = " and ".join(SECRETS)
    node = NodeRefresh(node=said, mode=RefreshMode.FULL, reason=unclassified(said))
    refresh = Refresh(mode=RefreshMode.FULL, reason=unclassified(said), rows_inserted=7, nodes=(node,))
    with MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db") as store:
        view = DatasetEntry(VIEW, "materialized view", said, frozenset({ROOT}))
        store.jobs.start_run("shop", "shop", [DatasetEntry(ROOT, "streaming table", said), view])
        fence = store.jobs.take_over("shop")
        for turn in range(2):
            number = store.checkpoints.open("shop", fence, {ROOT: Version("r")}, turn).number
            if turn:
                store.checkpoints.record_failure(
                    "shop", fence, number, VIEW, unclassified(f"cannot log in with {said}")
                )
            else:
                store.checkpoints.record_version("shop", fence, number, VIEW, Version("v"), refresh)
            store.checkpoints.publish("shop", fence, number, turn)
    return tmp_path / "spark-pipeline.yml"


def bundle(spec: Path) -> dict[str, list[dict[str, Any]]]:
    path = spec.parent / "bundle.zip"
    assert main(["support-bundle", "--spec", str(spec), "--output", str(path)]) == 0
    with zipfile.ZipFile(path) as found:
        return {
            name.removesuffix(".jsonl"): [json.loads(line) for line in found.read(name).decode().splitlines()]
            for name in found.namelist()
        }


def strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [str(value)]


def test_it_has_what_helps(spec: Path) -> None:
    found = bundle(spec)
    assert {line.get("distribution") for line in found["versions"]} >= {"tautochrone", "pyspark", "pyiceberg"}
    assert {"setting": "run.interval", "value": "5s", "origin": "default"} in found["settings"]
    assert found["store"][0]["schema"].isdigit()
    assert [line["number"] for line in found["checkpoints"]] == [2, 1]
    assert found["checkpoints"][0]["failures"].keys() == {str(VIEW)}
    status = {line["dataset"]: line for line in found["datasets"]}
    assert (status[str(VIEW)]["checkpoint"], status[str(VIEW)]["inputs"]) == (1, [str(ROOT)])
    assert [line["error"] is None for line in found["refreshes"]] == [False, True]
    assert found["refreshes"][1]["refresh"]["rows_inserted"] == 7
    checks = {line["check"]: line["state"] for line in found["doctor"]}
    assert (checks["python"], checks["java"], checks["session"]) == ("ok", "failed", "skipped")


def test_no_secret_is_in_it(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = bundle(spec)
    said = capsys.readouterr()
    texts = [*strings(found), said.out, said.err]
    assert any("cannot log in with ***" in text for text in texts), "nothing was masked: the hunt is blind"
    for secret in (*SECRETS, NOT_OURS):
        assert not [text for text in texts if secret in text], secret


def test_a_broken_project_gives_one_too(
    spec: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (spec.parent / "tautochrone.toml").write_text("[run]\nintervall = 5\n")
    found = bundle(spec)
    said = capsys.readouterr().err
    for part in ("settings", "store", "datasets", "checkpoints", "refreshes"):
        assert "UNKNOWN_SETTING" in found[part][0]["missing"]
        assert f"without {part}: [UNKNOWN_SETTING]" in said
    assert found["versions"][1]["distribution"] == "tautochrone"
    assert {"project": "failed"}.items() <= {c["check"]: c["state"] for c in found["doctor"]}.items()


def test_its_name_tells_the_time(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(spec.parent)
    assert main(["support-bundle"]) == 0
    (made,) = [name for name in os.listdir() if name.startswith("taut-support-")]
    assert zipfile.ZipFile(made).testzip() is None
