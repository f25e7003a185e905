"""The lake, and in the slow form everything, on a server that speaks S3's protocol."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from tests.sinks.publications.toy_lake import ORDERS, READERS, ToyLake, delta_rows, listed_versions
from tests.support.crash import Ended, Running, Taut, fault

from tautochrone.model.effects import Step
from tautochrone.model.names import TableName
from tautochrone.sinks.common.object_paths import S3Path, s3_folder
from tautochrone.spark.session.jars import Artifact, resolve

from .s3 import KEY, REGION, SECRET, LosingProxy, bucket, s3_process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ICEBERG_CLIENT = (Artifact("org.apache.iceberg", "iceberg-aws-bundle", "1.12.0"),)
HADOOP_CLIENT = (
    Artifact("org.apache.hadoop", "hadoop-aws", "3.4.2"),
    Artifact("software.amazon.awssdk", "bundle", "2.29.52"),
)
STEPS = (
    Step.LAKE_CREATE,
    Step.LAKE_STAGE,
    Step.LAKE_PREPARE,
    Step.LAKE_COMMIT,
    Step.INGEST_FOLDER,
    Step.LAKE_COMMIT_STAGED,
    Step.META_REPORT,
    Step.META_PUBLISH,
)
SINK_STEPS = (Step.SINK_FENCE, Step.SINK_WRITE, Step.SINK_COMMIT)

_DEFINITIONS = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
INPUT = Path(__file__).resolve().parents[1] / "input"


@dp.table
def events():
    return spark.readStream.schema("id INT, kind INT").json(str(INPUT))


@dp.table
def odd():
    return spark.readStream.table("events").where("id % 2 = 1")


@dp.materialized_view
def totals():
    return spark.read.table("odd").groupBy("kind").count()
"""


@dataclass
class Project:
    folder: Path
    ids: int = 0

    @classmethod
    def make(cls, folder: Path, storage: str, settings: dict[str, dict[str, Any]]) -> Project:
        (folder / "definitions").mkdir(parents=True)
        (folder / "input").mkdir()
        (folder / "definitions" / "p.py").write_text(_DEFINITIONS)
        (folder / "spark-pipeline.yml").write_text(
            f"name: shop\nstorage: {storage}\nlibraries:\n  - glob:\n      include: definitions/**\n"
        )
        sections = (
            f"[{name}]\n" + "".join(f'"{key}" = {json.dumps(text)}\n' for key, text in section.items())
            for name, section in settings.items()
        )
        (folder / "tautochrone.toml").write_text("\n".join(sections))
        return cls(folder)

    def set(self, old: str, new: str) -> None:
        file = self.folder / "tautochrone.toml"
        file.write_text(file.read_text().replace(old, new))

    def add(self) -> None:
        lines = [json.dumps({"id": n, "kind": n % 3}) for n in range(self.ids, self.ids + 6)]
        self.ids += 6
        draft = self.folder / f".{self.ids}"
        draft.write_text("\n".join(lines))
        draft.rename(self.folder / "input" / f"{self.ids:05d}.json")

    def run(self, logs: Path) -> Ended:
        ended = Taut(self.folder, logs).run()
        ended.require_ok()
        return ended

    def check(self) -> None:
        """Every row is there once, and the view is what plain Spark computes."""
        assert self.command("query", "SELECT id FROM events ORDER BY id", "--format", "csv").split() == [
            "id",
            *map(str, range(self.ids)),
        ]
        verdicts = [json.loads(line) for line in self.command("verify", "--json").splitlines()]
        assert [verdict["equal"] for verdict in verdicts] == [True]

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tautochrone.cli.main", *arguments],
            cwd=self.folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def jars(artifacts: tuple[Artifact, ...]) -> str:
    return ",".join(map(str, resolve(artifacts)))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_process() as url:
        yield url


def jdbc(folder: Path, warehouse: str) -> dict[str, str]:
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{folder}/catalog.db",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": "30000",
        "warehouse": warehouse,
    }


