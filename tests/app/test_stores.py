"""What opens the store to read it leaves it to the release that runs the pipeline."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tautochrone.app import open as open_module
from tautochrone.app import plan, plan_graph
from tautochrone.app.locate import Options, locate
from tautochrone.app.stores import existing_store
from tautochrone.cli.main import COMMANDS, main
from tautochrone.errors import MetaError
from tautochrone.iceberg.sessions import spark_sessions
from tautochrone.meta import MetaStore
from tautochrone.meta.database import HEAD
from tautochrone.project.settings import Settings
from tautochrone.project.spec import init_project

REVISION = "SELECT version_num FROM alembic_version"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return locate(Options(spec=str(init_project(tmp_path, "shop") / "spark-pipeline.yml")))[1]


def set_revision(settings: Settings, revision: str) -> None:
    MetaStore.open(settings.meta_url).close()
    with sqlite3.connect(file_of(settings)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])


def file_of(settings: Settings) -> str:
    return settings.meta_url.removeprefix("sqlite:///")


def by_plan_of_graph(settings: Settings) -> None:
    with plan_graph._store(settings):
        pass


@pytest.mark.parametrize(
    "read",
    [
        lambda settings: plan._unchanged(settings, "the program"),
        by_plan_of_graph,
        existing_store,
    ],
)
@pytest.mark.parametrize("revision", ["r0002", "r9999"])
def test_the_store_of_another_release_is_refused_as_it_is(
    settings: Settings, revision: str, read: Callable[[Settings], object]
) -> None:
    set_revision(settings, revision)
    with pytest.raises(MetaError, match=f"META_STORE_OTHER_RELEASE.*{revision}.*{HEAD}"):
        read(settings)
    with sqlite3.connect(file_of(settings)) as connection:
        assert connection.execute(REVISION).fetchone() == (revision,)


REFUSES = {
    "plan": (["plan"], ["plan", "--build"], ["plan", "--drop"]),
    "query": (["query", "SELECT 1"],),
    "status": (["status"], ["status", "--history"]),
    "checkpoints": (["checkpoints"],),
    "sinks": (["sinks"], ["sinks", "--forget", "copy"]),
    "lineage": (["lineage", "totals"], ["lineage", "totals", "--meta", "URL"]),
    "jobs": (["jobs"], ["jobs", "--meta", "URL"]),
    "pins": (["pins"],),
    "alarms": (["alarms"], ["alarms", "--acknowledge", "1"]),
    "token": (["token"],),
    "transactions": (
        ["transactions", "list"],
        ["transactions", "show", "a"],
        ["transactions", "commit", "a"],
        ["transactions", "list", "--meta", "URL"],
    ),
    "verify": (["verify"], ["verify", "--sink", "copy"]),
    "diff": (["diff", "1", "2"],),
    "test": (["test", "--record", "totals"],),
    "adopt": (["adopt", "--dry-run"],),
    "maintain": (["maintain"], ["maintain", "--dry-run"]),
    "drop": (["drop", "totals", "--dry-run"],),
    "rename": (["rename", "totals", "sums", "--dry-run"],),
    "publish": (["publish"],),
    "revise": (["revise", "totals", "--to", "1", "--dry-run"],),
}
"""Commands, with arguments, that read the store or write what needs no job."""

NEEDS_NO_STORE = {"init", "prepare", "dry-run", "doctor", "config", "sources", "support-bundle"}
"""Those that work without one, and say so where its contents are missing."""

MIGRATES = {"run", "apply", "serve", "relocate"}
"""Those that take a job over in any case, serve the store, or make a moved one usable."""


def no_spark(*_: object, **__: object) -> None:
    pytest.fail("Spark starts before the store is refused")


def test_each_command_has_a_rule_for_stores_of_other_releases() -> None:
    assert {*REFUSES} | NEEDS_NO_STORE | MIGRATES == {*COMMANDS}


@pytest.mark.parametrize(
    "arguments", [pytest.param(each, id=" ".join(each)) for forms in REFUSES.values() for each in forms]
)
@pytest.mark.parametrize("revision", ["r0002", "r9999"])
def test_a_command_that_takes_no_job_over_does_not_migrate(
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    revision: str,
    arguments: list[str],
) -> None:
    monkeypatch.setattr(open_module, "start_session", no_spark)
    monkeypatch.setattr(spark_sessions, "launch_session", no_spark)
    set_revision(settings, revision)
    (spec,) = tmp_path.rglob("spark-pipeline.yml")
    words = [settings.meta_url if word == "URL" else word for word in arguments]
    assert main([*words, "--spec", str(spec)]) == 1
    assert "META_STORE_OTHER_RELEASE" in capsys.readouterr().err
    with sqlite3.connect(file_of(settings)) as connection:
        assert connection.execute(REVISION).fetchone() == (revision,)


def test_a_store_without_a_schema_is_missing(settings: Settings) -> None:
    Path(file_of(settings)).parent.mkdir(parents=True, exist_ok=True)
    Path(file_of(settings)).touch()
    with pytest.raises(MetaError, match="META_STORE_MISSING"):
        existing_store(settings)


@pytest.mark.parametrize("command", ["jobs", "pins", "alarms"])
def test_a_store_that_is_not_there_is_not_created(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    file = tmp_path / "folder" / "mistyped.db"
    assert main([command, "--meta", f"sqlite:///{file}"]) == 1
    assert "META_STORE_MISSING" in capsys.readouterr().err
    assert not file.parent.exists()
