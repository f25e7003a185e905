"""Views over Delta tables that others write: after each change they equal what delta-rs reads."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.crash.faults import Crash, Strike, StrikingEffects
from tests.support.harness import Happened, Pipeline

from tautochrone.cli.main import main
from tautochrone.errors import DefinitionError
from tautochrone.iceberg.maintenance.relocation import Survey
from tautochrone.model.effects import Step
from tautochrone.model.foreign import ForeignSource, ForeignVersion
from tautochrone.model.names import is_shadow_table
from tautochrone.model.relocated_paths import MovedFolder
from tautochrone.runtime.adoption.adopt import Adoption
from tautochrone.runtime.adoption.adoptable import Action
from tautochrone.runtime.maintenance.maintain import Maintenance
from tautochrone.sources.delta import DeltaTable
from tautochrone.sources.storage import Storage

deltalake = pytest.importorskip("deltalake")

pytestmark = pytest.mark.spark

DEFINITIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
STRICT = {{"tautochrone.refresh-policy": "incremental_strict"}}
ORDERS = spark.read.format("delta").load("{path}")

@dp.materialized_view(table_properties=STRICT)
def big():
    return spark.sql("SELECT id, kind FROM delta.`{path}` WHERE id >= 5")

@dp.materialized_view(table_properties=STRICT)
def kinds():
    return ORDERS.groupBy("kind").count()
"""
APART = "CREATE MATERIALIZED VIEW apart AS SELECT count(*) AS n FROM VALUES (1), (2);"


def rows(*ids: int) -> pa.Table:
    kinds = pa.array([None if i % 5 == 0 else f"k {i % 3}/ü" for i in ids], pa.string())
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": kinds})


class Orders:
    """A Delta table, and a pipeline with views over it."""

    def __init__(self, pipeline: Pipeline, *, partitioned: bool = True) -> None:
        self.pipeline, self.folder = pipeline, pipeline.folder / "ext/my orders"
        deltalake.write_deltalake(
            self.folder, rows(*range(10)), partition_by=["kind"] if partitioned else None
        )
        pipeline.write("definitions/p.py", DEFINITIONS.format(path=self.folder))

    @property
    def table(self) -> Any:
        return deltalake.DeltaTable(self.folder)

    def write(self, *ids: int, **how: Any) -> None:
        deltalake.write_deltalake(self.folder, rows(*ids), **{"mode": "append", **how})

    def run(self, **modes: str) -> Happened:
        """Run, and compare the views with what delta-rs reads and their modes with the expected ones."""
        happened = self.pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        self.check()
        assert {view: happened.mode(view)[0] for view in modes} == modes, [
            (refresh["dataset"], refresh["reason"]) for refresh in happened.of("refresh")
        ]
        return happened

    def check(self) -> None:
        shown = self.table.to_pyarrow_table().to_pylist()
        big = sorted(((row["id"], row["kind"]) for row in shown if row["id"] >= 5), key=repr)
        assert sorted(self.query("SELECT id, kind FROM big"), key=repr) == big
        counts: dict[Any, int] = {}
        for row in shown:
            counts[row["kind"]] = counts.get(row["kind"], 0) + 1
        assert dict(self.query("SELECT kind, `count` FROM kinds")) == counts

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.pipeline.reader.sql(sql).collect()]

    def data_files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*.parquet") if "_delta_log" not in path.parts}


