"""Hudi's own Java client in a JVM of its own, which writes tables for tests.

There is no bundle of it for Spark 4, so it runs over the Hadoop classes of PySpark.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from tautochrone.spark.session.jars import Artifact, resolve
from tautochrone.spark.session.java import find_java

__all__ = ["HudiJvm", "HudiWriter"]

HUDI = (
    *(
        Artifact("org.apache.hudi", name, "1.2.1")
        for name in ("hudi-java-client", "hudi-client-common", "hudi-common", "hudi-hadoop-common", "hudi-io")
    ),
    Artifact("org.apache.parquet", "parquet-avro", "1.16.0"),
    Artifact("org.apache.parquet", "parquet-variant", "1.16.0"),
    Artifact("com.github.ben-manes.caffeine", "caffeine", "2.9.1"),
    Artifact("it.unimi.dsi", "fastutil", "8.5.12"),
    Artifact("org.openjdk.jol", "jol-core", "0.16"),
    Artifact("com.lmax", "disruptor", "3.4.4"),
    Artifact("io.airlift", "aircompressor", "0.27"),
)
"""Its declared dependencies are not to be had in full: these are the ones that it needs."""


class HudiJvm:
    """Use as a context manager: it takes some seconds to start."""

    def __enter__(self) -> Self:
        jars, java = Path(pyspark.__file__).parent / "jars", find_java()
        classes = ":".join(str(jar) for jar in resolve(HUDI, java))
        port, token = launch_gateway(
            classpath=f"{classes}:{jars}/*",
            jarpath=str(next(jars.glob("py4j-*.jar"))),
            java_path=java,
            javaopts=["-Xmx1g", "-Dlog4j2.level=ERROR", "-Duser.timezone=UTC"],
            die_on_exit=True,
            enable_auth=True,
        )
        parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
        self._gateway = JavaGateway(gateway_parameters=parameters)
        self.jvm: Any = self._gateway.jvm
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.shutdown()


class HudiWriter:
    """Writes one table.

    Args:
        schema: Avro's JSON of a record; keys are in its column `id`.
        partition: the column whose values are names of folders.
        options: further settings of the writer.
        properties: of the table.
    """

    def __init__(
        self,
        hudi: HudiJvm,
        folder: Path,
        schema: Mapping[str, Any],
        *,
        version: int = 9,
        kind: str = "COPY_ON_WRITE",
        partition: str | None = None,
        options: Mapping[str, str] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._jvm = hudi.jvm
        self._hudi = hudi.jvm.org.apache.hudi
        self._folder = folder
        self._version, self._partition = version, partition
        self.schema = schema
        self.options = {
            "hoodie.write.table.version": str(version),
            "hoodie.write.auto.upgrade": "false",
            "hoodie.metadata.enable": "false",
            "hoodie.embed.timeline.server": "false",
            "hoodie.index.type": "SIMPLE",
            "hoodie.parquet.small.file.limit": "0",
            "hoodie.clean.automatic": "false",
            "hoodie.archive.automatic": "false",
            "hoodie.insert.shuffle.parallelism": "1",
            **(options or {}),
        }
        self._conf = self._hudi.storage.hadoop.HadoopStorageConfiguration(
            hudi.jvm.org.apache.hadoop.conf.Configuration()
        )
        self._context = self._hudi.client.common.HoodieJavaEngineContext(self._conf)
        builder = self._hudi.common.table.HoodieTableMetaClient.newTableBuilder()
        builder.setTableType(kind).setTableName(folder.name).setRecordKeyFields("id")
        builder.setTableVersion(self._hudi.common.table.HoodieTableVersion.fromVersionCode(version))
        builder.setPayloadClassName("org.apache.hudi.common.model.OverwriteWithLatestAvroPayload")
        if partition is not None:
            builder.setPartitionFields(partition)
        builder.initTable(self._conf, str(folder))
        if properties:
            # A check sum of the file system beside it.
            (folder / ".hoodie" / ".hoodie.properties.crc").unlink(missing_ok=True)
            with (folder / ".hoodie" / "hoodie.properties").open("a") as file:
                file.writelines(f"{key}={value}\n" for key, value in properties.items())

    # -- what a writer does -------------------------------------------------------------------------

    def insert(self, rows: Iterable[Mapping[str, Any]]) -> str:
        return self._write("insert", self._records(rows))

    def upsert(self, rows: Iterable[Mapping[str, Any]]) -> str:
        return self._write("upsert", self._records(rows))

    def overwrite(self, rows: Iterable[Mapping[str, Any]]) -> str:
        return self._replace("insertOverwriteTable", self._records(rows))

    def delete(self, rows: Iterable[Mapping[str, Any]]) -> str:
        return self._write("delete", [self._key(row) for row in rows])

    def delete_partitions(self, *names: str) -> str:
        return self._replace("deletePartitions", list(names))

    def cluster(self) -> None:
        """Write small files again as larger ones; nothing if there are none."""
        client = self._client()
        try:
            instant = client.scheduleClustering(self._hudi.common.util.Option.empty())
            if instant.isPresent():
                client.cluster(instant.get(), True)
        finally:
            client.close()

    def compact(self) -> None:
        client = self._client()
        try:
            instant = client.scheduleCompaction(self._hudi.common.util.Option.empty())
            result = client.compact(instant.get())
            client.commitCompaction(instant.get(), result, self._hudi.common.util.Option.empty())
        finally:
            client.close()

    def clean(self) -> None:
        self._call("clean")

    def archive(self) -> None:
        self._call("archive")

    def take_back(self) -> None:
        """Roll the newest commit back."""
        client = self._client()
        try:
            meta = self._hudi.common.table.HoodieTableMetaClient.builder()
            timeline = meta.setConf(self._conf).setBasePath(str(self._folder)).build().getActiveTimeline()
            newest = timeline.getCommitsTimeline().filterCompletedInstants().lastInstant().get()
            assert client.rollback(newest.requestedTime())
        finally:
            client.close()

    def fail(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write files, and die before the commit."""
        client = self._client()
        client.insert(self._records(rows), client.startCommit())

    def _call(self, what: str) -> None:
        client = self._client()
        try:
            getattr(client, what)()
        finally:
            client.close()

    # -- inside -------------------------------------------------------------------------------------

    def _config(self) -> Any:
        properties = self._jvm.java.util.Properties()
        for key, value in self.options.items():
            properties.setProperty(key, value)
        builder = self._hudi.config.HoodieWriteConfig.newBuilder().withPath(str(self._folder))
        builder.withSchema(json.dumps(self.schema)).forTable(self._folder.name)
        builder.withEngineType(self._hudi.common.engine.EngineType.JAVA)
        return builder.withProperties(properties).build()

    def _client(self) -> Any:
        return self._hudi.client.HoodieJavaWriteClient(self._context, self._config())

    def _write(self, what: str, records: list[Any]) -> str:
        client = self._client()
        try:
            instant = client.startCommit()
            client.commit(instant, getattr(client, what)(records, instant))
        finally:
            client.close()
        return str(instant)

    def _replace(self, what: str, values: list[Any]) -> str:
        """Something that replaces file groups, which the Java client does not offer itself."""
        client = self._client()
        try:
            instant = client.startCommit("replacecommit")
            table = self._hudi.table.HoodieJavaTable.create(self._config(), self._context)
            result = getattr(table, what)(self._context, instant, values)
            replaced = result.getPartitionToReplaceFileIds()
            none = self._hudi.common.util.Option.empty()
            client.commit(instant, result.getWriteStatuses(), none, "replacecommit", replaced)
        finally:
            client.close()
        return str(instant)

    def _key(self, row: Mapping[str, Any]) -> Any:
        value = "" if self._partition is None else row[self._partition]
        # Avro's JSON names the type of a value that may be NULL.
        partition = next(iter(value.values())) if isinstance(value, dict) else str(value)
        return self._hudi.common.model.HoodieKey(str(row["id"]), partition)

    def _records(self, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        avro = self._jvm.org.apache.avro
        schema = avro.Schema.Parser().parse(json.dumps(self.schema))
        payload = self._hudi.common.model.OverwriteWithLatestAvroPayload
        return [
            self._hudi.common.model.HoodieAvroRecord(
                self._key(row), payload(self._hudi.common.util.Option.of(self._record(avro, schema, row)))
            )
            for row in rows
        ]

    def _record(self, avro: Any, schema: Any, row: Mapping[str, Any]) -> Any:
        # Values as JSON would be told types by Avro; Py4J makes an int of a small long.
        text = json.dumps(row)
        decoder = avro.io.DecoderFactory.get().jsonDecoder(schema, text)
        reader = avro.generic.GenericDatumReader(schema)
        return reader.read(None, decoder)
