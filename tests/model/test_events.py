"""Every event has a name of its own, a text, and a form as JSON; reasons and secrets in both."""

from __future__ import annotations

import json
import re
import typing
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tautochrone.model import events
from tautochrone.model.checkpoint import NodeRefresh, RefreshMode
from tautochrone.model.reason import Reason, ReasonCode, unclassified

CLASSES = [
    kind
    for kind in vars(events).values()
    if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
]
SILENT = {events.LogKept, events.NoNews, events.RunNotRemembered, events.SinkBatch}
"""They say nothing, or nothing where there are no rows."""

st.register_type_strategy(Reason, st.builds(unclassified, st.text()))


def generated(kind: type[events.Event]) -> st.SearchStrategy[events.Event]:
    hints = typing.get_type_hints(kind)
    values = {
        part.name: st.text(min_size=1) if hints[part.name] is str else st.from_type(hints[part.name])
        for part in fields(kind)
    }
    return st.builds(kind, **values)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
def test_every_event_has_a_text_and_a_form_as_json(kind: type[events.Event]) -> None:
    @settings(max_examples=5, deadline=None)
    @given(generated(kind))
    def check(event: events.Event) -> None:
        line = json.loads(json.dumps(event.as_json()))
        assert line["event"] == event.name
        assert isinstance(event.text(), str)
        assert event.text() or kind in SILENT
        assert event.map_texts(str) == event

    check()


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
def test_of_one_thing_texts_speak_in_the_singular(kind: type[events.Event]) -> None:
    hints = typing.get_type_hints(kind)
    strategies = {
        part.name: st.just(1) if hints[part.name] in (int, int | None) else st.from_type(hints[part.name])
        for part in fields(kind)
    }

    @settings(max_examples=3, deadline=None)
    @given(st.builds(kind, **strategies))
    def check(event: events.Event) -> None:
        text = event.map_texts(lambda _: "x").text()
        # "+1 -1 rows" has one unit for two numbers.
        assert not re.search(r"(?<![-+.,=\w])1 (?!is |was |has )[a-z]+(?<!s)s\b", text), text

    check()


def test_reasons_speak_of_one_thing_in_the_singular() -> None:
    reason = Reason.of(ReasonCode.BAD_RECORDS_CAME, records=1, table="t", at="now", text="x")
    assert str(reason).startswith("1 bad record set aside in t")
    several = Reason(reason.code, {**reason.params, "records": 2_000})
    assert str(several).startswith("2,000 bad records set aside in t")


def test_names_are_those_of_the_classes_and_unique() -> None:
    names = [kind.name for kind in CLASSES]
    assert len(names) > 100
    assert len(names) == len(set(names))
    assert {events.FlowFailed.name, events.Run.name, events.MetaServiceAway.name} == {
        "flow_failed",
        "run",
        "meta_service_away",
    }


def test_reasons_are_texts_with_codes() -> None:
    reason = Reason.of(ReasonCode.NEW_INPUT, input="orders")
    in_words = {
        "reason": "orders is a new input",
        "reason_code": "NEW_INPUT",
        "reason_params": {"input": "orders"},
    }
    node = NodeRefresh(node="filter", mode=RefreshMode.FULL, reason=reason)
    refresh = events.Refresh(
        dataset="lake.db.v",
        checkpoint=1,
        mode=RefreshMode.FULL,
        reason=reason,
        nodes=(node,),
        rows_inserted=1,
        rows_deleted=0,
        duration_ms=2,
        cpu_ms=None,
        estimate_ms=None,
        delta_rows=1,
        expectations=(),
    )
    line = refresh.as_json()
    assert line["nodes"] == [{"node": "filter", "mode": "full", **in_words}]
    assert line.items() >= {"event": "refresh", "mode": "full", "cpu_ms": None, **in_words}.items()


def test_fields_with_a_default_are_left_out_while_they_have_it() -> None:
    batch = events.Batch(flow="f", dataset="lake.db.t", batch=1, rows=2, lag={"bytes": 4096}, chunks_left=0)
    assert batch.as_json() == {
        "event": "batch",
        "flow": "f",
        "dataset": "lake.db.t",
        "batch": 1,
        "rows": 2,
        "chunks_left": 0,
        "lag": {"bytes": 4096},
    }


def test_names_in_json_that_differ_from_those_of_fields() -> None:
    quarantined = events.Quarantined(
        flow="f",
        dataset="lake.db.t",
        quarantine_table="lake.db.t__quarantine",
        batch=1,
        records=2,
        first="line 3",
        reason=unclassified("no number"),
    )
    assert quarantined.as_json()["beside"] == "lake.db.t__quarantine"


def test_text_of_a_batch_of_a_change_log() -> None:
    batch = events.Batch(flow="f", dataset="lake.db.t", batch=1, rows=2, chunks_left=2, lag={"bytes": 4096})
    assert batch.text().endswith("+2 rows (batch 1), 2 chunks of the copy left, 4,096 bytes behind")


def test_an_event_without_a_text_of_its_own_shows_its_fields() -> None:
    aborted = events.Abort(dataset="lake.db.t", rows=0, reason=unclassified("older"))
    assert aborted.text() == "abort: dataset=lake.db.t rows=0 reason=older"


def test_all_texts_are_changed() -> None:
    event = events.SinkDelivered(
        sink="a",
        checkpoint=1,
        since=None,
        rows=1,
        replaced={"t": "secret"},
        replaced_reasons=[events.DatasetReason(dataset="t", reason=unclassified("secret"))],
        left_to_spark=[],
        compared=[],
        duration_ms=1,
    )
    changed = event.map_texts(lambda text: text.replace("secret", "***"))
    assert "secret" not in json.dumps(changed.as_json())
    assert changed.checkpoint == 1
