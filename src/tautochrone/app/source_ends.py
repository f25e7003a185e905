"""How far a run has read the sources that it reads by Spark, and what they have behind that, asked without.

A run writes down, for topics of Kafka, the next offset of each partition, and for a capture the end of the
database's log. Who asks later connects to the same brokers and databases:

- to Kafka without a login;
- to a database by the setting that has its connection string: nothing secret is written down.

The log of a database has more than the changes of captured tables, and offsets of a topic need no record, so
the answers are upper bounds. Where nothing was written, nothing came.
"""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tautochrone.errors import TautochroneError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source_position import LogPosition, SparkPosition

if TYPE_CHECKING:
    from tautochrone.project.graph import ResolvedFlow
    from tautochrone.runtime.job.job import Job

__all__ = ["CaptureEnd", "SourceEnds", "TopicEnds", "capture_ends", "is_topic", "news_of", "source_ends"]

_TOPIC, _PATTERN, _PARTITIONS, _OF = "topic ", "pattern ", "partitions of ", " of "
_SERVERS = {
    "postgres": "tautochrone.sources.postgresql.server",
    "mysql": "tautochrone.sources.mysql.server",
}
"""By the extra of a capture's package, where the function `bytes_since` is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEnds:
    """What flows have read of the topics of one cluster.

    Attributes:
        positions: topic → partition (as text) → the offset of the next record to read.
        assigned: topics of which only the partitions in `positions` are read.
        patterns: of names of topics that are read, also of later ones.
    """

    positions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    assigned: Sequence[str] = ()
    patterns: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureEnd:
    """What a capture has read of its database's log.

    Attributes:
        source: a key of `_SERVERS`.
        name: of the capture.
        setting: the Spark setting that has the connection string; None: none has it.
        log, marker: of the position of the capture's log table.
        point: all changes up to this point of the log are in that table; None: it has no position yet.
    """

    source: str
    name: str
    setting: str | None
    log: str = ""
    point: int | None = None
    marker: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEnds:
    """
    Attributes:
        topics: by the brokers of a cluster, `host:port`, several with commas.
        captures: by flow.
    """

    topics: Mapping[str, TopicEnds] = field(default_factory=dict)
    captures: Mapping[str, CaptureEnd] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SourceEnds:
        """
        Raises:
            TypeError, KeyError, AttributeError: another release wrote it.

        >>> SourceEnds.from_json({"topics": {"kafka:9092": {"positions": {"a": {"0": 5}}}}, "captures": {}})
        ... # doctest: +ELLIPSIS
        SourceEnds(topics={'kafka:9092': TopicEnds(positions={'a': {'0': 5}}, ...
        """
        return cls(
            topics={brokers: TopicEnds(**ends) for brokers, ends in data["topics"].items()},
            captures={flow: CaptureEnd(**end) for flow, end in data["captures"].items()},
        )


def is_topic(source: str) -> bool:
    """Whether a source of a flow (`ResolvedFlow.sources`) is a topic, partitions of one, or a pattern."""
    return source.startswith(_TOPIC)


# -- a run writes down ---------------------------------------------------------------------------------------


def capture_ends(job: Job) -> dict[str, CaptureEnd]:
    """By flow, where the logs of captured databases end as a run begins: it reads everything up to there.
    Without a point where the database does not answer."""
    from tautochrone.runtime.streams.change_logs import change_log_of
    from tautochrone.sources.capture.captured_log import CapturedLog

    ends: dict[str, CaptureEnd] = {}
    for flow in _ingestion_flows(job):
        log: object = change_log_of(job.graph, flow)
        if not isinstance(log, CapturedLog):
            continue
        with closing(log):
            setting = next((key for key, value in job.settings.confs.items() if value == log.given_url), None)
            end = CaptureEnd(source=log.extra, name=log.capture_name, setting=setting)
            position = _position(job, flow)
            with suppress(TautochroneError):
                if isinstance(position, LogPosition):
                    read = log.lag(position).get("bytes", 0)
                    end = replace(_at(end, position), point=position.point + read)
            ends[flow.flow.name] = end
    return ends


def _at(end: CaptureEnd, position: LogPosition) -> CaptureEnd:
    return replace(end, log=position.log, point=position.point, marker=dict(position.marker))


def _ingestion_flows(job: Job) -> Iterable[ResolvedFlow]:
    return (flow for table in job.graph.order for flow in job.topology.ingestion_flows(table))


def _position(job: Job, flow: ResolvedFlow) -> object:
    name = flow.flow.target
    # Before the takeover no table is loaded.
    table = job.tables.get(name)
    if table is None and not job.lake.exists(name):
        return None
    commit_metadata = (table or job.lake.load(name)).fork().commit_metadata
    return None if commit_metadata is None else commit_metadata.positions.get(flow.flow.name)


def source_ends(job: Job, begun: Mapping[str, CaptureEnd]) -> SourceEnds | None:
    """How far a complete run has read; None where a flow has no position.

    Args:
        begun: of `capture_ends`, when the run began.

    Raises:
        TautochroneError: a table does not answer.
    """
    topics: dict[str, _Topics] = {}
    captures: dict[str, CaptureEnd] = {}
    for flow in _ingestion_flows(job):
        name, sources = flow.flow.name, sorted(filter(is_topic, flow.sources))
        if not sources and name not in begun:
            continue
        position = _position(job, flow)
        if isinstance(position, LogPosition) and name in begun:
            end = _at(begun[name], position)
            # The table's position stays behind while the log has nothing of its tables.
            before = begun[name].point if begun[name].log == position.log else None
            captures[name] = replace(end, point=max(position.point, before or 0))
        elif isinstance(position, SparkPosition):
            _add_topics(topics, sources, position)
        else:
            return None
    return SourceEnds(
        topics={brokers: each.ends() for brokers, each in topics.items()},
        captures=captures,
    )


@dataclass(slots=True)
class _Topics:
    """Topics of one cluster, of several flows; of a partition the one that is behind counts."""

    positions: dict[str, dict[str, int]] = field(default_factory=dict)
    whole: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    patterns: set[str] = field(default_factory=set)

    def add(self, topic: str, offsets: Mapping[str, int]) -> None:
        known = self.positions.setdefault(topic, {})
        for partition, offset in offsets.items():
            known[partition] = min(offset, known.get(partition, offset))

    def ends(self) -> TopicEnds:
        return TopicEnds(
            positions=self.positions,
            assigned=sorted(self.assigned - self.whole),
            patterns=sorted(self.patterns),
        )


def _add_topics(topics: dict[str, _Topics], sources: Iterable[str], position: SparkPosition) -> None:
    from tautochrone.ingest.folder_decision import source_offsets

    by_source = [_offsets(text) for text in source_offsets(position.offsets)]
    for source in sources:
        subject, _, brokers = source.removeprefix(_TOPIC).rpartition(_OF)
        cluster = topics.setdefault(brokers, _Topics())
        if subject.startswith(_PATTERN):
            cluster.patterns.add(subject.removeprefix(_PATTERN))
            names = {topic for offsets in by_source for topic in offsets}
            read = set(_matching(subject.removeprefix(_PATTERN), names) or ())
            cluster.whole |= read
        else:
            topic = subject.removeprefix(_PARTITIONS)
            (cluster.assigned if subject.startswith(_PARTITIONS) else cluster.whole).add(topic)
            # A topic without a partition has no offsets.
            cluster.positions.setdefault(topic, {})
            read = {topic}
        for offsets in by_source:
            for topic in read & offsets.keys():
                cluster.add(topic, offsets[topic])


def _offsets(text: str) -> dict[str, dict[str, int]]:
    """Those of Kafka by topic and partition; other sources have other texts."""
    with suppress(ValueError):
        offsets = json.loads(text)
        if isinstance(offsets, dict):
            return {topic: parts for topic, parts in offsets.items() if isinstance(parts, dict)}
    return {}


def _matching(pattern: str, names: Collection[str]) -> list[str] | None:
    """The names that match a regular expression of Java; None where Python may read it otherwise.

    >>> _matching("orders_.*", ["orders_eu", "returns"]), _matching("[a-z&&[^b]]", ["a"])
    (['orders_eu'], None)
    """
    try:
        with warnings.catch_warnings():
            # A set within a set, which Java knows and Python does not.
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(pattern, re.ASCII)
    except (re.error, FutureWarning, OverflowError):
        return None
    return sorted(filter(compiled.fullmatch, names))


# -- who asks later ------------------------------------------------------------------------------------------


def news_of(ends: SourceEnds, confs: Mapping[str, str]) -> list[Reason]:
    """What came behind these ends, and of which sources that is not known; nothing came of all others.

    Args:
        confs: the project's Spark settings.
    """
    return [*_news_of_topics(ends.topics), *_news_of_captures(ends.captures.values(), confs)]


def _not_known(cause: str) -> Reason:
    return Reason.of(ReasonCode.NEWS_NOT_KNOWN, cause=cause)


def _news_of_topics(topics: Mapping[str, TopicEnds]) -> list[Reason]:
    from tautochrone.sources.kafka_offsets import end_offsets, topic_names

    news: list[Reason] = []
    came: dict[str, int] = {}
    for brokers, ends in topics.items():
        names = set(ends.positions)
        try:
            existing = topic_names(brokers) if ends.patterns else []
            for pattern in ends.patterns:
                matching = _matching(pattern, existing)
                if matching is None:
                    news.append(_not_known(f"the pattern {pattern} is one of Java"))
                names |= set(matching or ())
            now = end_offsets(brokers, names)
        except TautochroneError as error:
            news.append(_not_known(error.message))
            continue
        for topic in sorted(names):
            offsets, end = ends.positions.get(topic, {}), now.get(topic, {})
            if topic in ends.assigned:
                end = {partition: offset for partition, offset in end.items() if partition in offsets}
            if any(end.get(partition, -1) < offset for partition, offset in offsets.items()):
                news.append(_not_known(f"topic {topic} was removed or created anew"))
            elif (records := sum(last - offsets.get(partition, 0) for partition, last in end.items())) > 0:
                came[topic] = came.get(topic, 0) + records
    if came:
        topics_text = ", ".join(sorted(came))
        reason = Reason.of(ReasonCode.RECORDS_SINCE_LAST_RUN, records=sum(came.values()), topics=topics_text)
        news.insert(0, reason)
    return news


def _news_of_captures(captures: Iterable[CaptureEnd], confs: Mapping[str, str]) -> list[Reason]:
    news: list[Reason] = []
    for end in captures:
        answer = _bytes_since(end, confs)
        if isinstance(answer, str):
            news.append(_not_known(answer))
        elif answer:
            news.append(Reason.of(ReasonCode.LOG_SINCE_LAST_RUN, bytes=answer, capture=end.name))
    return sorted(news, key=lambda reason: reason.code is ReasonCode.NEWS_NOT_KNOWN)


def _bytes_since(end: CaptureEnd, confs: Mapping[str, str]) -> int | str:
    """How many bytes the log goes on; or why that is not known."""
    url = None if end.setting is None else confs.get(end.setting)
    if url is None:
        return f"no Spark setting has the url of the capture {end.name}"
    if end.point is None:
        return f"the capture {end.name} has no position yet"
    position = LogPosition(log=end.log, point=end.point, marker=end.marker)
    try:
        server = importlib.import_module(_SERVERS[end.source])
        answer: int | str = server.bytes_since(url, end.name, position)
    except ImportError as error:
        return f"the package {error.name} is not installed"
    except TautochroneError as error:
        return error.message
    return answer
