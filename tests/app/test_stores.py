"""What opens the store to read it leaves it to the release that runs the pipeline."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tautochrone.app import plan, plan_graph
from tautochrone.app.locate import Options, locate
from tautochrone.app.stores import existing_store
from tautochrone.cli.main import main
from tautochrone.errors import MetaError
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
        lambda settings: existing_store(settings, migrate=False),
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


def test_status_does_not_migrate(
    settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_revision(settings, "r0002")
    (spec,) = tmp_path.rglob("spark-pipeline.yml")
    assert main(["status", "--spec", str(spec)]) == 1
    assert "META_STORE_OTHER_RELEASE" in capsys.readouterr().err


def test_a_store_without_a_schema_is_missing(settings: Settings) -> None:
    Path(file_of(settings)).parent.mkdir(parents=True, exist_ok=True)
    Path(file_of(settings)).touch()
    with pytest.raises(MetaError, match="META_STORE_MISSING"):
        existing_store(settings, migrate=False)
