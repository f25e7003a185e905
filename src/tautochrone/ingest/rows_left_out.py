"""Rows that a reader's own options leave out without an error: they stay left out, and it is said.

An option is said once in each run. Of Kafka's records that went away before they were read it is
also said how many. How many rows of a file are left out no option of Spark tells.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.ingest.source_checks import SourceCheck
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import Unsupported
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.kafka import TopicIdsRefusedError
from tautochrone.spark.sources.registry import sources_of
from tautochrone.spark.sources.spark_source import TopicIdReader

__all__ = ["RowsLeftOut", "lost_records"]

_Offsets = Mapping[str, Mapping[str, int]]
"""Topic → partition → offset."""


def lost_records(start: _Offsets, end: _Offsets, earliest: _Offsets) -> dict[str, int]:
    """How many offsets of a batch are before the first one that each partition still has.

    >>> lost_records({"t": {"0": 3, "1": 5}}, {"t": {"0": 9, "1": 9}}, {"t": {"0": 7, "1": 2}})
    {'t-0': 4}
    """
    lost = {}
    for topic, partitions in start.items():
        for partition, offset in partitions.items():
            last = end.get(topic, {}).get(partition, offset)
            first = min(earliest.get(topic, {}).get(partition, offset), last)
            if first > offset:
                lost[f"{topic}-{partition}"] = first - offset
    return lost


@dataclass(slots=True)
class RowsLeftOut(SourceCheck):
    """The check of one flow."""

    flow: str
    dataset: str
    emit: events.Emit
    _reported: set[Reason] = field(default_factory=set)
    _readers: dict[int, TopicIdReader] = field(default_factory=dict)

    def begin(
        self, session: SparkSession, rows: DataFrame, position: SparkPosition | None
    ) -> SparkPosition | None:
        """See `SourceCheck`: says what the readers' options leave out."""
        del position
        self.close()
        self._readers = {}
        for source in sources_of(rows):
            for option, value in sorted(source.leaving_out(session).items()):
                code = ReasonCode.READER_LEAVES_OUT_ROWS
                self._report(Reason.of(code, input=source.label, option=option, value=value))
            if source.may_lose_records():
                reader = source.topic_ids(session)
                if not isinstance(reader, Unsupported):
                    self._readers[source.number] = reader
        return None

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: says which records of the batch went away before it was read, or at the latest
        while it was.

        Raises:
            IngestError: `KAFKA_NOT_REACHABLE`.
        """
        if previous is not None:
            for number, reader in self._readers.items():
                for partition, records in self._lost(number, reader, previous, position):
                    reason = Reason.of(ReasonCode.RECORDS_GONE, partition=partition, records=str(records))
                    self._emit(reason)
        return position

    def _lost(
        self, number: int, reader: TopicIdReader, previous: SparkPosition, position: SparkPosition
    ) -> Iterator[tuple[str, int]]:
        start, end = _offsets(previous, number), _offsets(position, number)
        try:
            yield from lost_records(start, end, reader.earliest(frozenset(start))).items()
        except TopicIdsRefusedError as error:
            # The option itself was said.
            self._report(Reason.of(ReasonCode.TOPIC_IDS_REFUSED, text=error.message))

    def _report(self, reason: Reason) -> None:
        if reason not in self._reported:
            self._reported.add(reason)
            self._emit(reason)

    def _emit(self, reason: Reason) -> None:
        self.emit(events.SourceRowsLeftOut(flow=self.flow, dataset=self.dataset, reason=reason))

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def _offsets(position: SparkPosition, number: int) -> _Offsets:
    lines = source_offsets(position.offsets)
    if number >= len(lines) or not lines[number].strip().startswith("{"):
        return {}
    offsets: _Offsets = json.loads(lines[number])
    return offsets
