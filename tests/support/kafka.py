"""A real Kafka for tests: one KRaft process from Maven's jars, no Docker, no root.

The broker is a child process; topics and records go through the kafka-clients that Spark's Kafka
connector has loaded anyway, so that no second JVM is needed for them.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from tests.support.ports import free_ports

from tautochrone.errors import EnvironmentProblemError
from tautochrone.model.closeable import Closeable
from tautochrone.spark.session.jars import Artifact, resolve
from tautochrone.spark.session.java import find_java

__all__ = ["KAFKA_SERVER", "KafkaBroker", "KafkaTopics", "LineProducer", "Record", "java_gateway"]

KAFKA_SERVER = (Artifact("org.apache.kafka", "kafka_2.13", "3.9.1", transitive=True),)

_START_TIMEOUT_S = 90.0
# A small heap and the quick compiler: these share two cores with Spark.
_JVM = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
# Tests send records with old timestamps, which retention by time would delete before they are read.
log.retention.ms=-1
num.partitions=1
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


_LOGIN = """listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_PLAINTEXT://127.0.0.1:{login_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
 org.apache.kafka.common.security.plain.PlainLoginModule required {users};
"""
"""A second listener, which asks for a user and a password."""


class KafkaBroker(Closeable):
    """A broker that keeps its data in `folder`. Use as a context manager.

    Args:
        users: with their passwords, for `login_bootstrap`.
        creates_topics: the broker creates the topics that a client names.

    Attributes:
        bootstrap: where nobody has to log in.
        login_bootstrap: where one of `users` has to log in, by the mechanism PLAIN.

    Raises:
        EnvironmentProblemError: `KAFKA_NOT_STARTED`, with the end of its log.
    """

    def __init__(
        self,
        folder: Path,
        users: Mapping[str, str] = MappingProxyType({}),
        *,
        creates_topics: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._java = find_java()
        self._classpath = _classpath(self._java)
        self._log = folder / "broker.log"
        port, login_port, controller = free_ports(3)
        self.bootstrap = f"127.0.0.1:{port}"
        self.login_bootstrap = f"127.0.0.1:{login_port}"
        self._properties = folder / "server.properties"
        ports = {"port": port, "login_port": login_port, "controller": controller}
        properties = _PROPERTIES.format(**ports, logs=folder / "data")
        if creates_topics:
            properties = properties.replace("topics.enable=false", "topics.enable=true")
        if users:
            given = " ".join(f'user_{name}="{password}"' for name, password in users.items())
            properties += _LOGIN.format(**ports, users=given)
        self._properties.write_text(properties)
        # 22 characters; one in 64 would begin with a dash, which the tool takes for an option.
        cluster = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        done = subprocess.run(
            self._command("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._properties)),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise EnvironmentProblemError("KAFKA_NOT_STARTED", f"format failed: {done.stderr[-500:]}")
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command("kafka.Kafka", str(self._properties)), stdout=log, stderr=subprocess.STDOUT
            )
        self._wait_for(port)

    def close(self) -> None:
        """End the broker; its folder stays. Repeatable."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _command(self, main: str, *arguments: str) -> list[str]:
        return [self._java, *_JVM, "-cp", self._classpath, main, *arguments]

    def _wait_for(self, port: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        self.close()
        tail = self._log.read_text(errors="replace")[-800:]
        raise EnvironmentProblemError("KAFKA_NOT_STARTED", f"The broker did not come up: {tail}")


@dataclass(frozen=True, slots=True)
class Record:
    """A record to write. Without a partition the key decides, without a timestamp the time of sending."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Transactions:
    """Writes transactions, one after the other."""

    producer: Any
    record: Any

    def send(self, topic: str, records: Iterable[Record], *, commit: bool) -> None:
        """One transaction, which is aborted unless `commit`; the broker has its records either way."""
        self.producer.beginTransaction()
        for record in records:
            target = (topic, record.partition, record.timestamp_ms)
            self.producer.send(self.record(*target, record.key, record.value, None))
        self.producer.flush()
        if commit:
            self.producer.commitTransaction()
        else:
            self.producer.abortTransaction()


class KafkaTopics:
    """Makes topics and writes records, by the Java client inside a JVM.

    Safe to use from one thread at a time beside others that run queries.

    Args:
        gateway: Py4J's, of a Spark (`spark.sparkContext._gateway`) or of `java_gateway`.
        bootstrap: the broker.
    """

    def __init__(self, gateway: Any, bootstrap: str) -> None:
        jvm: Any = gateway.jvm
        self._jvm = jvm
        self._gateway = gateway
        self._kafka = jvm.org.apache.kafka
        self._bootstrap = bootstrap
        settings = jvm.java.util.Properties()
        settings.setProperty("bootstrap.servers", bootstrap)
        settings.setProperty("linger.ms", "5")
        # Metadata of a partition that has no leader yet is renewed soon, not after five minutes.
        settings.setProperty("metadata.max.age.ms", "1000")
        # An idempotent producer of Kafka 3.9 waits out its delivery timeout, 2 minutes, for the first records
        # of one new topic in ten: the broker has them, and the answer never comes.
        settings.setProperty("enable.idempotence", "false")
        settings.setProperty("acks", "1")
        self._admin = self._kafka.clients.admin.AdminClient.create(settings)
        bytes_ = self._kafka.common.serialization.ByteArraySerializer
        self._producer = self._kafka.clients.producer.KafkaProducer(settings, bytes_(), bytes_())

    def create(self, topic: str, partitions: int = 1) -> None:
        optional = self._jvm.java.util.Optional
        new_topic = self._kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        self._admin.createTopics(self._jvm.java.util.Collections.singleton(new_topic)).all().get()

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until the broker no longer lists it, so that its name is free."""
        topics = self._jvm.java.util.Collections.singleton(topic)
        self._admin.deleteTopics(topics).all().get()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while topic in {str(name) for name in self._admin.listTopics().names().get()}:
            if time.monotonic() > deadline:
                raise EnvironmentProblemError("KAFKA_NOT_WRITTEN", f"{topic} is not deleted")
            time.sleep(0.05)

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions and wait until each of them has a leader."""
        new_partitions = self._kafka.clients.admin.NewPartitions.increaseTo(total)
        self._admin.createPartitions(self._map({topic: new_partitions})).all().get()
        topics = self._jvm.java.util.Collections.singleton(topic)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            described = self._admin.describeTopics(topics).allTopicNames().get().get(topic).partitions()
            if len(described) == total and all(part.leader() is not None for part in described):
                return
            time.sleep(0.05)
        raise EnvironmentProblemError("KAFKA_NOT_WRITTEN", f"{topic} does not get {total} partitions")

    def produce(self, topic: str, records: Iterable[tuple[int, str]]) -> None:
        """Write (partition, value) pairs and wait until the broker has all of them."""
        self.send(topic, (Record(value.encode(), partition=partition) for partition, value in records))

    def send(self, topic: str, records: Iterable[Record]) -> None:
        """Write records and wait until the broker has all of them."""
        producer_record, header = (
            self._kafka.clients.producer.ProducerRecord,
            self._kafka.common.header.internals.RecordHeader,
        )
        sent = []
        for record in records:
            headers = None
            if record.headers:
                headers = self._jvm.java.util.ArrayList()
                for name, value in record.headers:
                    headers.add(header(name, value))
            target = (topic, record.partition, record.timestamp_ms)
            sent.append(self._producer.send(producer_record(*target, record.key, record.value, headers)))
        self._producer.flush()
        for future in sent:
            # Only this call raises the error of a record that the broker refused.
            future.get()

    @contextmanager
    def transactions(self) -> Iterator[Transactions]:
        """A producer of transactions."""
        settings = self._jvm.java.util.Properties()
        settings.setProperty("bootstrap.servers", self._bootstrap)
        settings.setProperty("transactional.id", str(uuid.uuid4()))
        bytes_ = self._kafka.common.serialization.ByteArraySerializer
        producer = self._kafka.clients.producer.KafkaProducer(settings, bytes_(), bytes_())
        try:
            producer.initTransactions()
            yield Transactions(producer, self._kafka.clients.producer.ProducerRecord)
        finally:
            producer.close()

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        """Delete the records before an offset, by partition."""
        records_to_delete = {
            self._kafka.common.TopicPartition(topic, partition): self._before(offset)
            for partition, offset in before.items()
        }
        self._admin.deleteRecords(self._map(records_to_delete)).all().get()

    def close(self) -> None:
        self._producer.close()
        self._admin.close()

    def _before(self, offset: int) -> Any:
        # `beforeOffset` is a static method and a getter too, and Py4J then sees neither: reflection.
        jvm = self._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        cls = loader.loadClass("org.apache.kafka.clients.admin.RecordsToDelete")
        constructor = cls.getDeclaredConstructors()[0]
        constructor.setAccessible(True)
        values = self._gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = jvm.java.lang.Long.valueOf(str(offset))
        return constructor.newInstance(values)

    def _map(self, values: Mapping[Any, Any]) -> Any:
        result = self._jvm.java.util.HashMap()
        for key, value in values.items():
            result.put(key, value)
        return result


@contextmanager
def java_gateway() -> Iterator[Any]:
    """A JVM of its own with Kafka's client, for callers without Spark."""
    import pyspark

    java = find_java()
    # Ending the process that holds this end of it ends the JVM.
    port = launch_gateway(
        jarpath=str(next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))),
        classpath=_classpath(java),
        javaopts=_JVM,
        java_path=java,
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        yield gateway
    finally:
        gateway.shutdown()


class LineProducer:
    """Writes keyed lines of text into a topic by Kafka's own console producer, without a call per record.

    A context manager: when it ends without an error the broker has all of them.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        java = find_java()
        command = [java, *_JVM, "-cp", _classpath(java), "kafka.tools.ConsoleProducer"]
        command += ["--bootstrap-server", bootstrap, "--topic", topic, "--property", "parse.key=true"]
        command += ["--request-required-acks", "all"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )

    def send(self, lines: Iterable[tuple[str, str]]) -> None:
        """Pairs of key and value, neither with a tab or an end of line."""
        assert self._process.stdin is not None
        self._process.stdin.writelines(f"{key}\t{value}\n" for key, value in lines)
        self._process.stdin.flush()

    def __enter__(self) -> LineProducer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        if error is not None:
            self._process.kill()
        else:
            self._process.stdin.close()
        if self._process.wait() != 0 and error is None:
            raise EnvironmentProblemError("KAFKA_NOT_WRITTEN", "The console producer could not write")


def _classpath(java: str) -> str:
    return os.pathsep.join(str(jar) for jar in resolve(KAFKA_SERVER, java))
