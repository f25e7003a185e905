"""Tables that take the files of a light capture's changes have the rows of the database."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects

from tautochrone.model.effects import Step
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.testing.harness import Happened, Pipeline

CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("db", url="{url}", mode="light")
"""
DDL = """
CREATE TABLE plain (a int, b text, price numeric(10, 2), at timestamptz, PRIMARY KEY (a, b));
INSERT INTO plain SELECT i % 7, 'k' || i, i / 8.0, now() FROM generate_series(1, 40) i;
CREATE TABLE large (id bigint PRIMARY KEY, n int, note text);
ALTER TABLE large ALTER note SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, i, repeat('x', 3000) FROM generate_series(1, 10) i;
"""
SETTINGS = "[flows.db_log]\nmax_events_per_trigger = 6\n"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Captured:
    def __init__(self, database: psycopg.Connection, folder: Path, spark: SparkSession) -> None:
        self.database = database
        info = database.info
        url = f"host={info.host} dbname={info.dbname} user=postgres"
        self.pipeline = Pipeline(folder, spark, settings=SETTINGS)
        self.pipeline.write("definitions/db.py", CAPTURE.format(url=url))

    def write(self, pick: random.Random, *, also_large: bool) -> None:
        """Some transactions."""
        for _ in range(pick.randint(1, 12)):
            with self.database.transaction():
                for _ in range(pick.randint(1, 3)):
                    self.database.execute(*self._statement(pick, also_large=also_large))

    def _statement(self, pick: random.Random, *, also_large: bool) -> tuple[str, list[Any]]:
        key = [pick.randrange(7), f"k{pick.randint(1, 40)}"]
        kind = pick.random()
        if also_large and kind < 0.3:
            number = pick.randint(1, 12)
            choices: list[tuple[str, list[Any]]] = [
                ("UPDATE large SET n = n + 1 WHERE id = %s", [number]),
                ("DELETE FROM large WHERE id = %s", [number]),
                (
                    "INSERT INTO large VALUES (%s, 0, repeat('y', 3000)) "
                    "ON CONFLICT (id) DO UPDATE SET note = EXCLUDED.note",
                    [number],
                ),
            ]
            return pick.choice(choices)
        if kind < 0.32:
            return "TRUNCATE plain", []
        if kind < 0.5:
            return "DELETE FROM plain WHERE a = %s AND b < %s", key
        if kind < 0.6:
            statement = "UPDATE plain SET b = b || '-' WHERE a = %s AND b = %s"
            return statement, key
        statement = (
            "INSERT INTO plain VALUES (%s, %s, %s, now()) "
            "ON CONFLICT (a, b) DO UPDATE SET price = EXCLUDED.price"
        )
        return statement, [*key, pick.choice([None, pick.randrange(1000) / 4])]

    def run(self, *, full: tuple[str, ...] = ()) -> Happened:
        happened = self.pipeline.run(full=full)
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        self.require_equal()
        return happened

    def run_with_crash(self, step: Step) -> None:
        """One that may end before it comes to the step."""
        effects = StrikingEffects(Strike(step, "after", "crash"))
        try:
            with self.pipeline.opened(effects) as (job, _happened):
                self.pipeline.execute(job)
        except Crash:
            pass

    def require_equal(self) -> None:
        stored = self.pipeline.query("SELECT a, b, CAST(price AS STRING), unix_micros(at) FROM db_plain")
        selected = self.database.execute(
            "SELECT a, b, price::text, (extract(EPOCH FROM at) * 1000000)::bigint FROM plain"
        )
        assert sorted(map(repr, stored)) == sorted(map(repr, selected.fetchall()))
        stored = self.pipeline.query("SELECT id, n, note FROM db_large")
        assert sorted(stored) == sorted(self.database.execute("SELECT id, n, note FROM large").fetchall())

    def files(self) -> set[str]:
        """Names of files with changes that the log table has, until maintenance drops them."""
        query = "SELECT columns['file'] FROM db_log WHERE operation = 'file of changes'"
        return {str(name) for (name,) in self.pipeline.query(query)}

    def operations(self, table: str) -> dict[str, int]:
        query = f"SELECT operation, count(*) FROM db_log WHERE relation = 'public.{table}' GROUP BY operation"
        return {str(operation): int(count) for operation, count in self.pipeline.query(query)}


