"""A store of an earlier release is migrated when no process of that release runs over it."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tautochrone.app.locate import Options, locate
from tautochrone.app.relocation import Relocation
from tautochrone.app.storage import Identity, write_identity
from tautochrone.app.stores import existing_store, project_store
from tautochrone.cli.options import check_not_running
from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore
from tautochrone.meta.database import HEAD
from tautochrone.model.events import Event, WaitingForRun
from tautochrone.model.jobs import Claim, RunProcess
from tautochrone.project.settings import Settings
from tautochrone.project.spec import init_project
from tautochrone.runtime.job.effects import DirectEffects
from tautochrone.runtime.job.ownership import Ownership, process_of

OTHER = "billing"
"""Another job of the store."""
ELSEWHERE = RunProcess(run="theirs", host="another-machine", pid=7, machine="unknown", started=1)
BACK_TO_FIRST = (
    "DROP TABLE alarms",
    "DROP TABLE builds",
    "ALTER TABLE jobs DROP COLUMN report",
    "ALTER TABLE jobs DROP COLUMN ended",
    "ALTER TABLE datasets DROP COLUMN pending_change",
    "ALTER TABLE pins DROP COLUMN followed",
    "ALTER TABLE versions DROP COLUMN ended_by",
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return locate(Options(spec=str(init_project(tmp_path, "shop") / "spark-pipeline.yml")))[1]


def older(settings: Settings, *jobs: str, lease_ms: int = 60_000, process: RunProcess = ELSEWHERE) -> None:
    """A store of the first release, whose jobs run."""
    with MetaStore.open(settings.meta_url) as store:
        for job in jobs:
            store.jobs.start_run(job, job, [])
            store.jobs.take_over(job, lease_ms=lease_ms, claim=Claim(process=process))
    for statement in BACK_TO_FIRST:
        change(settings, statement)
    set_revision(settings, "r0001")


def change(settings: Settings, statement: str, *values: object) -> None:
    with sqlite3.connect(settings.meta_url.removeprefix("sqlite:///")) as connection:
        connection.execute(statement, values)


def set_revision(settings: Settings, revision: str) -> None:
    change(settings, "UPDATE alembic_version SET version_num = ?", revision)


def revision_of(settings: Settings) -> str:
    with sqlite3.connect(settings.meta_url.removeprefix("sqlite:///")) as connection:
        return str(connection.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def by_check(settings: Settings, ownership: Ownership) -> None:
    check_not_running(settings, ownership, lambda _: None)


def accept_lake(settings: Settings) -> None:
    """`taut relocate --moved` for a storage at its place."""
    spec = locate(Options(spec=str(Path(settings.storage).parent / "spark-pipeline.yml")))[0]
    write_identity(settings, Identity.of(spec, settings, "the storage", None))
    relocation = Relocation(spec, settings, DirectEffects(), lambda _: None, moved=True)
    assert not relocation.survey()
    relocation.accept_lake()


def by_project(settings: Settings, ownership: Ownership) -> None:
    project_store(settings, ownership=ownership).close()


@pytest.mark.parametrize("opens", [by_check, by_project])
@pytest.mark.parametrize(
    ("running", "takeover", "blocker"),
    [
        (["shop"], False, "shop"),
        ([OTHER], False, OTHER),
        ([OTHER, "shop"], True, OTHER),
        (["shop"], True, None),
        ([], False, None),
    ],
)
def test_a_running_job_keeps_its_store(
    settings: Settings,
    opens: Callable[[Settings, Ownership], None],
    running: list[str],
    takeover: bool,
    blocker: str | None,
) -> None:
    older(settings, *running)
    ownership = Ownership(takeover=takeover)
    if blocker is None:
        opens(settings, ownership)
        assert revision_of(settings) == HEAD
        return
    with pytest.raises(
        MetaError, match=f"JOB_RUNNING.*{blocker} is run by process 7 on host another"
    ) as caught:
        opens(settings, ownership)
    assert caught.value.retryable
    assert caught.value.parameters["job"] == blocker
    assert revision_of(settings) == "r0001"
    # The process of the earlier release goes on.
    change(settings, "UPDATE jobs SET heartbeat_ms = 1")


@pytest.mark.parametrize("job", ["shop", OTHER])
def test_relocate_leaves_the_store_to_a_running_job(settings: Settings, job: str) -> None:
    older(settings, job)
    with pytest.raises(MetaError, match=f"JOB_RUNNING.*{job}"):
        accept_lake(settings)
    assert revision_of(settings) == "r0001"


def test_an_owner_that_ended_keeps_no_store(settings: Settings) -> None:
    """Its lease is over, or its process is known to be dead."""
    older(settings, OTHER, lease_ms=0)
    existing_store(settings, ownership=Ownership()).close()
    assert revision_of(settings) == HEAD


def test_a_dead_process_keeps_no_store(settings: Settings) -> None:
    older(settings, OTHER, process=process_of("theirs"))
    with pytest.raises(MetaError, match="JOB_RUNNING"):
        existing_store(settings, ownership=Ownership())
    existing_store(settings, ownership=Ownership(has_ended=lambda process: process.run == "theirs")).close()
    assert revision_of(settings) == HEAD


def test_a_migration_waits_for_the_runs_of_all_jobs(settings: Settings) -> None:
    older(settings, OTHER)
    waits: list[Event] = []

    def end(event: Event) -> None:
        waits.append(event)
        threading.Thread(target=change, args=(settings, "UPDATE jobs SET state = 'ended'")).start()

    existing_store(settings, end, ownership=Ownership(wait_ms=None)).close()
    (wait,) = waits
    assert isinstance(wait, WaitingForRun)
    assert (wait.job, wait.pid) == (OTHER, 7)
    assert revision_of(settings) == HEAD


def test_a_later_release_is_named_whoever_runs(settings: Settings) -> None:
    older(settings, OTHER)
    set_revision(settings, "r9999")
    with pytest.raises(MetaError, match="META_STORE_TOO_NEW"):
        existing_store(settings, ownership=Ownership())
