"""Tables that take the files of a light capture's changes have the rows of the database."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Happened, Pipeline

from tautochrone.iceberg.reads import key_positions
from tautochrone.model import limits
from tautochrone.model.effects import Step
from tautochrone.runtime.job.job import Job
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.streams.change_logs import orphans_end

CAPTURE = """
from tautochrone.sources import postgresql

postgresql.capture("db", url="{url}", mode="{mode}", tables={tables})
"""
DDL = """
CREATE TABLE plain (a int, b text, price numeric(10, 2), at timestamptz, PRIMARY KEY (a, b));
INSERT INTO plain SELECT i % 7, 'k' || i, i / 8.0, now() FROM generate_series(1, 40) i;
CREATE TABLE large (id bigint PRIMARY KEY, n int, note text);
ALTER TABLE large ALTER note SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, i, repeat('x', 3000) FROM generate_series(1, 10) i;
CREATE TABLE times (at timestamp PRIMARY KEY, n int);
INSERT INTO times VALUES ('2024-03-10 02:30', 1), ('2024-11-03 01:30', 2), ('9999-12-31 23:59:59', 3);
"""
SETTINGS = """
[flows.db_log]
max_events_per_trigger = 6

[spark.conf]
"spark.sql.session.timeZone" = "America/New_York"
"""
"""There the first one of `times` does not exist, and the second one is twice."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


class Captured:
    """
    Attributes:
        tables: those that are captured. Each costs a refresh in every run.
    """

    def __init__(
        self, database: psycopg.Connection, folder: Path, spark: SparkSession, tables: Sequence[str]
    ) -> None:
        self.database, self.tables = database, tables
        info = database.info
        url = f"host={info.host} dbname={info.dbname} user=postgres"
        self.pipeline = Pipeline(folder, spark, settings=SETTINGS)
        self.url = url
        self.define("light")

    def define(self, mode: str) -> None:
        names = [f"public.{table}" for table in self.tables]
        self.pipeline.write("definitions/db.py", CAPTURE.format(url=self.url, mode=mode, tables=names))

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

    def run(self) -> Happened:
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", [event["error"] for event in happened if "error" in event]
        self.require_equal()
        return happened

    def run_with_crash(self, step: Step, when: str = "after") -> Job:
        """One that may end before it comes to the step."""
        effects = StrikingEffects(Strike(step, when, "crash"))
        try:
            with self.pipeline.opened(effects) as (job, _happened):
                self.pipeline.execute(job)
        except Crash:
            pass
        return job

    def require_equal(self) -> None:
        if "plain" in self.tables:
            self._require_equal_plain()
        if "large" in self.tables:
            stored = self.pipeline.query("SELECT id, n, note FROM db_large")
            selected = self.database.execute("SELECT id, n, note FROM large").fetchall()
            assert sorted(stored) == sorted(selected)
        if "times" in self.tables:
            stored = self.pipeline.query("SELECT CAST(at AS STRING), n FROM db_times")
            assert stored == sorted(self.database.execute("SELECT at::text, n FROM times").fetchall())

    def _require_equal_plain(self) -> None:
        stored = self.pipeline.query("SELECT a, b, CAST(price AS STRING), unix_micros(at) FROM db_plain")
        selected = self.database.execute(
            "SELECT a, b, price::text, (extract(EPOCH FROM at) * 1000000)::bigint FROM plain"
        )
        assert sorted(map(repr, stored)) == sorted(map(repr, selected.fetchall()))

    def files(self) -> set[str]:
        """Names of files with changes that the log table has, until maintenance drops them."""
        query = "SELECT columns['file'] FROM db_log WHERE operation = 'change file'"
        return {str(name) for (name,) in self.pipeline.query(query)}

    def unmerged_files(self) -> list[Path]:
        """Files that no version of a table has and that were written last."""
        session = self.pipeline.session
        known = {
            row.file_path.rpartition("/")[2]
            for row in session.sql("SELECT file_path FROM lake.default.db_plain.all_data_files").collect()
        }
        folder = self.pipeline.folder / "storage" / "warehouse" / "default" / "db_plain" / "data"
        return [path for path in folder.glob("*.parquet") if path.name not in known]

    def operations(self, table: str) -> dict[str, int]:
        query = f"SELECT operation, count(*) FROM db_log WHERE relation = 'public.{table}' GROUP BY operation"
        return {str(operation): int(count) for operation, count in self.pipeline.query(query)}


