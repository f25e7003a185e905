"""The databases of the store: made, migrated, refused, shared."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text
from tests.support.stores import Backing

from tautochrone.errors import MetaError
from tautochrone.meta import MetaStore, StoreDatabase
from tautochrone.meta.database import HEAD, parsed_url
from tautochrone.meta.database.tables import metadata


def test_open_creates_migrates_and_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/meta.db"
    with MetaStore.open(url) as first, MetaStore.open(url) as second:
        assert first.incarnation == second.incarnation
        assert first.recovery.is_empty()
    assert capfd.readouterr() == ("", "")
    assert sqlite3.connect(tmp_path / "meta.db").execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_match_the_table_definitions(database: Backing) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with database.open()._database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    migrations = Path(sys.modules["tautochrone.meta.database"].__file__ or "").parent / "migrations"
    assert ScriptDirectory(str(migrations)).get_current_head() == HEAD


_BEFORE_THE_LAST = (
    "DROP TABLE alarms",
    "DROP TABLE builds",
    "ALTER TABLE jobs DROP COLUMN report",
    "ALTER TABLE jobs DROP COLUMN ended",
    "ALTER TABLE datasets DROP COLUMN pending_change",
    "ALTER TABLE pins DROP COLUMN followed",
    "UPDATE alembic_version SET version_num = 'r0001'",
)
"""Make a store one of the first release, but for what the last migration adds."""


def test_a_store_of_the_first_release_is_upgraded(database: Backing) -> None:
    """Its rows stay, and it has the tables that a new store has."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with database.open() as store:
        store.jobs.start_run("shop", "shop", [])
        incarnation = store.incarnation
    for statement in (*_BEFORE_THE_LAST, "ALTER TABLE versions DROP COLUMN ended_by"):
        database.execute(statement)
    with database.open() as store:
        assert store.incarnation == incarnation
        assert [job.name for job in store.jobs.states()] == ["shop"]
        with store._database.read() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []


def test_a_migration_that_breaks_off_leaves_the_store_as_it_was(database: Backing) -> None:
    """The last one fails, since its column exists; those before it are taken back too."""
    database.open().close()
    for statement in _BEFORE_THE_LAST:
        database.execute(statement)
    with pytest.raises(MetaError, match="META_STORE_FAILED"):
        database.open()
    database.execute("ALTER TABLE versions DROP COLUMN ended_by")
    with database.open() as store:
        assert store.alarms.current() == ()


def test_a_store_from_the_future_is_refused(database: Backing) -> None:
    database.open().close()
    database.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(MetaError, match="META_STORE_TOO_NEW"):
        database.open()


@pytest.mark.parametrize("revision", ["0001", "0020"])
def test_a_store_of_before_the_first_release_is_refused(database: Backing, revision: str) -> None:
    database.open().close()
    database.execute(f"UPDATE alembic_version SET version_num = '{revision}'")
    with pytest.raises(MetaError, match="META_STORE_UNRELEASED"):
        database.open()


def test_a_store_in_memory_is_refused() -> None:
    with pytest.raises(MetaError, match="META_STORE_NOT_DURABLE"):
        MetaStore.open("sqlite://")


def test_broken_file_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_text("this is not a database, it only has the name of one" * 50)
    with pytest.raises(MetaError, match="META_STORE_FAILED"):
        MetaStore.open(f"sqlite:///{tmp_path}/meta.db")


def test_many_processes_may_be_the_first(database: Backing) -> None:
    """All of them create and migrate, none of them fails, and it is one store."""
    code = (
        "import sys; from tautochrone.meta import MetaStore; print(MetaStore.open(sys.argv[1]).incarnation)"
    )
    first = [
        subprocess.Popen([sys.executable, "-c", code, database.url], stdout=-1, stderr=-1, text=True)
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=240) for process in first]
    assert [err for _, err in answers] == [""] * 4
    assert len({out for out, _ in answers}) == 1


def test_postgresql_as_everybody_writes_it() -> None:
    assert parsed_url("postgresql://u:p@h/d").drivername == "postgresql+psycopg"
    assert parsed_url("postgres://u:p@h/d").drivername == "postgresql+psycopg"


def test_lock_timeout_is_a_retryable_error(database: Backing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tautochrone.meta.database.engine._BUSY_TIMEOUT_MS", 300)
    store = database.open()
    store.jobs.start_run("shop", "job", [])
    holder = StoreDatabase(database.url)
    with holder.write(), pytest.raises(MetaError, match="META_STORE_BUSY") as caught:
        store.jobs.take_over("job")
    assert caught.value.retryable
    holder.close()
    assert store.jobs.take_over("job") == 1


def test_readers_see_no_partial_writes_and_do_not_wait(database: Backing) -> None:
    store = database.open()
    store.jobs.start_run("shop", "job", [])
    holder = StoreDatabase(database.url)
    with holder.write() as connection:
        connection.execute(text("UPDATE jobs SET fence = 9"))
        assert store.jobs.newest_fence("job") == 0
    holder.close()
    assert store.jobs.newest_fence("job") == 9


def test_closed_connections_are_replaced(tmp_path: Path) -> None:
    backing = Backing("postgresql", tmp_path)
    store = backing.open()
    assert store.recovery.is_empty()
    backing.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    assert store.recovery.is_empty()
    backing.close()


def test_unreachable_database_is_a_retryable_error(unused_port: int) -> None:
    with pytest.raises(MetaError, match="META_STORE_FAILED") as caught:
        MetaStore.open(f"postgresql://joe:let-me-hide@127.0.0.1:{unused_port}/shop")
    assert caught.value.retryable
    assert "let-me-hide" not in caught.value.render()


def test_a_store_that_cannot_be_written_beside_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite needs that to read too. The path is shown as it is on the disk."""
    file = tmp_path / "ö ü" / "meta.db"
    file.mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(MetaError) as caught:
        MetaStore.open(f"sqlite:///{file}")
    assert f"The store sqlite:///{file} failed: unable to open" in caught.value.message
    assert caught.value.hint is not None
    assert "its folder cannot be written" in caught.value.hint


def test_a_full_disk_says_so(tmp_path: Path) -> None:
    database = StoreDatabase(f"sqlite:///{tmp_path}/meta.db")
    database.migrate()

    def fill() -> None:
        with database.write() as connection:
            connection.execute(text("PRAGMA max_page_count = 1"))
            connection.execute(text("CREATE TABLE grown AS SELECT randomblob(1000000) AS b"))

    with pytest.raises(MetaError, match="is full") as caught:
        fill()
    assert caught.value.hint == "free some space on its disk; what was written before is there"
