"""A topic as source: exactly once over one-shot runs, and what happens when records are gone."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tests.support.harness import Pipeline
from tests.support.kafka import KafkaBroker

from tautochrone.app.stores import existing_store
from tautochrone.app.unchanged import last_run, run_and_remember, since_last_run
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.loop.run import Run

from .conftest import ROWS, Topic, events

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_one_shot_runs(pipeline: Pipeline, topic: Topic) -> None:
    topic.produce(100)
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    topic.check(pipeline)

    # The checkpoint folder is a cache of the table's positions, which do not have the new partitions.
    storage = Path(pipeline.settings.storage)
    shutil.rmtree(storage / "_checkpoints")
    topic.partitions = 5
    topic.topics.add_partitions(topic.name, 5)
    topic.produce(25)
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    assert [event["action"] for event in happened.of("flow_folder")] == ["rewrite"]
    topic.check(pipeline)

    # No row is read again when the topic has no new records either.
    shutil.rmtree(storage / "_checkpoints")
    assert pipeline.run().checkpoints == []


def test_what_came_since_the_last_run_is_known_without_spark(pipeline: Pipeline, topic: Topic) -> None:
    topic.produce(10)
    settings = pipeline.settings
    with pipeline.opened() as (job, _):
        run_and_remember(job, "program", Run(job), lambda _event: None)
    assert last_run(settings, "program") is None, "a run starts Spark to ask the topic"

    def news() -> Reason | None:
        with existing_store(settings) as store:
            (status,) = store.jobs.states()
        return since_last_run(settings, status)

    before = news()
    assert before is not None
    assert before.code is ReasonCode.NOTHING_SINCE_LAST_RUN, before
    topic.produce(7)
    after = news()
    assert after is not None
    assert (after.code, after.params) == (
        ReasonCode.RECORDS_SINCE_LAST_RUN,
        {"records": 7, "topics": topic.name},
    )


@pytest.mark.parametrize("kind", ["subscribePattern", "assign"])
def test_what_came_into_patterns_and_partitions_is_known(
    pipeline: Pipeline, topic: Topic, broker: KafkaBroker, kind: str
) -> None:
    value = f"{topic.name}.*" if kind == "subscribePattern" else json.dumps({topic.name: [0, 1]})
    pipeline.write("definitions/events.py", events(broker, f".option('{kind}', '{value}')", ROWS))
    pipeline.reload()
    topic.produce(9)
    with pipeline.opened() as (job, _):
        run_and_remember(job, "program", Run(job), lambda _event: None)

    def news() -> Reason | None:
        with existing_store(pipeline.settings) as store:
            (status,) = store.jobs.states()
        return since_last_run(pipeline.settings, status)

    before = news()
    assert before is not None
    assert before.code is ReasonCode.NOTHING_SINCE_LAST_RUN, before
    topic.produce(9)
    after = news()
    assert after is not None
    assert after.params == {"records": 9 if kind == "subscribePattern" else 6, "topics": topic.name}


def test_a_limit_from_outside_the_definitions(pipeline: Pipeline, topic: Topic) -> None:
    topic.produce(20)
    pipeline.write("tautochrone.toml", "[flows.events]\nmax_offsets_per_trigger = 12\n")
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    rows = [event["rows"] for event in happened.of("batch")]
    assert max(rows) <= 12
    assert sum(rows) == 20
    topic.check(pipeline)


def test_records_that_are_gone(pipeline: Pipeline, topic: Topic, broker: KafkaBroker) -> None:
    pipeline.write("definitions/events.py", events(broker, f'.option("subscribe", "{topic.name}")', ROWS))
    topic.produce(30)
    pipeline.run()
    topic.produce(30)
    topic.topics.delete_records(topic.name, {1: 15})
    started = time.monotonic()
    happened = pipeline.run()
    took = time.monotonic() - started
    assert happened.state == "FAILED"
    error = happened.failure("events")
    assert error.startswith("[OFFSETS_OUT_OF_RANGE]"), error
    assert "\tat " not in error
    # Rows 10 to 14 of partition 1 are gone.
    assert f"topic {topic.name}, partition 1, from offset 10 on" in error
    assert took < 40, took
    # What was there stays readable, and nothing of the gap was skipped silently.
    assert pipeline.query("SELECT count(*) FROM events") == [(30,)]

    # The reader accepts the gap, as the hint says.
    text = (pipeline.folder / "definitions/events.py").read_text()
    option = '.option("subscribe"'
    pipeline.write(
        "definitions/events.py", text.replace(option, f'.option("failOnDataLoss", "false"){option}')
    )
    happened = pipeline.run()
    assert happened.state == "COMPLETED", [event.get("error") for event in happened]
    assert pipeline.query("SELECT count(*) FROM events") == [(55,)]
    option, gone = happened.of("source_rows_left_out")
    assert (option["reason_code"], gone["reason_code"]) == ("READER_LEAVES_OUT_ROWS", "RECORDS_GONE")
    assert "failOnDataLoss = false" in option["reason"]
    assert f"up to 5 records of partition {topic.name}-1 went away" in gone["reason"]