def capture_of(*tables: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("defined", [tables], indirect=True, ids=["+".join(tables)])


@pytest.fixture
def defined(
    request: pytest.FixtureRequest, database: psycopg.Connection, tmp_path: Path, spark: SparkSession
) -> Iterator[Captured]:
    """A capture that did not run yet."""
    database.execute(DDL)
    captured = Captured(database, tmp_path, spark, request.param)
    yield captured
    captured.pipeline.close()


@pytest.fixture
def captured(defined: Captured) -> Captured:
    defined.run()
    return defined


@capture_of("plain", "large", "times")
@pytest.mark.parametrize(
    ("seed", "rounds"), [(100, 2), *(pytest.param(seed, 8, marks=pytest.mark.slow) for seed in range(12))]
)
def test_random_changes(captured: Captured, seed: int, rounds: int) -> None:
    """The second round of seed 100 begins with a crash."""
    pick = random.Random(seed)
    steps = [Step.LAKE_STAGE, Step.LAKE_COMMIT, Step.LAKE_COMMIT_STAGED, Step.SOURCE_ACKNOWLEDGE]
    named: set[str] = set()
    for _ in range(rounds):
        captured.write(pick, also_large=pick.random() < 0.5)
        if pick.random() < 0.3:
            captured.run_with_crash(pick.choice(steps))
            captured.write(pick, also_large=False)
        captured.run()
        named |= captured.files()
    assert len(named) > rounds


@capture_of("plain", "times")
def test_files_become_the_tables(captured: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several batches at once; also where the table cannot be built of its log any more."""
    database = captured.database
    for number in range(4):
        database.execute("UPDATE plain SET price = %s WHERE a = 1", [number])
        database.execute("DELETE FROM plain WHERE a = 2 AND b LIKE %s", [f"%{number}"])
        database.execute("INSERT INTO plain VALUES (2, %s)", [f"n{number}"])
    happened = captured.run()
    assert happened.mode("db_plain")[0] == "incremental"
    assert happened.refresh("db_plain")["reason_code"] == "EVENTS_MERGED"
    operations = captured.operations("plain")
    assert operations.keys() == {"completed", "copied file", "change file"}
    assert operations["change file"] > 1
    files = captured.pipeline.session.sql("SELECT file_path FROM lake.default.db_plain.data_files").collect()
    # Beside the file of the first copy only named ones: no row was written again.
    assert len({file.file_path.rpartition("/")[2] for file in files} - captured.files()) == 1
    with database.transaction():
        database.execute("INSERT INTO plain VALUES (9, 'short')")
        database.execute("DELETE FROM plain WHERE a = 9")
    # Spark finds the rows of keys where files are too many for the driver.
    database.execute("UPDATE times SET n = n + 10")
    with monkeypatch.context() as patch:
        no_files = SimpleNamespace(**{**vars(limits), "MAX_DRIVER_LOOKUP_FILES": 0})
        patch.setattr(key_positions, "limits", no_files)
        happened = captured.run()
    assert "KEYS_IN_MANY_FILES" in {node["reason_code"] for node in happened.refresh("db_times")["nodes"]}
    assert happened.refresh("db_plain")["reason_code"] == "NO_EVENTS_OF_KEYS"
    assert "LOG_SHORTENED" in captured.pipeline.run(full=["db_plain"]).failure("db_plain")
    database.execute("DELETE FROM plain WHERE a = 3")
    assert [event["relations"] for event in captured.run().of("bulk_again")] == [["public.plain"]]


@capture_of("plain")
def test_files_wait_for_their_table(captured: Captured) -> None:
    """Maintenance removes none of them. Before they are merged, the table gets partitions, and the capture is
    no longer a light one."""
    database = captured.database
    database.execute("UPDATE plain SET price = 7 WHERE a < 3")
    job = captured.run_with_crash(Step.META_OPEN, "before")
    (named,) = captured.unmerged_files()
    now_ms = time.time_ns() // 1_000_000
    (table,) = [table for name, table in job.tables.items() if str(name).endswith(".db_plain")]
    end_ms = orphans_end(job, table, now_ms)
    assert isinstance(end_ms, int)
    assert end_ms < named.stat().st_mtime * 1000
    captured.pipeline.session.sql("ALTER TABLE lake.default.db_plain ADD PARTITION FIELD a")
    captured.define("full")
    with captured.pipeline.opened() as (next_job, _happened):
        Maintenance(next_job, now_ms=lambda: now_ms + 30 * 86_400_000).run()
    database.execute("UPDATE plain SET price = 2 WHERE a = 2")
    refresh = captured.run().refresh("db_plain")
    assert "EVENTS_BESIDE_FILES" in {node["reason_code"] for node in refresh["nodes"]}
    assert captured.files()
    of_partition = captured.pipeline.query("SELECT count(*) FROM db_plain WHERE a = 2")
    assert of_partition == database.execute("SELECT count(*) FROM plain WHERE a = 2").fetchall()
    assert orphans_end(job, table, now_ms) == now_ms


@capture_of("plain")
def test_a_lost_file_is_refused(captured: Captured) -> None:
    database = captured.database
    database.execute("UPDATE plain SET price = 1 WHERE a = 1")
    # The table has rows of a time when files may have been theirs.
    captured.run()
    database.execute("UPDATE plain SET price = 2 WHERE a = 1")
    captured.run_with_crash(Step.META_OPEN, "before")
    (named,) = captured.unmerged_files()
    named.unlink()
    failed = captured.pipeline.run()
    assert "LOG_SHORTENED" in failed.failure("db_plain")
    assert "there is no such file" in failed.failure("db_plain")


@capture_of("parts")
def test_rows_of_an_attached_partition_are_newer_than_files(defined: Captured) -> None:
    """Only they are copied, beside files that the table does not have yet."""
    captured, database = defined, defined.database
    database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, n int) PARTITION BY RANGE (id); "
        "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100); "
        "CREATE TABLE parts_rest PARTITION OF parts DEFAULT; "
        "INSERT INTO parts VALUES (1, 1), (2, 2), (150, 150)"
    )
    captured.run()
    database.execute("DELETE FROM parts WHERE id = 150")
    database.execute("UPDATE parts SET n = 3 WHERE id = 2")
    captured.run_with_crash(Step.META_OPEN, "before")
    database.execute(
        "CREATE TABLE parts_high (id int PRIMARY KEY, n int); "
        "INSERT INTO parts_high VALUES (150, 1), (151, 1); "
        "ALTER TABLE parts ATTACH PARTITION parts_high FOR VALUES FROM (100) TO (200)"
    )
    happened = captured.run()
    assert captured.operations("parts")["change file"] == 1
    assert captured.operations("parts")["copy"] == 2, happened.of("bulk_again")
    expected = [(1, 1), (2, 3), (150, 1), (151, 1)]
    assert sorted(captured.pipeline.query("SELECT id, n FROM db_parts")) == expected
