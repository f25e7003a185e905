"""Spark's own pipelines: one Spark Connect server, and a process of its own for each construct.

`spark-pipelines run` starts a server for each run, which takes ten seconds. Here many projects share one,
each in a session of its own, by the function that `spark-pipelines` calls in Python. What a project leaves
in the shared catalog is dropped.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import pyspark

from tautochrone.spark.session.jars import CORE, KAFKA, resolve

from .construct import Construct, Outcome, Table

START_S = 120.0
RUN_S = 100.0


class Vanilla:
    """A Spark Connect server that runs constructs."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["pyspark.pipelines.cli", "pyspark.sql.connect.session"])

    def run(self, construct: Construct, folder: Path) -> Outcome:
        """Write the project into `folder` and run it as often as it has inputs."""
        construct.write(folder)
        answers = self._context.SimpleQueue()
        # Definition files leave modules behind: each construct has a process.
        process = self._context.Process(target=_answer, args=(answers, construct, folder, self._port))
        process.start()
        process.join(RUN_S)
        if process.is_alive():
            process.kill()
            return Outcome(error=f"[TIMEOUT] not finished after {RUN_S:.0f} s")
        return Outcome(error="[DIED] no answer") if answers.empty() else answers.get()


@contextmanager
def vanilla(folder: Path) -> Iterator[Vanilla]:
    """A server with its files in `folder`."""
    home = Path(pyspark.__file__).parent
    folder.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        # Not spark.jars: sessions of Spark Connect do not get catalogs from them.
        "spark.driver.extraClassPath": ":".join(str(path) for path in resolve((*CORE, *KAFKA))),
        "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    options = [part for key, value in conf.items() for part in ("--conf", f"{key}={value}")]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                str(home / "bin" / "spark-submit"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--master", "local[2]", *options),
            ],
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(home),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
            },
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(port, server, log)
        yield Vanilla(port)
    finally:
        server.terminate()
        server.wait(30)


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(f"the Spark Connect server does not start: {log.read_text()[-3000:]}")


def _answer(answers: SimpleQueue[Outcome], construct: Construct, folder: Path, port: int) -> None:
    try:
        answers.put(_run(construct, folder, port))
    except Exception:
        answers.put(Outcome(error=f"[HARNESS] {traceback.format_exc()[-3000:]}"))


def _run(construct: Construct, folder: Path, port: int) -> Outcome:
    """In a new process: what `spark-pipelines` does, then the rows of its tables."""
    os.environ |= {"SPARK_CONNECT_MODE_ENABLED": "1", "SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
    os.chdir(folder)
    try:
        if construct.prepare:
            session = _session(construct)
            for statement in construct.prepare:
                session.sql(statement.replace("@PROJECT@", str(folder))).collect()
        for number in range(len(construct.inputs)):
            construct.add_inputs(folder, number)
            error = _run_once(construct, number)
            if error:
                return Outcome(error=error)
        session = _session(construct, at_its_schema=True)
        return Outcome(tables=_tables(session, construct, folder))
    finally:
        _drop_everything(_session())


def _run_once(construct: Construct, number: int) -> str:
    """The text of the error, or an empty one."""
    from pyspark.pipelines import cli

    sys.argv = ["spark-pipelines", construct.command, *construct.arguments_of(number)]
    events = StringIO()
    try:
        with redirect_stdout(events):
            cli.main()
    except SystemExit as error:
        return "" if not error.code else f"exit {error.code}: {events.getvalue()}"
    except Exception as error:
        # The text of a failed run does not always name its cause, which is an event.
        return (
            f"{error}\n{events.getvalue()}"
            if str(error).startswith("[")
            else f"{type(error).__name__}: {error}\n{events.getvalue()}"
        )
    return ""


def _session(construct: Construct | None = None, *, at_its_schema: bool = False) -> Any:
    from pyspark.pipelines import cli
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if construct is not None:
        spec = cli.load_pipeline_spec(cli.find_pipeline_spec(Path.cwd()))
        for key, value in spec.configuration.items():
            builder = builder.config(key, value)
    session = builder.create()
    if at_its_schema and (spec.catalog or spec.database):
        session.sql(f"USE {'.'.join(name for name in (spec.catalog, spec.database) if name)}").collect()
    return session


def _tables(session: Any, construct: Construct, folder: Path) -> dict[str, Table]:
    frames = {name: session.table(name) for name in construct.datasets}
    for path, form in construct.outputs.items():
        frames[path] = session.read.format(form).load(str(folder / path))
    return {name: Table.of(frame.schema.simpleString(), frame.collect()) for name, frame in frames.items()}


def _drop_everything(session: Any) -> None:
    """Leave the shared catalog as it was."""
    for (database,) in session.sql("SHOW DATABASES IN spark_catalog").collect():
        if database != "default":
            session.sql(f"DROP DATABASE spark_catalog.`{database}` CASCADE").collect()
    for row in session.sql("SHOW TABLES IN spark_catalog.default").collect():
        if not row.isTemporary:
            name = f"spark_catalog.default.`{row.tableName}`"
            kind = session.catalog.getTable(name).tableType
            session.sql(f"DROP {'VIEW' if kind == 'VIEW' else 'TABLE'} {name}").collect()
    session.stop()
