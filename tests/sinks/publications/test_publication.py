"""Publications end to end: each version shows what the lake has at its checkpoint, in the eyes of others."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.runtime.commands import taut_in_process
from tests.support.harness import Happened, Pipeline

from tautochrone.cli.main import main
from tautochrone.errors import SinkError
from tautochrone.model.effects import Step
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.runtime.delivery.audit import verify_sink
from tautochrone.runtime.job.topology import declared_sinks
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.runtime.revision.plan import RevisionRequest
from tautochrone.runtime.revision.revise import revise, survey
from tautochrone.sinks.delta.sink import DeltaTable

pytest.importorskip("deltalake")
pytest.importorskip("hudi")

import contextlib

from tests.sinks.publications.toy_lake import READERS, listed_versions

SETTINGS = """
[refresh]
policy = "incremental"
[spark.conf]
"spark.sql.shuffle.partitions" = "1"
"""
DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

spark = SparkSession.active()

@dp.table(table_properties={"tautochrone.publish": "hudi, delta, paimon"})
def orders():
    return spark.readStream.schema("id BIGINT, name STRING, amount DOUBLE").json("@IN@")

@dp.materialized_view(table_properties={"tautochrone.publish": "hudi, delta, paimon"})
def totals():
    return spark.read.table("orders").groupBy("name").agg(sf.sum("amount").alias("total"))
"""


def texts(rows: pa.Table, *, with_nulls: bool = True) -> list[str]:
    """The rows as sorted texts, times in UTC."""

    def plain(value: Any) -> Any:
        if isinstance(value, dt.datetime) and value.tzinfo is not None:
            return value.astimezone(dt.UTC)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if with_nulls or item is not None}
        return [plain(item) for item in value] if isinstance(value, list | tuple) else value

    return sorted(repr(plain(row)) for row in rows.to_pylist())


class Published:
    """A pipeline and its publication."""

    def __init__(self, folder: Path, spark: SparkSession, settings: str = "") -> None:
        self.incoming = folder / "in"
        self.incoming.mkdir()
        self.pipeline = Pipeline(folder / "project", spark, settings=settings)
        self.folder = folder / "project/storage/publications"
        self.define(DEFINITIONS)

    def define(self, text: str) -> None:
        self.pipeline.write("definitions/tables.py", text.replace("@IN@", str(self.incoming)))

    def add(self, *rows: tuple[int, str, float]) -> None:
        lines = [json.dumps(dict(zip(("id", "name", "amount"), row, strict=True))) for row in rows]
        number = len(list(self.incoming.iterdir()))
        (self.incoming / f"{number}.json").write_text("\n".join(lines))

    def run(self, *, full: Sequence[str] = ()) -> Happened:
        happened = self.pipeline.run(full=full)
        assert happened.state == "COMPLETED", happened.of("sink_failed")
        return happened

    def versions(self, format_name: str = "delta") -> dict[int, dict[str, str]]:
        """By checkpoint the version of each table."""
        return {
            checkpoint: {name.table: version for name, version in versions.items()}
            for checkpoint, versions in listed_versions(self.folder / format_name).items()
        }

    def rows(self, table: str, version: str | None = None, format_name: str = "delta") -> list[str]:
        """As readers of the format see them. Hudi's show older versions with the newest columns."""
        (folder,) = (self.folder / format_name).glob(f"default*/{table}")
        rows = READERS[format_name](folder, version)
        return texts(rows, with_nulls=format_name != "hudi")

    def lake_rows(self, table: str, checkpoint: int, *, with_nulls: bool = True) -> list[str]:
        versions = self.pipeline.job.store.checkpoints.versions_at(checkpoint)
        name = next(name for name in versions if name.table == table)
        rows = self.pipeline.job.lake_table(name).read(self.pipeline.session, versions[name])
        return texts(rows.toArrow(), with_nulls=with_nulls)

    def check(self, *, last: int = 0, last_of_hudi: int = 0) -> None:
        """In each format every listed version of every table, or the last ones, has the rows of its
        checkpoint."""
        for format_name in [folder.name for folder in self.folder.iterdir()]:
            newest = max(last, last_of_hudi) if format_name == "hudi" else last
            for checkpoint, tables in list(self.versions(format_name).items())[-newest:]:
                for table, version in tables.items():
                    shown = self.rows(table, version, format_name)
                    lake = self.lake_rows(table, checkpoint, with_nulls=format_name != "hudi")
                    assert shown == lake, (format_name, table, checkpoint)


