"""Tables that get other columns, and new tables, while the database is captured."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.support.harness import Pipeline

from tautochrone.app.captures import capture_statuses
from tautochrone.app.locate import Options
from tautochrone.app.open import Project
from tautochrone.sources.postgresql import server

pytestmark = pytest.mark.spark

DDL = """
CREATE TABLE accounts (id int PRIMARY KEY, owner text, balance int);
INSERT INTO accounts SELECT i, 'o' || i, 100 FROM generate_series(1, 20) i;
CREATE TABLE notes (id int PRIMARY KEY, note text);
INSERT INTO notes VALUES (1, 'a'), (2, 'b')
"""
CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("bank", url="{url}", tables="public.*"{more})
"""


class Captured:
    """A database and the pipeline that captures it."""

    def __init__(self, database: psycopg.Connection, folder: Path, spark: SparkSession) -> None:
        self.database = database
        self.pipeline = Pipeline(folder, spark)
        database.execute(DDL)
        self.define()

    def define(self, more: str = "") -> None:
        info = self.database.info
        url = f"host={info.host} dbname={info.dbname} user=postgres"
        self.pipeline.write("definitions/bank.py", CAPTURE.format(url=url, more=more))

    def run(self) -> None:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]

    def require_equal(self, table: str, columns: str) -> None:
        """The table holds the rows of the database."""
        rows: list[tuple[Any, ...]] = self.database.execute(f"SELECT {columns} FROM {table}").fetchall()
        stored = self.pipeline.query(f"SELECT {columns} FROM bank_{table}")
        assert stored == sorted(rows)


@pytest.fixture
def captured(database: psycopg.Connection, tmp_path: Path, spark: SparkSession) -> Iterator[Captured]:
    capture = Captured(database, tmp_path, spark)
    yield capture
    capture.pipeline.close()


def test_changed_and_new_tables_are_copied(captured: Captured) -> None:
    database = captured.database
    captured.run()
    # The last events with the old columns are read after the columns changed.
    database.execute("UPDATE accounts SET balance = balance + 1 WHERE id < 5")
    database.execute("DELETE FROM accounts WHERE id = 20")
    database.execute("ALTER TABLE accounts ADD COLUMN tier text NOT NULL DEFAULT 'basic'")
    database.execute("ALTER TABLE accounts RENAME COLUMN owner TO holder")
    database.execute("ALTER TABLE accounts ALTER COLUMN balance TYPE bigint USING balance * 2")
    database.execute("CREATE TABLE cards (number bigint PRIMARY KEY, account int)")
    database.execute("INSERT INTO cards VALUES (7, 1), (8, 2)")
    database.execute('CREATE TABLE "card-types" (id int PRIMARY KEY); INSERT INTO "card-types" VALUES (7)')
    database.execute("UPDATE accounts SET tier = 'gold' WHERE id = 3")
    database.execute("DELETE FROM accounts WHERE id = 4")
    database.execute("INSERT INTO notes VALUES (3, 'c')")
    captured.run()
    captured.require_equal("accounts", "id, holder, balance, tier")
    captured.require_equal("cards", "number, account")
    captured.require_equal("notes", "id, note")
    assert captured.pipeline.query("SELECT id FROM `bank_card-types`") == [(7,)]
    # The old name of the column stays, for rows of before.
    assert captured.pipeline.query("SELECT count(owner) FROM bank_accounts") == [(0,)]
    database.execute("DROP TABLE notes")
    database.execute("ALTER TABLE accounts DROP COLUMN tier")
    database.execute("UPDATE accounts SET balance = 0 WHERE id = 5")
    captured.run()
    captured.require_equal("accounts", "id, holder, balance")


