"""`taut run --continuous` over a topic, killed at random moments while a producer writes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.support.harness import Pipeline
from tests.support.process import TautProcess

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.crash]


@contextmanager
def writing(topic: Topic) -> Iterator[None]:
    """A producer that writes about 20 rows a second: each call takes processor time from the run."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.2):
            topic.produce(4)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for(condition: Callable[[], object], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def run_and_kill(pipeline: Pipeline, topic: Topic, kills: int, seed: int) -> None:
    moments = random.Random(seed)
    spec = pipeline.folder / "spark-pipeline.yml"
    arguments = ("--continuous", "--interval", "1s", "--master", "local[2]")
    with writing(topic):
        for kill in range(kills):
            with TautProcess(spec, *arguments) as taut:
                # Of several kills the first one is before it ever ingested anything.
                event = "takeover" if kill == 0 and kills > 1 else "batch"
                taut.wait_for(lambda _events, taut=taut, event=event: taut.count(event))
                time.sleep(moments.uniform(0, 2.5))
                taut.kill()
            if kill == 0:
                topic.partitions = 5
                topic.topics.add_partitions(topic.name, 5)
        # In this process, because another Spark takes longer to start than all of this.
        with pipeline.running() as happened:
            wait_for(lambda: happened.checkpoints)
            # Partitions are added while it runs.
            topic.topics.add_partitions(topic.name, 6)
            topic.partitions = 6
            wait_for(lambda: len(happened.checkpoints) >= 2)
            # Kafka's client may take longer than two checkpoints to see the new one.
            wait_for(lambda: pipeline.query("SELECT 1 FROM events WHERE partition = 5 LIMIT 1"))
    pipeline.run()
    topic.check(pipeline)
    assert pipeline.query("SELECT DISTINCT partition FROM events") == [(n,) for n in range(6)]


def test_a_kill_at_a_random_moment(pipeline: Pipeline, topic: Topic) -> None:
    run_and_kill(pipeline, topic, kills=1, seed=20261121)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(3600)
def test_many_kills(pipeline: Pipeline, topic: Topic, seed: int) -> None:
    run_and_kill(pipeline, topic, kills=25, seed=seed)
