"""Columns and tables that come while a continuous run captures the database: it goes on by itself."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql import SparkSession
from tests.support.crash import Running, Taut, fault
from tests.support.harness import Happened, Pipeline

import tautochrone.app.open
from tautochrone.app.locate import Options, locate
from tautochrone.app.open import Project
from tautochrone.app.unchanged import definitions_of
from tautochrone.cli.run import Restarts, _definitions_load, _execute
from tautochrone.errors import DefinitionsOutdatedError, SourceLoginRefusedError, TautochroneError
from tautochrone.model.effects import Step
from tautochrone.model.events import Event
from tautochrone.runtime.job.ownership import Ownership

pytestmark = [pytest.mark.crash, pytest.mark.spark]

_SPEC = """
name: shop
catalog: lake
database: default
storage: storage
libraries:
  - glob: {include: "transformations/**"}
"""
_SETTINGS = '[spark.conf]\n"shop.url" = { file = "url" }\n'
_DEFINITION = """
from pyspark.sql import SparkSession
from tautochrone.sources import postgresql

url = SparkSession.active().conf.get("shop.url")
postgresql.capture("shop", url=url, tables="public.*", exclude="public.hidden_*")
"""
_DDL = """
CREATE TABLE orders (id int PRIMARY KEY, product text);
INSERT INTO orders SELECT i, 'p' || i FROM generate_series(1, 50) i
"""


@pytest.fixture
def shop_project(database: psycopg.Connection, tmp_path: Path) -> tuple[Path, Path]:
    """The project's folder, and one for what its runs print."""
    folder, logs = tmp_path / "shop", tmp_path / "logs"
    (folder / "transformations").mkdir(parents=True)
    logs.mkdir()
    info = database.info
    url = f"host={info.host} dbname={info.dbname} user=postgres"
    (folder / "spark-pipeline.yml").write_text(_SPEC)
    (folder / "transformations" / "shop.py").write_text(_DEFINITION)
    (folder / "tautochrone.toml").write_text(_SETTINGS)
    (folder / "url").write_text(url)
    database.execute(_DDL)
    return folder, logs


@pytest.fixture
def pipeline(shop_project: tuple[Path, Path], spark: SparkSession) -> Iterator[Pipeline]:
    pipeline = Pipeline(shop_project[0], spark, spec=_SPEC, settings=_SETTINGS)
    yield pipeline
    pipeline.close()


