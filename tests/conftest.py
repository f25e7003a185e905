"""What all tests share: one Spark session per run, the order of files, and `bench`."""

from __future__ import annotations

import gc
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests import durations
from tests.support.harness import Pipeline
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tautochrone import redaction
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.spark_sessions import start_session
from tautochrone.spark.session.factory import use_database
from tautochrone.spark.session.settings import SparkSettings

# `bench` is no part of the package that is installed.
sys.path.insert(0, str(Path(__file__).parents[1]))

SHARED_FIXTURES = ["kafka", "sinks/kafka", "runtime/adoption"]
"""Folders whose tests share something that takes long to make, each run by one process: a second one would
start a second broker, or run `spark-pipelines` for a second project."""


SERVERS = [
    "sinks/clickhouse",
    "sinks/kafka",
    "sinks/mariadb",
    "sinks/postgresql",
    "sinks/starrocks",
    "sources/mysql",
    "sources/postgresql",
]
"""Folders whose tests start a database server or a broker."""


def scope_of(nodeid: str) -> str:
    """What one process runs as a whole: a file, or a folder of `SHARED_FIXTURES`."""
    file = nodeid.split("::")[0]
    shared = [f"tests/{name}" for name in SHARED_FIXTURES if file.startswith(f"tests/{name}/")]
    return shared[0] if shared else file


class FilesAndFolders(LoadFileScheduling):
    """`--dist loadfile` that keeps the folders of `SHARED_FIXTURES` together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Distribute `--dist loadfile` as `FilesAndFolders` does."""
    return FilesAndFolders(config, log) if config.getvalue("dist") == "loadfile" else None


_MARKERS_OF_FIXTURES = {"spark": "spark", "chromium": "server"}
"""What a test starts, by the fixture that starts it: nobody has to mark it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What took longest in the run that was kept comes first, so that the short files fill the gaps."""
    seconds = defaultdict[str, float](float)
    for file, of_file in durations.kept_seconds().items():
        seconds[scope_of(file)] += of_file
    items.sort(key=lambda item: -seconds[scope_of(item.nodeid)])
    for item in items:
        if any(item.nodeid.startswith(f"tests/{folder}/") for folder in SERVERS):
            item.add_marker("server")
        for fixture in _MARKERS_OF_FIXTURES.keys() & {*getattr(item, "fixturenames", ())}:
            item.add_marker(_MARKERS_OF_FIXTURES[fixture])


def pytest_collection_finish() -> None:
    """Tests and their modules stay until the end: Python need not look for garbage among so many objects."""
    gc.collect()
    gc.freeze()


class ReportFailuresImmediately:
    """Shows a failure when it happens, because a run that is interrupted prints no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._plugins.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.line("")
            terminal.section(f"{report.nodeid} failed, {report.when}", "_")
            terminal.line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(ReportFailuresImmediately(config), "report-failures-immediately")
        config.pluginmanager.register(durations.Writer(config.rootpath), "durations-writer")
    config.pluginmanager.register(durations.Recorder(), "durations-recorder")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The base session: `lake` is a fresh SQLite catalog, `lake.default` the current database."""
    storage = tmp_path_factory.mktemp("lake")
    # One JVM for all tests: Spark's pools keep every session that ever ran something in them.
    # Java fills the heap before it collects garbage, and several JVMs share the machine.
    # Each broadcast join holds a page, of 64 MB by default, for as long as a session keeps its plan.
    # Most objects die young: with room for them each collection copies a fifth as often.
    conf = {
        "spark.driver.memory": "5g",
        "spark.driver.extraJavaOptions": "-Xmn600m",
        "spark.buffer.pageSize": "1m",
    }
    settings = SparkSettings(master="local[2]", conf=conf)
    session = start_session(settings, CatalogSettings.default(str(storage)))
    use_database(session, "lake", "default", create=True)
    yield session
    session.stop()


@pytest.fixture
def pipeline(tmp_path: Path, spark: SparkSession) -> Iterator[Pipeline]:
    """An empty project in `tmp_path`. Tests override it to write their definitions."""
    pipeline = Pipeline(tmp_path, spark)
    yield pipeline
    pipeline.close()


@pytest.fixture(autouse=True)
def own_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The secrets of one test are not masked in the texts of another."""
    monkeypatch.setattr(redaction, "_known", redaction._known)


@pytest.fixture
def unused_port() -> int:
    """A port of 127.0.0.1 on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
