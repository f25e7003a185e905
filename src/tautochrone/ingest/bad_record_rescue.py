"""What becomes of a batch on which the flow's query fails: the bad records are found.

    1. read the batch's records again, by their offsets     2. does the query fail on them too?
    3. halve until the records are alone on which it fails
    4. `fail`: say where the first one is     5. `quarantine`: stage the good rows, and the bad records

Only errors of the data are looked into: a broker that is away or a disk that is full would make every
record look bad.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.errors import IngestError, OffsetsOutOfRangeError, TautochroneError
from tautochrone.ingest.bad_record_search import BadRecord, Search, SearchTooLongError, Span
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.positions import source_offsets
from tautochrone.ingest.stream_errors import explain
from tautochrone.model import limits
from tautochrone.model.lake import LakeTable, Staged
from tautochrone.model.quarantine import BadRecords
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.kafka_replay import KafkaReplay, Offsets, obstacle

__all__ = ["Rescue", "Rescued", "ranges_of"]

_OF_THE_DATA = ("21", "22", "23", "38", "39", "P0")
"""Classes of SQLSTATE: cardinality, data, constraints, routines of the user, errors raised by the query."""
_REASONS = "topic STRING, partition INT, offset BIGINT, error_class STRING, reason STRING"


@dataclass(frozen=True, slots=True)
class Rescued:
    """The good rows of a batch and its bad records, both staged, and the bad ones as found."""

    good: Staged
    bad: Staged | None
    found: Sequence[BadRecord]


@dataclass(slots=True)
class Rescue:
    """Bound to one flow.

    Args:
        flow: its name.
        policy: what to do with bad records.
        quarantine: the table beside; only for that policy.
        align: gives the query's rows the columns of the target.
    """

    flow: str
    policy: BadRecords
    quarantine: LakeTable | None
    align: Callable[[DataFrame], DataFrame]

    def rescue(
        self,
        error: Exception,
        session: SparkSession,
        query: DataFrame,
        stage: Callable[[DataFrame], Staged],
        batch_id: int,
        ranges: Callable[[], tuple[Offsets, Offsets]],
    ) -> Rescued:
        """Split the batch, or say where it hurts.

        Args:
            error: what the batch raised.
            session: where `query` was evaluated.
            query: the flow's streaming query.
            stage: stages rows of the target.
            ranges: tells where the batch begins and ends; asked only for a Kafka source.

        Raises:
            IngestError: the policy is to fail, too many records are bad, or the error is not of the data.
        """
        told = explain(error, self.flow)
        if not _of_the_data(told, error) or obstacle(query):
            raise told from error
        replay = KafkaReplay(session, query)
        records = replay.records(*ranges())
        probe = self._probe(replay, records)
        spans = _spans(records)
        if probe(spans) is None:
            # The second time it went well: nothing is wrong with the records.
            raise told from error
        if self.policy is BadRecords.FAIL or self.quarantine is None:
            raise self._located(
                told, Search(probe, limits.MAX_FIRST_BAD_RECORD_PROBES, first=True), spans
            ) from error
        found = self._search(told, Search(probe, limits.MAX_BAD_RECORD_PROBES), spans)
        if not found:
            # It fails on many records together and on none alone: there is nothing to set aside.
            raise told from error
        chosen = _any_of([Span(bad.topic, bad.partition, bad.offset, bad.offset + 1) for bad in found])
        good = stage(self.align(replay.query(records.where(~chosen))))
        bad = self._stage_bad(session, records.where(chosen), found, batch_id)
        return Rescued(good, bad, found)

    def _probe(
        self, replay: KafkaReplay, records: DataFrame
    ) -> Callable[[Sequence[Span]], TautochroneError | None]:
        def probe(spans: Sequence[Span]) -> TautochroneError | None:
            rows = self.align(replay.query(records.where(_any_of(spans))))
            try:
                rows.write.format("noop").mode("append").save()
            except Exception as error:
                told = explain(error, self.flow)
                if not _of_the_data(told, error):
                    raise told from error
                return told
            return None

        return probe

    def _search(self, told: TautochroneError, search: Search, spans: Sequence[Span]) -> list[BadRecord]:
        try:
            return search.run(spans)
        except SearchTooLongError as error:
            raise IngestError(
                "TOO_MANY_BAD_RECORDS",
                f"Flow {self.flow}: {len(error.found)} bad records were found in one batch, and there are "
                f"more: {told.message}",
                hint="so many look like a change of the producer or a mistake in the query; to quarantine "
                "them all the same, bound the batches by max_offsets_per_trigger",
            ) from error

    def _located(self, told: TautochroneError, search: Search, spans: Sequence[Span]) -> TautochroneError:
        try:
            first = search.run(spans)[:1]
        except SearchTooLongError:
            first = []
        for bad in first:
            return IngestError(
                bad.error.error_class,
                f"{bad.error.message.rstrip('.')} (record: {bad.place})",
                sqlstate=bad.error.sqlstate,
                hint=f'to set such records aside and go on: bad_records = "quarantine" below '
                f"[flows.{self.flow}] in tautochrone.toml",
            )
        return told

    def _stage_bad(
        self, session: SparkSession, records: DataFrame, found: Sequence[BadRecord], batch_id: int
    ) -> Staged:
        assert self.quarantine is not None
        reasons = session.createDataFrame(
            [(b.topic, b.partition, b.offset, b.error.error_class, b.reason) for b in found], _REASONS
        )
        rows = records.join(sf.broadcast(reasons), ["topic", "partition", "offset"]).select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            "headers",
            "error_class",
            "reason",
            sf.lit(self.flow).alias("flow"),
            sf.lit(batch_id).cast("bigint").alias("batch"),
        )
        staged = self.quarantine.stage(self.quarantine.fork(), rows)
        if staged.rows != len(found):
            raise IngestError(
                "QUARANTINE_INCOMPLETE",
                f"Flow {self.flow}: {len(found)} bad records were found, {staged.rows} could be set aside",
                hint="records vanished from the topic meanwhile; the batch is tried again",
                retryable=True,
            )
        return staged


def ranges_of(
    folder: CheckpointFolder, known: SparkPosition | None, batch_id: int
) -> tuple[Offsets, Offsets]:
    """Where a batch of a flow with one Kafka source begins and ends.

    Raises:
        FileNotFoundError: the folder does not tell.
    """
    planned = folder.offsets(batch_id)
    first = folder.initial_offsets() if known is None else source_offsets(known.offsets)[0]
    if planned is None or first is None:
        raise FileNotFoundError(f"{folder.path}: no offsets of batch {batch_id}")
    return json.loads(first), json.loads(source_offsets(planned)[0])


def _of_the_data(told: TautochroneError, error: Exception) -> bool:
    """`told` is what `explain` made of `error`."""
    if isinstance(told, OffsetsOutOfRangeError):
        return False
    return told.sqlstate.startswith(_OF_THE_DATA) or "PythonException" in f"{type(error).__name__}: {error}"


def _spans(records: DataFrame) -> list[Span]:
    """What there is of each partition."""
    found = records.groupBy("topic", "partition").agg(sf.min("offset"), sf.max("offset")).collect()
    return sorted(
        (Span(topic, part, low, high + 1) for topic, part, low, high in found),
        key=lambda span: (span.topic, span.partition),
    )


def _any_of(spans: Sequence[Span]) -> Column:
    """Is a record in one of the spans?"""
    single: dict[tuple[str, int], list[int]] = {}
    conditions = []
    for span in spans:
        if span.width == 1:
            single.setdefault((span.topic, span.partition), []).append(span.low)
        else:
            place = (sf.col("topic") == span.topic) & (sf.col("partition") == span.partition)
            conditions.append(place & sf.col("offset").between(span.low, span.high - 1))
    for (topic, partition), offsets in single.items():
        place = (sf.col("topic") == topic) & (sf.col("partition") == partition)
        conditions.append(place & sf.col("offset").isin(offsets))
    return reduce(or_, conditions, sf.lit(False))