def test_warehouse_by_the_s3_client_of_iceberg(tmp_path: Path, server: str) -> None:
    bucket(server, "warehouse")
    client = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": server,
        "s3.path-style-access": "true",
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "client.region": REGION,
    }
    (tmp_path / "databases").mkdir()
    options = jdbc(tmp_path / "databases", "s3://warehouse/lake") | client
    settings = {
        "lake": {"publish": ["delta"]},
        "lake.options": options,
        "sinks.delta-publication.options": {"folder": "s3://warehouse/published"},
        "spark": {"master": "local[2]"},
        "spark.conf": {"spark.jars": jars(ICEBERG_CLIENT)},
    }
    project = Project.make(tmp_path / "project", "storage", settings)

    def rows(name: str) -> list[tuple[object, ...]]:
        try:
            table = lake.load_table(f"default.{name}")
        except NoSuchTableError:
            return []
        return sorted(tuple(row.values()) for row in table.scan().to_arrow().to_pylist())

    def has_all() -> bool:
        events = [(n, n % 3) for n in range(project.ids)]
        totals = sorted(Counter(kind for _, kind in events[1::2]).items())
        return (rows("events"), rows("odd"), rows("totals")) == (events, events[1::2], totals)

    project.add()
    # A process for both: Java loads the client's many classes once.
    with Taut(project.folder, tmp_path).start("--continuous", "--interval", "300ms") as running:
        running.wait_for("checkpoint")
        lake = SqlCatalog(
            "lake",
            uri=f"sqlite:///{tmp_path}/databases/catalog.db",
            **{
                "s3.endpoint": server,
                "s3.access-key-id": KEY,
                "s3.secret-access-key": SECRET,
                "s3.region": REGION,
            },
        )
        wait_until(running, has_all)
        project.add()
        wait_until(running, has_all)
        running.terminate()
        ended = running.wait()
    ended.require_ok()
    assert has_all()
    # The publication has the options of the lake.
    published = s3_folder("published", "s3://warehouse/published/default/totals", client)
    shown = delta_rows(published, None).to_pylist()
    assert sorted(tuple(row.values()) for row in shown) == rows("totals")
    assert SECRET not in (project.folder / "storage").joinpath("storage.json").read_text()


def wait_until(running: Running, is_so: Callable[[], bool]) -> None:
    while not is_so():
        assert running.lives_for(0.3), running.wait().describe()