@pytest.fixture
def captured(database: psycopg.Connection, tmp_path: Path, spark: SparkSession) -> Iterator[Captured]:
    database.execute(DDL)
    captured = Captured(database, tmp_path, spark)
    captured.run()
    yield captured
    captured.pipeline.close()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 12))])
def test_random_changes(captured: Captured, seed: int) -> None:
    pick = random.Random(seed)
    steps = [Step.LAKE_STAGE, Step.LAKE_COMMIT, Step.LAKE_COMMIT_STAGED, Step.SOURCE_ACKNOWLEDGE]
    named: set[str] = set()
    for _ in range(8):
        captured.write(pick, also_large=pick.random() < 0.5)
        if pick.random() < 0.3:
            captured.run_with_crash(pick.choice(steps))
            captured.write(pick, also_large=False)
        captured.run()
        named |= captured.files()
    assert len(named) > 8


def test_files_become_the_tables(captured: Captured) -> None:
    """Of several batches at once; also where the table cannot be built of its log any more."""
    database = captured.database
    for number in range(4):
        database.execute("UPDATE plain SET price = %s WHERE a = 1", [number])
        database.execute("DELETE FROM plain WHERE a = 2 AND b LIKE %s", [f"%{number}"])
        database.execute("INSERT INTO plain VALUES (2, %s)", [f"n{number}"])
    happened = captured.run()
    (refresh,) = [
        event for event in happened if event["event"] == "refresh" and event["dataset"].endswith("plain")
    ]
    assert refresh["mode"] == "incremental"
    assert refresh["reason_code"] == "EVENTS_MERGED", refresh
    operations = captured.operations("plain")
    assert operations.keys() == {"completed", "copied file", "file of changes"}
    assert operations["file of changes"] > 1
    files = captured.pipeline.session.sql("SELECT file_path FROM lake.default.db_plain.data_files").collect()
    # Beside the file of the first copy only named ones: no row was written again.
    assert len({file.file_path.rpartition("/")[2] for file in files} - captured.files()) == 1
    with database.transaction():
        database.execute("INSERT INTO plain VALUES (9, 'short')")
        database.execute("DELETE FROM plain WHERE a = 9")
    happened = captured.run()
    assert "NO_EVENTS_OF_KEYS" in {
        event.get("reason_code") for event in happened if event["event"] == "refresh"
    }
    assert "LOG_SHORTENED" in captured.pipeline.run(full=["db_plain"]).failure("db_plain")
    database.execute("DELETE FROM plain WHERE a = 3")
    happened = captured.run()
    assert [event["relations"] for event in happened if event["event"] == "bulk_again"] == [["public.plain"]]
    database.execute("DELETE FROM plain WHERE a = 4")
    captured.run()


def test_files_are_merged_after_the_table_and_the_capture_changed(captured: Captured) -> None:
    """The table got partitions, and the capture is no longer a light one, before the files were merged."""
    captured.database.execute("UPDATE plain SET price = 7 WHERE a < 3")
    captured.run_with_crash(Step.META_OPEN)
    captured.pipeline.session.sql("ALTER TABLE lake.default.db_plain ADD PARTITION FIELD a")
    definition = captured.pipeline.folder / "definitions" / "db.py"
    definition.write_text(definition.read_text().replace(', mode="light"', ""))
    in_a_month_ms = time.time_ns() // 1_000_000 + 30 * 86_400_000
    with captured.pipeline.opened() as (job, _happened):
        Maintenance(job, now_ms=lambda: in_a_month_ms).run()
    happened = captured.run()
    assert "EVENTS_MERGED" in {r["reason_code"] for r in happened.of("refresh")}
    assert captured.files()
    of_partition = captured.pipeline.query("SELECT count(*) FROM db_plain WHERE a = 2")
    assert of_partition == captured.database.execute("SELECT count(*) FROM plain WHERE a = 2").fetchall()
