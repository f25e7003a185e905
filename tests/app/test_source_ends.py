"""What came into sources since the last run: no broker, no database, no Spark."""

from __future__ import annotations

import importlib
import json
import socket
from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest

from tautochrone.app import source_ends
from tautochrone.app.source_ends import CaptureEnd, SourceEnds, TopicEnds, news_of
from tautochrone.errors import SourceUnreachableError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sources import kafka_offsets
from tautochrone.sources.kafka_offsets import end_offsets

Offsets = Mapping[str, Mapping[str, int]]


def news_of_topics(brokers: str, ends: TopicEnds) -> list[Reason]:
    as_json = json.loads(json.dumps(asdict(SourceEnds(topics={brokers: ends}))))
    return news_of(SourceEnds.from_json(as_json), {})


@pytest.mark.parametrize(
    ("positions", "ends", "codes", "text"),
    [
        ({"a": {"0": 5}}, {"a": {"0": 5}}, [], ""),
        (
            {"a": {"0": 5, "1": 7}},
            {"a": {"0": 6, "1": 9, "2": 4}},
            [ReasonCode.RECORDS_SINCE_LAST_RUN],
            "up to 7 records came since the last run, into a",
        ),
        # The topic was created anew, or it is gone.
        (
            {"a": {"0": 5}},
            {"a": {"0": 4}},
            [ReasonCode.NEWS_NOT_KNOWN],
            "topic a was removed or created anew",
        ),
        ({"a": {"0": 5}}, {}, [ReasonCode.NEWS_NOT_KNOWN], "topic a was removed or"),
        (
            {"a": {"0": 5}, "b": {"0": 1}},
            {"b": {"0": 2}},
            [ReasonCode.RECORDS_SINCE_LAST_RUN, ReasonCode.NEWS_NOT_KNOWN],
            "up to 1 record came since the last run, into b",
        ),
        # A topic of which nothing was read, for it had no partition then.
        ({"a": {}}, {"a": {"0": 3}}, [ReasonCode.RECORDS_SINCE_LAST_RUN], "up to 3 records"),
    ],
)
def test_offsets_say_what_came(
    monkeypatch: pytest.MonkeyPatch, positions: Offsets, ends: Offsets, codes: list[ReasonCode], text: str
) -> None:
    monkeypatch.setattr(kafka_offsets, "end_offsets", lambda _brokers, _topics: ends)
    news = news_of_topics("kafka:9092", TopicEnds(positions=positions))
    assert [reason.code for reason in news] == codes
    assert text in "; ".join(map(str, news))


def test_brokers_that_do_not_answer_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_offsets, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(SourceUnreachableError) as caught:
        end_offsets(address, ["a"])
    assert caught.value.error_class == "KAFKA_NOT_ASKED"
    (reason,) = news_of_topics(address, TopicEnds(positions={"a": {"0": 1}}))
    assert reason.code is ReasonCode.NEWS_NOT_KNOWN
    assert address in str(reason)


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        (TopicEnds(positions={"a": {"0": 5}}, assigned=["a"]), ""),
        (TopicEnds(positions={"a": {"0": 5}}), "up to 3 records"),
        (
            TopicEnds(positions={"a": {"0": 5, "1": 3}}, patterns=["a.*"]),
            "up to 2 records came since the last run, into ab",
        ),
        (TopicEnds(positions={"a": {"0": 5, "1": 3}, "ab": {"0": 2}}, patterns=["a.*", "x"]), ""),
        (TopicEnds(patterns=[r"\p{Alpha}b"]), r"the pattern \p{Alpha}b is one of Java"),
        (TopicEnds(patterns=["[a-z&&[^b]]"]), "is one of Java"),
    ],
)
def test_partitions_and_patterns(monkeypatch: pytest.MonkeyPatch, ends: TopicEnds, text: str) -> None:
    offsets = {"a": {"0": 5, "1": 3}, "ab": {"0": 2}, "b": {"0": 9}}
    monkeypatch.setattr(kafka_offsets, "topic_names", lambda _brokers: sorted(offsets))
    monkeypatch.setattr(
        kafka_offsets, "end_offsets", lambda _brokers, topics: {name: offsets[name] for name in topics}
    )
    shown = "; ".join(map(str, news_of_topics("kafka:9092", ends)))
    assert shown.startswith(text) if text.startswith("up") else text in shown
    assert bool(shown) == bool(text)


@pytest.mark.parametrize("source", ["postgres", "mysql"])
@pytest.mark.parametrize(
    ("answer", "code", "text"),
    [
        (0, None, ""),
        (1, ReasonCode.LOG_SINCE_LAST_RUN, "up to 1 byte of log came since the last run, in the database of"),
        ("the slot is gone", ReasonCode.NEWS_NOT_KNOWN, "the slot is gone"),
    ],
)
def test_logs_of_databases(
    monkeypatch: pytest.MonkeyPatch, source: str, answer: object, code: ReasonCode | None, text: str
) -> None:
    server = importlib.import_module(source_ends._SERVERS[source])
    monkeypatch.setattr(
        server,
        "bytes_since",
        lambda url, _name, position: answer if (url, position.point) == ("u", 7) else None,
    )
    end = CaptureEnd(source=source, name="shop", setting="shop.url", log="l", point=7, marker={"a": "b"})
    ends = SourceEnds.from_json(json.loads(json.dumps(asdict(SourceEnds(captures={"shop_log": end})))))
    news = news_of(ends, {"shop.url": "u"})
    assert [reason.code for reason in news] == ([] if code is None else [code])
    assert text in "; ".join(map(str, news))
    for unknown, settings in (
        (end, {}),
        (replace(end, setting=None), {}),
        (replace(end, point=None), {"shop.url": "u"}),
    ):
        (reason,) = news_of(SourceEnds(captures={"shop_log": unknown}), settings)
        assert reason.code is ReasonCode.NEWS_NOT_KNOWN