@pytest.fixture
def on_s3(tmp_path: Path, server: str) -> Project:
    """Streaming checkpoints and warehouse by Hadoop's client; the databases are local files."""
    name = f"b{uuid4().hex}"
    bucket(server, name)
    (tmp_path / "databases").mkdir()
    hadoop = {
        "spark.jars": jars(HADOOP_CLIENT),
        "spark.hadoop.fs.s3a.endpoint": server,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.access.key": KEY,
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    settings = {
        "meta": {"url": f"sqlite:///{tmp_path}/databases/meta.db"},
        "lake.options": jdbc(tmp_path / "databases", f"s3a://{name}/lake"),
        "spark": {"master": "local[2]"},
        "spark.conf": hadoop,
    }
    return Project.make(tmp_path / "project", f"s3a://{name}/storage", settings)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("when", ["before", "after"])
def test_kills_with_everything_on_s3(on_s3: Project, tmp_path: Path, when: str) -> None:
    taut = Taut(on_s3.folder, tmp_path)
    for step in STEPS:
        on_s3.add()
        taut.killed(fault(step, when, "kill"))
    on_s3.add()
    on_s3.run(tmp_path)
    on_s3.check()


@pytest.mark.slow
@pytest.mark.parametrize("every", [3, 10])
def test_lost_answers_with_everything_on_s3(on_s3: Project, tmp_path: Path, server: str, every: int) -> None:
    """Clients repeat a request whose answer was lost: none of them may be taken for somebody else's."""
    proxy = LosingProxy(server, every)
    with proxy.serving() as url:
        on_s3.set(server, url)
        for _ in range(3):
            on_s3.add()
            Taut(on_s3.folder, tmp_path).run()
        assert proxy.lost
    on_s3.set(url, server)
    on_s3.add()
    on_s3.run(tmp_path)
    on_s3.check()


@pytest.mark.slow
@pytest.mark.crash
def test_takeover_with_everything_on_s3(on_s3: Project, tmp_path: Path) -> None:
    """The old owner wakes after the new one has gone on, and writes nothing more."""
    on_s3.add()
    on_s3.run(tmp_path)
    on_s3.add()
    taut = Taut(on_s3.folder, tmp_path)
    with taut.start(fault=fault(Step.LAKE_COMMIT, "before", "pause")) as zombie:
        zombie.wait_until_stopped()
        taut.run("--takeover").require_ok()
        zombie.resume()
        assert zombie.wait().status == 1
    on_s3.add()
    on_s3.run(tmp_path)
    on_s3.check()


FORMATS = ("delta", "hudi", "paimon")


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("when", ["before", "after"])
def test_publications_with_everything_on_s3(on_s3: Project, tmp_path: Path, server: str, when: str) -> None:
    """In each format, killed at the steps of a delivery: the newest checkpoint equals the lake; a table that
    somebody else wrote to is published anew."""
    on_s3.set("[lake.options]", f"[lake]\npublish = {json.dumps(FORMATS)}\n[lake.options]")
    taut = Taut(on_s3.folder, tmp_path)
    for step in SINK_STEPS:
        on_s3.add()
        taut.killed(fault(step, when, "kill"))
    on_s3.add()
    on_s3.run(tmp_path)
    on_s3.check()
    (storage,) = re.findall("s3a:.*", (on_s3.folder / "spark-pipeline.yml").read_text())
    publications = s3_folder("published", f"{storage}/publications", options(server))
    events = TableName("lake", ("default",), "events")

    def check() -> None:
        for name in FORMATS:
            on_s3.command("verify", "--sink", f"{name}-publication")
            newest = max(listed_versions(publications / name).items())[1][events]
            ids = READERS[name](folder(publications, name), newest)["id"].to_pylist()
            assert sorted(ids) == list(range(on_s3.ids)), name

    check()
    (folder(publications, "delta") / "_delta_log" / f"{99:020d}.json").put(b'{"commitInfo": {}}\n')
    on_s3.command("publish", "--repair")
    on_s3.command("publish")
    check()


def folder(publications: S3Path, name: str) -> S3Path:
    database = "default.db" if name == "paimon" else "default"
    return publications / name / database / "events"


def options(url: str) -> dict[str, str]:
    return {
        "s3.endpoint": url,
        "s3.region": REGION,
        "s3.access-key-id": KEY,
        "s3.secret-access-key": SECRET,
        "s3.path-style-access": "true",
    }


_VIEWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
"""
_VIEW = """
@dp.materialized_view(table_properties={{"tautochrone.refresh-policy": "incremental_strict"}})
def of_{name}():
    return spark.sql("SELECT id, word FROM {name}.`{path}`")
"""


@pytest.mark.slow
def test_tables_of_others_on_s3(on_s3: Project, tmp_path: Path, server: str) -> None:
    """Views over the tables of a Delta, a Hudi and a Paimon publication: each change is followed."""
    name = f"b{uuid4().hex}"
    bucket(server, name)
    lakes = {
        each: ToyLake(tmp_path / each, each, bucket=s3_folder("toy", f"s3a://{name}/{each}", options(server)))
        for each in FORMATS
    }
    definitions = _VIEWS
    for each, lake in lakes.items():
        definitions += _VIEW.format(name=each, path=lake.table_folder(ORDERS))
    (on_s3.folder / "definitions/p.py").write_text(definitions)
    for _ in range(3):
        for lake in lakes.values():
            lake.add()
            lake.deliver()
        on_s3.run(tmp_path)
        query = " UNION ALL ".join(f"SELECT '{each}' AS name, id, word FROM of_{each}" for each in FORMATS)
        shown = on_s3.command("query", query, "--format", "csv").splitlines()[1:]
        assert sorted(shown) == sorted(
            f"{each},{row['id']},{row['word']}"
            for each, lake in lakes.items()
            for row in lake.rows(ORDERS, len(lake.checkpoints))
        )
    on_s3.command("verify")