@pytest.fixture
def published(tmp_path: Path, spark: SparkSession) -> Iterator[Published]:
    publication = Published(tmp_path, spark, SETTINGS)
    yield publication
    publication.pipeline.close()


def test_each_checkpoint_is_one_version(published: Published, capsys: pytest.CaptureFixture[str]) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0), (3, "a", 3.25))
    first = published.run().checkpoints[-1]
    published.add((4, "b", 1.0))
    second = published.run().checkpoints[-1]
    published.add((5, "c", 1.0), (6, "a", -1.0))
    third = published.run().checkpoints[-1]
    assert published.versions() == {
        number: {"orders": str(version), "totals": str(version)}
        for version, number in enumerate((first, second, third))
    }
    published.check()
    assert (
        main(["checkpoints", "--json", "--spec", str(published.pipeline.folder / "spark-pipeline.yml")]) == 0
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    by_format = {line["checkpoint"]: line["published"] for line in lines}
    assert by_format[second]["delta"] == {"lake.default.orders": "1", "lake.default.totals": "1"}
    assert by_format[second]["paimon"] == {"lake.default.orders": "2", "lake.default.totals": "2"}
    assert len(set(by_format[second]["hudi"].values())) == 1


ALL_TYPES = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
BOTH = {"tautochrone.publish": "delta, paimon"}

@dp.table
def numbers():
    return spark.readStream.schema("id BIGINT, name STRING, amount DOUBLE").json("@IN@")

VALUES = '''
    id % 3 = 0 AS flag, CAST(id AS TINYINT) AS tiny, CAST(id AS SMALLINT) AS small, CAST(id AS INT) AS whole,
    id AS big, CAST(id / 3 AS FLOAT) AS single, IF(id = 2, double('NaN'), amount) AS twice,
    CAST(id / 7 AS DECIMAL(7, 2)) AS short_money, CAST(id / 7 AS DECIMAL(16, 3)) AS money,
    CAST(id / 7 AS DECIMAL(38, 10)) AS long_money, name, CAST(name AS BINARY) AS bytes,
    date_add(DATE '1969-12-30', CAST(id AS INT)) AS day,
    timestamp_micros(id * 1000003 - 5000000) AS moment,
    CAST(timestamp_micros(id * 1000003) AS TIMESTAMP_NTZ) AS local_moment,
    array(id, NULL, id + 1) AS list, map(name, amount, 'x', NULL) AS dictionary,
    named_struct('a', id, 'b', named_struct('c', name, 'd', array(named_struct('e', id)))) AS nested,
    map(id, array(map('k', id))) AS deep
'''

@dp.materialized_view(table_properties=BOTH)
def typed():
    return spark.sql(f"SELECT {VALUES} FROM numbers UNION ALL SELECT {VALUES} FROM numbers WHERE id > 3")

@dp.materialized_view(table_properties=BOTH, partition_cols=["flag", "name"])
def by_partition():
    return spark.sql(f"SELECT {VALUES} FROM numbers")

@dp.materialized_view(table_properties=BOTH)
def nothing():
    return spark.sql(f"SELECT {VALUES} FROM numbers WHERE id < 0")

@dp.materialized_view(table_properties={"tautochrone.publish": "hudi"}, partition_cols=["flag"])
def typed_for_hudi():
    return spark.sql(f"SELECT {VALUES} FROM numbers").drop("deep", "local_moment")
"""


def test_all_types_are_read_alike(published: Published) -> None:
    published.define(ALL_TYPES)
    published.add((1, "a", 1.5), (2, "\u00e4" * 20, -0.0), (3, "", 1e300), (4, "d", 4.0), (5, "e'", 5.0))
    published.run()
    published.add((6, "a", 6.5), (7, "z", 0.25))
    published.run()
    assert len(published.versions()) == 2
    published.check()


def test_rebuilt_and_changed_tables_are_published(published: Published) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0))
    published.run()
    renamed = DEFINITIONS.replace('alias("total")', 'alias("sum"), sf.count("*").alias("n")')
    published.define(renamed)
    published.run()
    assert "'sum'" in published.rows("totals")[0]
    published.add((3, "b", 0.5))
    published.run(full=["orders"])
    with_column = renamed.replace("amount DOUBLE", "amount DOUBLE, note STRING")
    published.define(with_column)
    published.add((4, "c", 0.5))
    published.run()
    assert len(published.versions()) >= 4
    # hudi-rs reads older versions with the newest columns.
    published.check(last_of_hudi=1)


@pytest.mark.slow
def test_renamed_and_dropped_tables_in_each_format(published: Published) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0))
    published.run()
    folder, session = published.pipeline.folder, published.pipeline.session
    published.define(DEFINITIONS.replace("def totals", "def sums"))
    renamed = taut_in_process(folder, session, "rename", "totals", "sums")
    assert renamed.returncode == 0, renamed.stderr
    published.add((3, "a", 0.5))
    happened = published.run()
    assert [event["replaced"] for event in happened.of("sink_delivered")] == [{}, {}, {}]
    published.check(last=1, last_of_hudi=1)
    assert {path.name for path in published.folder.glob("*/default*/*")} == {"orders", "sums"}
    published.define(DEFINITIONS.partition("@dp.materialized_view")[0])
    dropped = taut_in_process(folder, session, "drop", "sums", "--yes")
    assert dropped.returncode == 0, dropped.stderr
    assert {path.name for path in published.folder.glob("*/default*/*")} == {"orders"}
    published.add((4, "b", 1.0))
    published.run()
    published.check(last=1, last_of_hudi=1)


def test_a_revision_publishes_the_way_back(published: Published) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0))
    published.run()
    right = published.rows("totals")
    published.add((3, "a", 99.0))
    published.run()
    (published.incoming / "1.json").unlink()
    with published.pipeline.opened() as (job, _):
        orders = TableName("lake", ("default",), "orders")
        request = RevisionRequest(named=(orders,), to=CheckpointNumber(1), read_again=True, full=False)
        revise(job, request, survey(job, request))
    published.run()
    assert published.rows("totals") == right
    newest = list(published.versions().values())[-1]
    assert newest == {"orders": "2", "totals": "2"}
    published.check(last=1)


MAINTAINED = """
[maintenance]
keep = "0s"
keep_last = 2
history = "0s"
every = "0s"
min_versions = 1
min_files = 2
"""


def test_compaction_and_expiry_leave_the_published_files(tmp_path: Path, spark: SparkSession) -> None:
    published = Published(tmp_path, spark, SETTINGS + MAINTAINED)
    for number in range(4):
        published.add((number, "a", 1.0), (number + 10, "b", 2.0))
        happened = published.run()
        with published.pipeline.opened() as (job, _):
            Maintenance(job).run()
        # What was merged since is not published yet, and what is published is there.
        published.check(last=1)
    assert happened.of("versions_expired")
    assert len(published.versions()) == 4
    published.pipeline.close()


def test_an_audit_compares_files(published: Published) -> None:
    published.add((1, "a", 1.5), (2, "b", 2.0))
    published.run()
    published.add((3, "a", 1.0))
    published.run()
    job = published.pipeline.job
    declared = {each.format: each for each in declared_sinks(job.topology, job.settings.sinks)}

    both = {"orders": True, "totals": True}

    def equal(sink: str = "delta-publication") -> dict[str, bool | None]:
        verdicts = verify_sink(published.pipeline.session, job.store, job.lake, declared[sink], (), None)
        return {verdict.dataset.table: verdict.equal for verdict in verdicts}

    assert equal() == equal("hudi-publication") == equal("paimon-publication") == both
    (vectors,) = (published.folder / "delta/default/totals").glob("*.bin")
    vectors.write_bytes(b"")
    assert equal() == {"orders": True, "totals": False}
    (vectors,) = (published.folder / "paimon/default.db/totals/index").iterdir()
    vectors.write_bytes(b"")
    assert equal("paimon-publication") == {"orders": True, "totals": False}


class SinkStrikes(StrikingEffects):
    """A strike at a sink, whose name has no database before it."""

    def perform(self, step: Step, subject: str, action: Callable[[], Any]) -> Any:
        return super().perform(step, f".{subject}", action)


STRIKES = [
    (Step.SINK_FENCE, "after", "crash"),
    (Step.META_DELIVERY_INTEND, "after", "crash"),
    (Step.SINK_PREPARE, "after", "crash"),
    (Step.SINK_COMMIT, "before", "crash"),
    (Step.SINK_COMMIT, "after", "crash"),
    (Step.META_DELIVERY_DONE, "before", "crash"),
    (Step.SINK_COMMIT, "after", "lose"),
]


def test_a_crash_at_a_step_of_the_delivery_repeats_nothing(published: Published) -> None:
    published.add((1, "a", 0.0))
    published.run()
    for number, (step, when, kind) in enumerate(STRIKES):
        published.add((number, "a", 1.0), (number, "b", 1.0))
        effects = SinkStrikes(Strike(step, when, kind))
        with published.pipeline.opened(effects) as (job, _), contextlib.suppress(Crash):
            published.pipeline.execute(job)
        assert effects.struck, step
    published.run()
    newest = published.pipeline.job.store.checkpoints.latest_published()
    assert newest is not None
    assert list(published.versions()) == list(range(1, newest.number + 1))
    published.check()


def test_checkpoints_of_an_outage_are_published_afterwards(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.add((1, "a", 1.0))
    published.run()
    stage = DeltaTable.stage

    def broken(*_: Any, **__: Any) -> Any:
        raise SinkError("SINK_OUT_OF_ORDER", "the disk is away", retryable=False)

    monkeypatch.setattr(DeltaTable, "stage", broken)
    for number in range(3):
        published.add((number, "b", 1.0))
        assert published.pipeline.run().state == "FAILED"
    assert len(published.versions()) == 1
    monkeypatch.setattr(DeltaTable, "stage", stage)
    published.run()
    assert list(published.versions()) == [1, 2, 3, 4]
    published.check()


def test_the_project_publishes_all_or_what_asks_for_the_format(tmp_path: Path, spark: SparkSession) -> None:
    published = Published(tmp_path, spark, SETTINGS + '[lake]\npublish = ["delta"]\n')
    published.define(
        DEFINITIONS.replace('table_properties={"tautochrone.publish": "hudi, delta, paimon"}', "")
    )
    published.add((1, "a", 1.0))
    published.run()
    assert [set(tables) for tables in published.versions().values()] == [{"orders", "totals"}]
    asking = DEFINITIONS.replace(
        'table_properties={"tautochrone.publish": "hudi, delta, paimon"}', 'format="paimon"', 1
    )
    published.define(asking.replace('table_properties={"tautochrone.publish": "hudi, delta, paimon"}', ""))
    published.pipeline.write("tautochrone.toml", SETTINGS + '[lake]\nother_formats = "publish"\n')
    published.pipeline.reload()
    published.add((2, "a", 1.0))
    published.run()
    assert [set(tables) for tables in published.versions("paimon").values()][-1] == {"orders"}
    published.check()
    published.pipeline.close()
