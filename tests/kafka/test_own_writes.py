"""Whoever writes records into a topic and reads with a token finds them."""

from __future__ import annotations

import time

import pytest
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker

from .conftest import ROWS, TOTALS, Topic, events

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

WAIT_MS = 120_000


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param("", marks=pytest.mark.slow, id="unlimited"),
        pytest.param('.option("maxOffsetsPerTrigger", "5")', id="limited"),
    ],
)
def test_read_your_writes_of_a_producer(
    pipeline: Pipeline, broker: KafkaBroker, topic: Topic, limit: str
) -> None:
    """A batch that took a part of the topic is not taken for one that took all."""
    subscribed = f'.option("subscribe", "{topic.name}")'
    pipeline.write("definitions/events.py", events(broker, subscribed + limit, ROWS) + TOTALS)
    with pipeline.running() as happened:
        # A query names tables of the pipeline only when the run registered them.
        while not happened.of("takeover"):
            time.sleep(0.05)
        topic.produce(11)
        token = pipeline.reader.write_token()
        for query in ("SELECT count(*) FROM events", "SELECT sum(n) FROM totals"):
            assert pipeline.query(query, after=token, wait_ms=WAIT_MS) == [(len(topic.written),)]
        # Nothing was written since: the next look, which finds nothing, is enough.
        token = pipeline.reader.write_token()
        newest = pipeline.query("SELECT count(*) FROM events", after=token, wait_ms=WAIT_MS)
        assert newest == [(len(topic.written),)]
    topic.check(pipeline)