@pytest.mark.slow
def test_copy_waits_for_transactions_that_run(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.run()
    monkeypatch.setattr(server, "TRANSACTIONS_WAIT_S", 0.3)
    database = captured.database
    with psycopg.connect(database.info.dsn, host=database.info.host) as other:
        database.execute("CREATE TABLE cards (number bigint PRIMARY KEY, account int)")
        # It writes before the table is published, and ends after the copy.
        other.execute("INSERT INTO cards VALUES (1, 1)")
        failed = captured.pipeline.run()
        assert "CAPTURE_WAITS_FOR_TRANSACTIONS" in failed.failure("bank_log")
        assert not [event for event in failed.of("refresh") if "bank_cards" in str(event["dataset"])]
        other.commit()
    captured.run()
    captured.require_equal("cards", "number, account")


@pytest.mark.slow
def test_table_is_left_out_for_a_while(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    captured.run()
    captured.define(', exclude="public.notes"')
    database = captured.database
    database.execute("DELETE FROM notes WHERE id = 1; UPDATE notes SET note = 'c'")
    captured.run()
    database.execute("UPDATE notes SET note = 'd'; INSERT INTO notes VALUES (3, 'e')")
    captured.define()
    monkeypatch.setattr(server, "TRANSACTIONS_WAIT_S", 0.3)
    with psycopg.connect(database.info.dsn, host=database.info.host) as other:
        other.execute("INSERT INTO notes VALUES (4, 'f')")
        failed = captured.pipeline.run()
        assert "CAPTURE_WAITS_FOR_TRANSACTIONS" in failed.failure("bank_log")
        # Its rows are those of before, and the other tables' rows are newer.
        assert not [event for event in failed.of("refresh") if "bank_notes" in str(event["dataset"])]
        other.commit()
    captured.run()
    captured.require_equal("notes", "id, note")


@pytest.mark.slow
def test_other_columns_and_keys_are_refused_if_the_capture_says_so(captured: Captured) -> None:
    captured.run()
    captured.database.execute("ALTER TABLE notes ADD COLUMN more text")
    captured.define(', schema_changes="fail"')
    assert "CAPTURED_TABLE_CHANGED" in captured.pipeline.run().failure("bank_log")
    captured.define()
    captured.run()
    captured.require_equal("notes", "id, note, more")
    captured.define(', schema_changes="fail"')
    captured.database.execute("DROP TABLE notes; CREATE TABLE notes (id int, note text PRIMARY KEY)")
    captured.database.execute("INSERT INTO notes VALUES (1, 'a'), (1, 'b')")
    assert "CAPTURED_TABLE_CHANGED" in captured.pipeline.run().failure("bank_log")
    captured.define()
    captured.run()
    captured.require_equal("notes", "id, note")


def test_only_columns_that_are_added_with_a_value_copy_their_table(captured: Captured) -> None:
    database = captured.database
    captured.run()
    copied = "SELECT relation, count(*) FROM bank_log WHERE operation = 'copy' GROUP BY relation"
    before = dict(captured.pipeline.query(copied))
    # Rows with the old columns are in the log behind the position.
    database.execute("UPDATE accounts SET balance = 7 WHERE id = 1; DELETE FROM accounts WHERE id = 2")
    database.execute("ALTER TABLE accounts ADD COLUMN tier text")
    database.execute("UPDATE accounts SET tier = 'gold' WHERE id = 3; INSERT INTO accounts (id) VALUES (21)")
    database.execute("ALTER TABLE accounts ADD COLUMN since date, ALTER tier SET DEFAULT 'basic'")
    database.execute("INSERT INTO accounts (id, since) VALUES (22, '2026-01-02')")
    database.execute("ALTER TABLE notes ADD COLUMN more int DEFAULT 5; DELETE FROM notes WHERE id = 1")
    captured.run()
    captured.require_equal("accounts", "id, owner, balance, tier, since")
    captured.require_equal("notes", "id, note, more")
    after = dict(captured.pipeline.query(copied))
    assert after == before | {"public.notes": before["public.notes"] + 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("ADD COLUMN more int DEFAULT 5", id="default"),
        pytest.param(
            "ADD COLUMN more int; UPDATE accounts SET more = id; ALTER TABLE accounts DROP COLUMN more; "
            "ALTER TABLE accounts ADD COLUMN more int",
            id="dropped-and-added",
        ),
        pytest.param(
            "ADD COLUMN less int; UPDATE accounts SET less = id; ALTER TABLE accounts RENAME less TO more",
            id="renamed",
        ),
        pytest.param(
            "DROP COLUMN owner; ALTER TABLE accounts ADD COLUMN owner text, ADD COLUMN more int",
            id="other-of-that-name",
        ),
        pytest.param(
            "ADD COLUMN more int; UPDATE accounts SET more = id; ALTER TABLE accounts ALTER more TYPE int "
            "USING more + 1",
            id="written-anew",
        ),
        pytest.param("ADD COLUMN more serial", id="serial"),
    ],
)
def test_other_changes_with_added_columns_copy_the_table(captured: Captured, change: str) -> None:
    captured.run()
    for statement in f"ALTER TABLE accounts {change}".split("; "):
        captured.database.execute(statement)
    captured.database.execute("UPDATE accounts SET balance = 7 WHERE id = 1")
    captured.run()
    columns = "id, owner, balance, more" if "DROP COLUMN owner" not in change else "id, balance, owner, more"
    captured.require_equal("accounts", columns)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_changes_of_columns(captured: Captured, seed: int) -> None:
    """Columns come, go and get other names, between writes and runs; the lake has the database's rows."""
    pick, database = random.Random(seed), captured.database
    # A name has one type: what the lake's table cannot become is refused.
    names, columns = [f"c{number}" for number in range(4)], ["owner", "balance"]
    captured.run()
    for _ in range(6):
        for _ in range(pick.randint(1, 6)):
            name = pick.choice(names)
            match pick.randrange(5):
                case 0 | 1 if name not in columns:
                    columns.append(name)
                    default = pick.choice(["", "", " DEFAULT 7", " DEFAULT (random() * 9)::int"])
                    database.execute(f"ALTER TABLE accounts ADD COLUMN {name} int{default}")
                case 2 if name in columns and pick.random() < 0.5:
                    columns.remove(name)
                    database.execute(f"ALTER TABLE accounts DROP COLUMN {name}")
                case 3 if name in columns and (other := pick.choice(names)) not in columns:
                    columns[columns.index(name)] = other
                    database.execute(f"ALTER TABLE accounts RENAME COLUMN {name} TO {other}")
                case 4 if pick.random() < 0.3:
                    database.execute(pick.choice(["VACUUM FULL accounts", "TRUNCATE accounts"]))
            column, row = pick.choice(columns), pick.randrange(30)
            database.execute(
                f"INSERT INTO accounts (id, {column}) VALUES ({row}, '{pick.randrange(9)}') "
                f"ON CONFLICT (id) DO UPDATE SET {column} = EXCLUDED.{column}"
            )
            database.execute(f"DELETE FROM accounts WHERE id = {pick.randrange(30)}")
        captured.run()
        captured.require_equal("accounts", ", ".join(["id", *columns]))


def test_a_type_that_the_lake_cannot_take_stops_its_table_only(captured: Captured) -> None:
    database = captured.database
    captured.run()
    database.execute("ALTER TABLE notes ALTER COLUMN id TYPE text USING 'n' || id")
    database.execute("INSERT INTO notes VALUES ('n7', 'c'); UPDATE accounts SET balance = 7 WHERE id = 1")
    captured.run()
    happened = captured.pipeline.run()
    assert happened.state == "COMPLETED"
    (aside,) = happened.of("table_set_aside")
    assert aside["relation"] == "public.notes"
    assert "INCOMPATIBLE_SCHEMA_CHANGE" in aside["reason"]
    captured.require_equal("accounts", "id, owner, balance")
    assert captured.pipeline.query("SELECT id FROM bank_notes") == [(1,), (2,)]
    options = Options(spec=str(captured.pipeline.folder / "spark-pipeline.yml"))
    with Project(options, lambda _event: None, base=captured.pipeline.session) as project:
        (status,) = capture_statuses(project)
    assert status.set_aside["public.notes"].params["error"] == "INCOMPATIBLE_SCHEMA_CHANGE"
    # What its hint says ends it.
    assert "--full-refresh bank_notes" in aside["reason"]
    happened = captured.pipeline.run(full=["bank_notes"])
    assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
    captured.require_equal("notes", "id, note")