def test_views_follow_a_delta_table(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    orders = Orders(pipeline)
    orders.run(big="full", kinds="full")
    orders.write(20, 21)
    happened = orders.run(big="append", kinds="incremental")
    (followed,) = happened.of("foreign_table_followed")
    assert (followed["table"], followed["version"], followed["before"]) == ("the Delta table my_orders", 1, 0)
    # The rows of the change were read without a Spark job, values of partitions included.
    assert not [n for n in happened.refresh("kinds")["nodes"] if n["reason_code"] == "OPERATOR_OF_JOBS"]
    orders.table.delete("id in (6, 21)")
    happened = orders.run(big="incremental", kinds="incremental")
    assert happened.refresh("big")["rows_deleted"] == 2
    # Only rearranged, and something that moves no rows at all.
    orders.write(22)
    orders.run()
    assert orders.table.optimize.compact()["numFilesRemoved"] > 0
    orders.table.create_checkpoint()
    happened = orders.run()
    assert happened.checkpoints == []
    assert happened.of("foreign_table_followed")[0]["files_removed"] > 0
    orders.table.restore(0)
    orders.run(big="incremental", kinds="incremental")
    wider = rows(30).append_column("note", pa.array(["x"]))
    deltalake.write_deltalake(orders.folder, wider, mode="append", schema_mode="merge")
    orders.run(kinds="incremental")
    main(["checkpoints", "--spec", str(pipeline.folder / "spark-pipeline.yml"), "--json", "--limit", "2"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    newest = orders.table.version()
    assert [line["foreign"] for line in lines] == [{str(orders.folder): n} for n in (newest, newest - 1)]
    pipeline.verify()


def test_a_table_is_replaced_by_another_one(pipeline: Pipeline) -> None:
    orders = Orders(pipeline, partitioned=False)
    pipeline.write(
        "definitions/p.py", DEFINITIONS.format(path=orders.folder).replace("incremental_strict", "auto")
    )
    orders.run()
    kept = orders.folder.rename(orders.folder.with_name("former"))
    deltalake.write_deltalake(orders.folder, rows(*range(7, 20)), partition_by=["kind"])
    happened = orders.run(big="diff", kinds="diff")
    # A column of the same name and another type, and the former table again.
    other = pa.table({"id": pa.array([5, 50], pa.int64()), "kind": pa.array([1, 2], pa.int32())})
    deltalake.write_deltalake(orders.folder, other, mode="overwrite", schema_mode="overwrite")
    orders.run()
    shutil.rmtree(orders.folder)
    kept.rename(orders.folder)
    orders.run()
    assert happened.of("foreign_table_followed")[0]["files_removed"] == 1
    # Older checkpoints are equal to their query, or nobody can tell any more; never different.
    for number in range(1, 5):
        pipeline.verify(number)


@pytest.mark.parametrize(
    "strike",
    [
        pytest.param(Strike(Step.LAKE_CREATE, "after", "crash"), marks=pytest.mark.slow),
        pytest.param(Strike(Step.LAKE_FOLLOW, "after", "crash"), marks=pytest.mark.slow),
        Strike(Step.LAKE_FOLLOW, "after", "lose"),
        Strike(Step.META_OPEN, "after", "crash"),
    ],
    ids=str,
)
def test_a_run_dies_while_it_follows(pipeline: Pipeline, strike: Strike) -> None:
    orders = Orders(pipeline)
    if strike.step is not Step.LAKE_CREATE:
        orders.run()
        orders.write(20, 21)
        orders.table.delete("id = 3")
    effects = StrikingEffects(strike)
    with pipeline.opened(effects) as (job, happened):
        if strike.kind == "lose":
            pipeline.execute(job)
            assert happened.state == "COMPLETED", list(happened)
        else:
            with pytest.raises(Crash):
                pipeline.execute(job)
    assert effects.struck == 1
    orders.write(40)
    orders.run()
    pipeline.verify()


def edit_log(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Write a further version, made from the first one."""
    log = folder / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{0:020d}.json").read_text().splitlines()]
    chosen = [line for line in lines if edit(line)]
    number = deltalake.DeltaTable(folder).version() + 1
    (log / f"{number:020d}.json").write_text("\n".join(map(json.dumps, chosen)))


def test_what_cannot_be_followed_fails_its_readers_alone(pipeline: Pipeline) -> None:
    orders = Orders(pipeline)
    pipeline.write("definitions/apart.sql", APART)
    with pipeline.opened() as (job, happened):
        pipeline.execute(job)
        orders.write(20)
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["x"],
            "writerFeatures": ["x"],
        }
        log = orders.folder / "_delta_log" / f"{2:020d}.json"
        log.write_text(json.dumps({"protocol": protocol}))
        pipeline.execute(job)
        assert happened.state == "FAILED"
        assert "[DELTA_FEATURE_UNSUPPORTED]" in happened.failure("big")
        (event,) = happened.of("foreign_table_not_followed")
        assert event["reason_code"] == "INPUT_UNREADABLE"
        modes = [r["mode"] for r in happened.of("refresh") if r["dataset"].endswith("apart")]
        assert modes == ["full", "no_data"]
        log.unlink()
        pipeline.execute(job)
    assert happened.state == "COMPLETED"
    orders.check()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("spark.read.table('delta.`{folder}/none`')", "DELTA_TABLE_MISSING.*no Delta table in"),
        ("spark.read.format('delta').option('versionAsOf', 0).load('{path}')", "FOREIGN_OPTION_UNSUPPORTED"),
        ("spark.read.schema('id INT').load('{path}', format='delta')", "FOREIGN_OPTION_UNSUPPORTED.*schema"),
        ("spark.sql('SELECT * FROM delta.`{path}` VERSION AS OF 0')", "TIME_TRAVEL_NOT_SUPPORTED"),
    ],
)
def test_reads_that_are_refused(pipeline: Pipeline, query: str, message: str) -> None:
    path = pipeline.folder / "orders"
    deltalake.write_deltalake(path, rows(1))
    text = query.format(folder=pipeline.folder, path=path)
    pipeline.write(
        "definitions/p.py",
        f"""
        from pyspark import pipelines as dp

        @dp.materialized_view
        def v():
            return {text}
    """,
    )
    with pytest.raises(DefinitionError, match=f"(?s){message}.*p.py:"):
        pipeline.run()


MAINTAINED = """
[maintenance]
keep = "0s"
keep_last = 1
every = "0s"
history = "0s"
min_versions = 1
min_files = 2
orphans_every = "0s"
"""


def test_files_of_others_are_never_removed_and_may_be_gone(pipeline: Pipeline) -> None:
    orders = Orders(pipeline, partitioned=False)
    text = DEFINITIONS.format(path=orders.folder)
    pipeline.write("definitions/p.py", text.replace("incremental_strict", "incremental"))
    pipeline.write("tautochrone.toml", MAINTAINED)
    pipeline.reload()
    for number in range(20, 26):
        orders.run()
        orders.write(number)
    orders.table.delete("id = 7")
    orders.run()
    orders.table.optimize.compact()
    orders.run()
    before = orders.data_files()
    shadow = next(filter(is_shadow_table, pipeline.job.topology.upstream_tables))
    Maintenance(pipeline.job).run(budget_ms=None)
    assert len(pipeline.job.lake.load(shadow).versions()) < orders.table.version()
    assert orders.data_files() == before
    # A copy of the project has a shadow table over the same files.
    storage, location = Path(pipeline.settings.storage), pipeline.pointers()[shadow.without_catalog]
    shutil.copytree(storage, pipeline.folder / "copy")
    moved = MovedFolder((str(storage),), str(pipeline.folder / "copy"))
    survey = Survey(str(shadow), location, moved)
    survey.read()
    assert (len(survey.files) > 2, survey.missing, survey.outside) == (True, [], [])
    pipeline.session.sql(f"DROP TABLE {shadow.sql}")
    orders.run()
    # The owner removes what left the table, before a run has read which rows went with it.
    orders.table.delete("id = 8")
    orders.table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    happened = orders.run(big="diff", kinds="diff")
    assert happened.refresh("big")["reason_code"] == "FOREIGN_FILES_GONE"


class Renumbered(DeltaTable):
    """The table as it would be with a mapping of columns that numbers them otherwise."""

    def newest(self) -> ForeignVersion:
        version = super().newest()
        ids = {"id": 5, "kind": 1}
        fields = tuple(replace(field, field_id=ids[field.name]) for field in version.fields)
        return replace(version, fields=fields)


def test_a_mirror_begins_anew_where_ids_stand_for_other_columns(pipeline: Pipeline) -> None:
    orders = Orders(pipeline)
    orders.run()
    orders.write(40)
    job, shadow = pipeline.job, next(filter(is_shadow_table, pipeline.job.topology.upstream_tables))
    table = job.lake.load(shadow)
    foreign = Renumbered(ForeignSource("delta", str(orders.folder)), Storage(pipeline.session))
    followed = table.follow(table.fork(), foreign, job.file_table_metadata())
    assert (followed.files_added, len(table.versions())) == (len(orders.data_files()), 1)
    shown = sorted(tuple(row) for row in pipeline.session.table(shadow.sql).select("id", "kind").collect())
    assert shown == sorted((row["id"], row["kind"]) for row in orders.table.to_pyarrow_table().to_pylist())


def test_a_stream_takes_the_rows_that_are_added(pipeline: Pipeline) -> None:
    path = pipeline.folder / "orders"
    deltalake.write_deltalake(path, rows(1, 2))
    pipeline.write(
        "definitions/p.py",
        f"""
        from pyspark import pipelines as dp

        @dp.table
        def taken():
            return spark.readStream.format("delta").load("{path}").select("id")
        """,
    )
    pipeline.write(
        "definitions/s.sql",
        f"CREATE STREAMING TABLE also AS SELECT id FROM STREAM delta.`{path}` WHERE id > 1;",
    )
    for added in ((), (3,), (4, 5)):
        if added:
            deltalake.write_deltalake(path, rows(*added), mode="append")
        happened = pipeline.run()
        assert happened.state == "COMPLETED", list(happened)
        ids = sorted(row["id"] for row in deltalake.DeltaTable(path).to_pyarrow_table().to_pylist())
        assert pipeline.query("SELECT id FROM taken") == [(each,) for each in ids]
        assert pipeline.query("SELECT id FROM also") == [(each,) for each in ids if each > 1]


ARCHIVES: dict[str, tuple[str, Callable[[], list[tuple[Any, ...]]]]] = {
    "vectors": (
        "SELECT id, name, CAST(at AS STRING), d, tags[0], m['k'], s.b[0].x, small FROM {t} "
        "WHERE at > TIMESTAMP'2024-01-01 12:00:00'",
        lambda: sorted(
            (i, f"n{i % 5}", f"2024-01-0{i % 3 + 1} 00:00:00", i / 4, "a", 1, 7, 3)
            for i in range(1000)
            if i % 10 != 3 and i % 3
        ),
    ),
    "partitions": (
        "SELECT id, p, CAST(q AS STRING), CAST(at AS STRING), b, dc FROM {t} WHERE b OR p = 'a b/ü%20=#?'",
        lambda: sorted(
            (i, {0: None, 1: "a b/ü%20=#?"}.get(i % 4, "x"), f"2024-01-0{i % 2 + 1}",
             "2024-01-01 10:00:00.123456", i % 2 == 0, 1.25)
            for i in range(20)
            if i % 2 == 0 or i % 4 == 1
        ),
    ),
    "renamed": ("SELECT id, s.b, title FROM {t}", lambda: sorted((i // 2, 2, "n") for i in range(10))),
}  # fmt: skip


def test_tables_of_deltas_own_spark(pipeline: Pipeline) -> None:
    """With deletion vectors, times as INT96, values of partitions of all kinds, renamed columns."""
    statements = []
    for name, (query, _) in ARCHIVES.items():
        folder = pipeline.folder / "ext" / name
        with zipfile.ZipFile(Path(__file__).parent / f"tables/{name}.zip") as archive:
            archive.extractall(folder)
        text = query.format(t=f"delta.`{folder}`")
        statements.append(f"CREATE MATERIALIZED VIEW {name} AS {text};")
    pipeline.write("definitions/v.sql", "\n".join(statements))
    happened = pipeline.run()
    assert happened.state == "COMPLETED", list(happened)
    for name, (_, expected) in ARCHIVES.items():
        shown = [
            tuple(float(v) if type(v).__name__ == "Decimal" else v for v in row)
            for row in pipeline.reader.sql(f"SELECT * FROM {name}").collect()
        ]
        assert sorted(shown) == expected(), name


def test_adopt_leaves_views_over_it_to_the_next_run(pipeline: Pipeline) -> None:
    orders = Orders(pipeline)
    with pipeline.opened() as (job, _):
        pipeline.session.sql("CREATE NAMESPACE IF NOT EXISTS lake.default")
        for columns in ("big (id BIGINT, kind STRING)", "kinds (kind STRING, count BIGINT)"):
            pipeline.session.sql(f"CREATE TABLE lake.default.{columns} USING iceberg")
        adoption = Adoption(job)
        findings = adoption.survey()
        assert [(finding.action, str(finding.reason)) for finding in findings] == [
            (Action.REBUILD, "it reads the Delta table my_orders: the next run computes it")
        ] * 2
        adoption.adopt_and_publish(findings)
    orders.run(big="full", kinds="full")