def test_a_run_ends_when_other_definitions_can_be_loaded(
    database: psycopg.Connection, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, for a column and a table. A process begins itself anew then."""
    # The command imports it when it runs.
    monkeypatch.setattr(tautochrone.app.open, "Project", partial(Project, base=pipeline.session))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    happened = Happened()

    def emit(event: Event) -> None:
        happened.take(event)
        if event.name == "checkpoint" and len(happened.of("checkpoint")) == 1:
            database.execute(
                "CREATE TABLE cards (number int PRIMARY KEY); INSERT INTO cards VALUES (5), (6);"
                "ALTER TABLE orders ADD COLUMN amount int;"
                "UPDATE orders SET amount = 7, product = 'r' WHERE id = 2"
            )

    options = Options(spec=str(pipeline.folder / "spark-pipeline.yml"), interval="200ms")
    arguments = argparse.Namespace(continuous=True, embedded=False, full_refresh_all=False)
    located = locate(options)
    ended = _execute(
        arguments,
        options,
        located,
        ([], []),
        Restarts(),
        Ownership(),
        emit,
        definitions=definitions_of(*located),
    )
    assert ended == (0, True)
    # The flow that lacked definitions was no problem of the run that ended for it.
    assert [(event["state"], event["problems"]) for event in happened.of("run")] == [("COMPLETED", [])]
    assert len(happened.of("definitions_reloading")) == 1
    assert pipeline.run().state == "COMPLETED"
    for table, columns in (("orders", "id, product, amount"), ("cards", "number")):
        rows = database.execute(f"SELECT {columns} FROM {table}").fetchall()  # type: ignore[arg-type]
        assert pipeline.query(f"SELECT {columns} FROM shop_{table}") == sorted(rows)


def test_definitions_that_do_not_load_or_are_the_same_end_no_run(
    database: psycopg.Connection, pipeline: Pipeline
) -> None:
    """What a continuous run asks when a flow lacks definitions, or is not let in."""
    emitted: list[Event] = []
    folder = pipeline.folder
    options = Options(spec=str(folder / "spark-pipeline.yml"))
    outdated = DefinitionsOutdatedError("CAPTURED_TABLE_CHANGED", "orders has another column")
    refused = SourceLoginRefusedError("CAPTURE_LOGIN_REFUSED", "the password is another one")
    with _login_with_password(database, folder) as (password_at_server, password_in_file):
        password_at_server("first-1")
        password_in_file("first-1")
        located = locate(options)
        with Project(options, emitted.append, base=pipeline.session, located=located) as project:

            def load(failure: TautochroneError) -> bool:
                return _definitions_load(options, project, located, emitted.append, failure)

            # Two tables that would get one name in the lake: definitions that name both do not load.
            database.execute('CREATE TABLE "a.b" (x int PRIMARY KEY); CREATE TABLE a_b (x int PRIMARY KEY)')
            assert not load(outdated)
            database.execute("DROP TABLE a_b")
            assert load(outdated)
            password_at_server("second-2")
            assert not load(refused)
            assert len(emitted) == 1, "the file is as it was"
            password_in_file("wrong-3")
            assert not load(refused)
            password_in_file("second-2")
            assert load(refused)
    assert [event.name for event in emitted] == ["definitions_not_reloaded"] * 2


@pytest.mark.slow
def test_the_run_loads_definitions_and_passwords_anew(
    database: psycopg.Connection, shop_project: tuple[Path, Path]
) -> None:
    folder, logs = shop_project
    with _login_with_password(database, folder) as (password_at_server, password_in_file):
        password_at_server("first-1")
        password_in_file("first-1")
        with Taut(folder, logs).start("--continuous", "--interval", "200ms") as running:
            wait_until(running, lambda: lake_rows(folder, "shop_orders") == rows_of(database, "orders"))
            _change_tables(database, running, folder)
            failed, refused = running.count("flow_failed"), running.count("definitions_not_reloaded")
            password_at_server("second-2")
            database.execute("UPDATE orders SET product = 'q' WHERE id = 1")
            running.wait_for("flow_failed", failed + 2)
            assert running.count("definitions_not_reloaded") == refused, "the file is as it was"
            password_in_file("wrong-3")
            running.wait_for("definitions_not_reloaded", refused + 1)
            assert running.count("definitions_reloading") == 2
            password_in_file("second-2")
            running.wait_for("definitions_reloading", 3)
            wait_until(running, lambda: lake_rows(folder, "shop_orders") == rows_of(database, "orders"))
            running.terminate()
            ended = running.wait()
    ended.require_ok()
    # The flow that lacked definitions was no problem of the runs that ended for it.
    runs = [(event["state"], event["problems"]) for event in ended.events if event["event"] == "run"]
    assert [runs[0], runs[1], runs[-1]] == [("COMPLETED", [])] * 3
    assert len(runs) == 4
    failures = [event["error"] for event in ended.events if event["event"] == "flow_failed"]
    assert "CAPTURE_LOGIN_REFUSED" in failures[-1]
    assert not any(word in str(ended.events) for word in ("first-1", "second-2", "wrong-3"))


def _change_tables(database: psycopg.Connection, running: Running, folder: Path) -> None:
    """The run loads its definitions anew twice: for a column, and for a table."""
    # Two tables that would get one name in the lake: definitions that name both do not load.
    database.execute('CREATE TABLE "a.b" (x int PRIMARY KEY); CREATE TABLE a_b (x int PRIMARY KEY)')
    database.execute("ALTER TABLE orders ADD COLUMN amount int")
    running.wait_for("definitions_not_reloaded")
    assert running.count("definitions_reloading") == 0
    database.execute("DROP TABLE a_b")
    database.execute("CREATE TABLE hidden_notes (note text)")
    database.execute("UPDATE orders SET amount = 7, product = 'r' WHERE id = 2")
    running.wait_for("definitions_reloading")
    wait_until(running, lambda: lake_rows(folder, "shop_orders") == rows_of(database, "orders"))
    database.execute("CREATE TABLE cards (number int PRIMARY KEY)")
    database.execute("INSERT INTO cards VALUES (5), (6)")
    wait_until(running, lambda: lake_rows(folder, "shop_cards") == rows_of(database, "cards"))
    assert running.count("definitions_reloading") == 2


@contextmanager
def _login_with_password(
    database: psycopg.Connection, folder: Path
) -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """How to set the password of the capture's role at the server, and in the project's file."""
    [(hba_file,)] = database.execute("SHOW hba_file").fetchall()
    rules = Path(str(hba_file)).read_text()

    def password_at_server(password: str) -> None:
        database.execute(sql.SQL("ALTER ROLE taut_rotated PASSWORD {}").format(password))
        database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'taut_rotated'"
        )

    def password_in_file(password: str) -> None:
        info = database.info
        url = f"host={info.host} dbname={info.dbname} user=taut_rotated password={password}"
        (folder / "new").write_text(url)
        (folder / "new").rename(folder / "url")

    database.execute("CREATE ROLE taut_rotated LOGIN SUPERUSER")
    try:
        Path(str(hba_file)).write_text("local all taut_rotated scram-sha-256\n" + rules)
        database.execute("SELECT pg_reload_conf()")
        yield password_at_server, password_in_file
    finally:
        Path(str(hba_file)).write_text(rules)
        database.execute("SELECT pg_reload_conf()")
        database.execute("DROP OWNED BY taut_rotated")
        database.execute("DROP ROLE taut_rotated")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_while_definitions_are_loaded_anew(
    database: psycopg.Connection, shop_project: tuple[Path, Path]
) -> None:
    folder, logs = shop_project
    taut = Taut(folder, logs)
    orders = "lake.default.shop_orders"
    # So long after the event; or at a step that only the new definitions take.
    kills = [
        0.0,
        0.7,
        2.0,
        *(fault(Step.LAKE_REDEFINE, when, "kill", on=orders) for when in ("before", "after")),
    ]
    for number, kill in enumerate(kills):
        taut.run().require_ok()
        at_step = kill if isinstance(kill, str) else None
        with taut.start("--continuous", "--interval", "200ms", fault=at_step) as running:
            database.execute(f"UPDATE orders SET product = 'u{number}' WHERE id = 1")
            wait_until(running, lambda: lake_rows(folder, "shop_orders") == rows_of(database, "orders"))
            database.execute(f"ALTER TABLE orders ADD COLUMN c{number} int")
            database.execute(f"UPDATE orders SET c{number} = id % 3")
            running.wait_for("definitions_reloading")
            if isinstance(kill, float):
                assert running.lives_for(kill)
                running.kill()
            ended = running.wait()
        assert ended.killed, ended.describe()
    taut.run().require_ok()
    database.execute("DELETE FROM orders WHERE id = 2")
    taut.run().require_ok()
    assert lake_rows(folder, "shop_orders") == rows_of(database, "orders")


def rows_of(database: psycopg.Connection, table: str) -> list[tuple[Any, ...]]:
    return sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=repr)  # type: ignore[arg-type]


def lake_rows(folder: Path, table: str) -> list[tuple[Any, ...]] | None:
    """None: there is no such table."""
    storage = folder / "storage"
    if not (storage / "catalog.db").exists():
        return None
    catalog = _catalog(storage)
    try:
        rows = catalog.load_table(f"default.{table}").scan().to_arrow().to_pylist()
    except NoSuchTableError:
        return None
    return sorted((tuple(row.values()) for row in rows), key=repr)


@cache
def _catalog(storage: Path) -> SqlCatalog:
    """Kept, because a test asks five times a second and opening one costs more than an answer."""
    return SqlCatalog("lake", uri=f"sqlite:///{storage}/catalog.db", warehouse=f"{storage}/warehouse")


def wait_until(running: Running, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not is_so():
        assert running.lives_for(0.2), running.wait().describe()
        assert time.monotonic() < deadline
