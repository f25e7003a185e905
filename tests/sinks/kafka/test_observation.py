"""Who only looks at topics creates none, on a broker that creates every topic that a client names."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from tests.sinks.kafka.benches import KafkaBench
from tests.sinks.observation import ObservedSink
from tests.support.kafka import KafkaBroker

from tautochrone.model.sink import Sink
from tautochrone.sinks.kafka.sink import KafkaSink
from tautochrone.sources.kafka_offsets import end_offsets

pytestmark = pytest.mark.kafka


class ObservedKafkaBench(KafkaBench):
    def observe(self) -> Sink:
        return KafkaSink("mirror", self.options)

    def objects(self) -> object:
        names = topics_of(self.bootstrap)
        return {name: end_offsets(self.bootstrap, [name]) for name in names if name.startswith(self.prefix)}


def topics_of(bootstrap: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics)


@pytest.fixture(scope="module")
def creating_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with KafkaBroker(tmp_path_factory.mktemp("kafka"), creates_topics=True) as started:
        yield started


class TestObservedKafka(ObservedSink):
    @pytest.fixture
    def bench(self, creating_broker: KafkaBroker) -> Iterator[KafkaBench]:
        bench = ObservedKafkaBench(creating_broker.bootstrap)
        yield bench
        bench.close()


def test_a_question_for_offsets_creates_no_topic(creating_broker: KafkaBroker) -> None:
    bootstrap = creating_broker.bootstrap
    before = topics_of(bootstrap)
    assert end_offsets(bootstrap, ["absent", "missing"]) == {}
    assert topics_of(bootstrap) == before
    # What the broker does for other clients.
    AdminClient({"bootstrap.servers": bootstrap}).list_topics("named", timeout=10)
    deadline = time.monotonic() + 10
    while "named" not in topics_of(bootstrap) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert end_offsets(bootstrap, ["absent", "named"]) == {"named": {"0": 0}}
    assert topics_of(bootstrap) == before | {"named"}
