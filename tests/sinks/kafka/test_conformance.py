"""The Kafka sink over a real broker passes the suite of all sinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sinks.kafka.benches import KafkaBench
from tests.support.kafka import KafkaBroker

from tautochrone.testing.sink_conformance import SinkConformance
from tautochrone.testing.sink_contents_conformance import SinkContentsConformance


@pytest.mark.slow
class TestKafka(SinkConformance, SinkContentsConformance):
    @pytest.fixture
    def bench(self, broker: KafkaBroker) -> Iterator[KafkaBench]:
        bench = KafkaBench(broker.bootstrap)
        yield bench
        bench.close()
