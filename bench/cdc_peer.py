"""What Spark alone does with a PostgreSQL table: its JDBC source appends the rows, Debezium's engine turns
the log into files of JSON, and a stream over these merges them with plain `MERGE` into the same Iceberg
table.

Debezium runs in a JVM of its own, without Kafka between it and Spark: that is the least that a deployment of
it costs."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from tests.support.postgresql import restart_server

from bench.running import cpu_s, cpu_since, wait_until
from tautochrone.spark.session.jars import Artifact, resolve
from tautochrone.spark.session.java import find_java

__all__ = ["JDBC_DRIVER", "Debezium", "PlainTable", "debezium_jars", "listen_on_tcp", "run_debezium"]

JDBC_DRIVER = Artifact("org.postgresql", "postgresql", "42.7.4")

_PORT = 5432
_VERSION = "3.3.1.Final"
_DEBEZIUM = (
    Artifact("io.debezium", "debezium-embedded", _VERSION, transitive=True),
    Artifact("io.debezium", "debezium-connector-postgres", _VERSION, transitive=True),
)
_PROGRAM = Path(__file__).with_name("debezium") / "Changes.java"
_PROPERTIES = """
name=peer
connector.class=io.debezium.connector.postgresql.PostgresConnector
database.hostname={address}
database.port={port}
database.user=postgres
database.password=none
database.dbname={database}
topic.prefix=peer
table.include.list=public.accounts
plugin.name=pgoutput
slot.name=debezium
publication.name=debezium
publication.autocreate.mode=filtered
snapshot.mode=no_data
offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore
offset.storage.file.filename={folder}/offsets
offset.flush.interval.ms=0
key.converter.schemas.enable=false
value.converter.schemas.enable=false
max.batch.size=8192
max.queue.size=32768
poll.interval.ms=50
tombstones.on.delete=false
decimal.handling.mode=string
"""
_ROW = "STRUCT<id: BIGINT, owner: STRING, balance: STRING, changed: STRING>"
_EVENT = f"before {_ROW}, after {_ROW}, source STRUCT<lsn: BIGINT>, op STRING"


def listen_on_tcp() -> str:
    """Restart the server so that Java reaches it, which has no sockets of files.

    Returns:
        The address: another measurement may have a server at the same port of the first one.
    """
    address = next(filter(_is_free, (f"127.0.0.{number}" for number in range(1, 10))))
    restart_server(address=address)
    return address


def _is_free(address: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address, _PORT)) != 0


class PlainTable:
    """An Iceberg table with Iceberg's own defaults, in a catalog of its own.

    Args:
        spark: with PostgreSQL's JDBC driver (`JDBC_DRIVER`).
        folder: of the table and of what is written on the way to it.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder / "append"
        shutil.rmtree(self._folder, ignore_errors=True)
        self._catalog = f"{folder.name}_append"
        self._set_catalog(spark)
        self.name = f"{self._catalog}.bank.accounts"

    def _set_catalog(self, spark: SparkSession) -> None:
        options = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": str(self._folder / "warehouse"),
        }
        for key, value in options.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}{key}", value)

    def append(self, address: str, database: str, rows: int) -> dict[str, float]:
        """Copy the rows by JDBC, in ranges of their key."""
        ranges = self._spark.read.jdbc(
            f"jdbc:postgresql://{address}:{_PORT}/{database}",
            "accounts",
            column="id",
            lowerBound=0,
            upperBound=rows,
            numPartitions=8,
            properties={"user": "postgres", "driver": "org.postgresql.Driver", "fetchsize": "10000"},
        )
        # Java has not compiled yet what the first write does.
        ranges.where("id < 10000").writeTo(f"{self._catalog}.bank.warm_up").create()
        ranges.where("false").writeTo(self.name).create()
        before, started = cpu_s(self._spark), time.monotonic()
        ranges.writeTo(self.name).append()
        elapsed_s = time.monotonic() - started
        return {"wall_s": elapsed_s, "cpu_s": sum(cpu_since(self._spark, before).values())}

    def merge(self, changes: Path) -> dict[str, float]:
        """Merge the files that came since the last call, the last change of each key, in one `MERGE`."""
        before, started = cpu_s(self._spark), time.monotonic()
        stream = self._spark.readStream.schema(_EVENT).json(str(changes)).writeStream
        query = (
            stream.foreachBatch(self._merge_batch)
            .option("checkpointLocation", str(self._folder / "stream"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        elapsed_s = time.monotonic() - started
        return {"wall_s": elapsed_s, "cpu_s": sum(cpu_since(self._spark, before).values())}

    def _merge_batch(self, events: DataFrame, _: int) -> None:
        last = (
            events.selectExpr("coalesce(after, before).id AS id", "source.lsn", "struct(op, after.*) AS last")
            .groupBy("id")
            .agg(sf.max_by("last", "lsn").alias("last"))
        )
        rows = last.selectExpr(
            "id",
            "last.op",
            "last.owner",
            "CAST(last.balance AS DECIMAL(12, 2)) AS balance",
            "CAST(last.changed AS TIMESTAMP) AS changed",
        )
        rows.createOrReplaceTempView("last_changes")
        rows.sparkSession.sql(
            f"MERGE INTO {self.name} t USING last_changes s ON t.id = s.id "
            "WHEN MATCHED AND s.op = 'd' THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET owner = s.owner, balance = s.balance, changed = s.changed "
            "WHEN NOT MATCHED AND s.op <> 'd' THEN "
            "INSERT (id, owner, balance, changed) VALUES (s.id, s.owner, s.balance, s.changed)"
        )

    def require_equal(self, rows: DataFrame) -> None:
        """Compare all rows.

        Raises:
            RuntimeError: they are not those of this table.
        """
        session = rows.sparkSession
        self._set_catalog(session)
        stored = session.table(self.name).select(*rows.columns)
        for name, difference in {"more": stored.exceptAll(rows), "less": rows.exceptAll(stored)}.items():
            if example := difference.take(1):
                raise RuntimeError(f"the table of the peer holds {name}: {example}")


class Debezium:
    """Debezium's engine while it runs.

    Attributes:
        changes: the folder of its files.
    """

    def __init__(self, process: psutil.Popen, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.changes = folder / "changes"
        self._count = 0

    def pause(self) -> None:
        """Let the database's log grow first, so that what follows is measured alone."""
        self._process.suspend()

    def take(self, count: int) -> dict[str, float]:
        """Go on, until so many more changes are in files.

        Raises:
            RuntimeError: it ended before.
        """
        before, started = self._cpu_s(), time.monotonic()
        self._process.resume()
        expected = self._count + count
        while self._count < expected:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError(f"Debezium ended: {(self._folder / 'log').read_text()[-2000:]}")
            if line.startswith("changes "):
                self._count = int(line.removeprefix("changes "))
        return {"wall_s": time.monotonic() - started, "cpu_s": self._cpu_s() - before}

    def _cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def debezium_jars() -> list[Path]:
    """The jars of Debezium's engine and of its connector for PostgreSQL, downloaded once (42 MB).

    Raises:
        EnvironmentProblemError: `JAR_NOT_AVAILABLE`.
    """
    return resolve(_DEBEZIUM, find_java())


@contextmanager
def run_debezium(jars: Sequence[Path], address: str, database: str, folder: Path) -> Iterator[Debezium]:
    """Run it from here on: what is written later is captured.

    Args:
        address: of the server, as `listen_on_tcp` gives it.
        folder: for its files.
    """
    folder = folder / "debezium"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "changes").mkdir(parents=True)
    (folder / "peer.properties").write_text(
        _PROPERTIES.format(address=address, port=_PORT, database=database, folder=folder)
    )
    command = [
        find_java(),
        "-Xmx1g",
        "-cp",
        # The same jar comes with both.
        ":".join({jar.name: str(jar) for jar in jars}.values()),
        str(_PROGRAM),
        str(folder / "peer.properties"),
        str(folder / "changes"),
    ]
    with (
        (folder / "log").open("w") as log,
        psutil.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            with psycopg.connect(
                host=address, user="postgres", dbname=database, autocommit=True
            ) as connection:
                wait_until(lambda: _is_streaming(connection, process), "Debezium's slot")
            yield Debezium(process, folder)
        finally:
            process.kill()


def _is_streaming(connection: psycopg.Connection[Any], process: psutil.Popen) -> bool:
    if process.poll() is not None:
        raise RuntimeError("Debezium ended before it had a slot")
    slot = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'debezium' AND active"
    return connection.execute(slot).fetchone() is not None
