"""What came into topics since the last run: no broker, no Spark."""

from __future__ import annotations

import socket
from collections.abc import Mapping

import pytest

from tautochrone.app import unchanged
from tautochrone.errors import SourceUnreachableError
from tautochrone.model.reason import ReasonCode
from tautochrone.sources import kafka_offsets
from tautochrone.sources.kafka_offsets import end_offsets

Ends = Mapping[str, Mapping[str, int]]


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
    monkeypatch: pytest.MonkeyPatch, positions: Ends, ends: Ends, codes: list[ReasonCode], text: str
) -> None:
    monkeypatch.setattr(kafka_offsets, "end_offsets", lambda _brokers, _topics: ends)
    news = unchanged._news_of_topics({"kafka:9092": positions})
    assert [reason.code for reason in news] == codes
    assert text in "; ".join(map(str, news))


def test_brokers_that_do_not_answer_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_offsets, "_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(SourceUnreachableError) as caught:
        end_offsets(address, ["a"])
    assert caught.value.error_class == "KAFKA_NOT_ASKED"
    (reason,) = unchanged._news_of_topics({address: {"a": {"0": 1}}})
    assert reason.code is ReasonCode.NEWS_NOT_KNOWN
    assert address in str(reason)


@pytest.mark.parametrize(
    ("source", "is_topic"),
    [
        ("topic a of kafka:9092", True),
        ("topic pattern a.* of kafka:9092", False),
        ("topic partitions of a of kafka:9092", False),
        ("files in /a", False),
    ],
)
def test_topics_that_are_read_as_a_whole_are_asked(source: str, is_topic: bool) -> None:
    assert unchanged._is_topic(source) is is_topic
