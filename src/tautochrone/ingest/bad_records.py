"""The records on which a flow's query fails: they are found by halving, and split off the batch.

    1. read the batch's records again, by their offsets     2. does the query fail on them too?
    3. halve until the records are alone on which it fails
    4. `fail`: say where the first one is     5. `quarantine`: stage the good rows, and the bad records

Only errors of the data are looked into: a broker that is away or a disk that is full would make every record
look bad. A record counts as bad only when the query failed on it alone. A batch of n records with k bad ones
takes about k * log2(n) evaluations of ever fewer records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tautochrone.errors import IngestError, OffsetsOutOfRangeError, TautochroneError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.ingest.stream_errors import explain
from tautochrone.model import limits
from tautochrone.model.lake import LakeTable, Staged
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import BadRecords, Unsupported
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.stream_as_batch import FlowReplay, flow_replay

__all__ = [
    "BadRecord",
    "BadRecordSearch",
    "BatchSplitter",
    "SearchTooLongError",
    "SetAside",
    "Span",
    "SplitBatch",
    "halves",
    "ranges_of",
]


@dataclass(frozen=True, slots=True)
class Span:
    """The records of a partition from offset `low` up to and without `high`; there may be gaps."""

    topic: str
    partition: int
    low: int
    high: int

    @property
    def width(self) -> int:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record and the error that the query raised on it."""

    topic: str
    partition: int
    offset: int
    error: TautochroneError

    @property
    def reason(self) -> str:
        """The error's text without the flow, which every error names."""
        return self.error.message.split(" failed: ", 1)[-1]

    @property
    def location(self) -> str:
        """For people."""
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}"


Spans: TypeAlias = Sequence[Span]
Probe = Callable[[Spans], TautochroneError | None]
"""Runs the query over some records; answers the error of the data that it raised."""


class SearchTooLongError(Exception):
    """More evaluations would be needed than are allowed; `bad_records` were found before that."""

    def __init__(self, bad_records: Sequence[BadRecord]) -> None:
        super().__init__(f"{len(bad_records)} bad records found")
        self.bad_records = bad_records


def halves(spans: Spans) -> tuple[list[Span], list[Span]]:
    """The spans in two parts of the same width, but for one.

    >>> halves([Span("t", 0, 5, 8)])
    ([Span(topic='t', partition=0, low=5, high=6)], [Span(topic='t', partition=0, low=6, high=8)])
    """
    half = sum(span.width for span in spans) // 2
    left: list[Span] = []
    right: list[Span] = []
    for span in spans:
        taken = min(span.width, half)
        half -= taken
        if taken:
            left.append(replace(span, high=span.low + taken))
        if taken < span.width:
            right.append(replace(span, low=span.low + taken))
    return left, right


@dataclass(slots=True)
class BadRecordSearch:
    """One search for the records on which a query fails, by halving. It does no I/O of its own.

    Args:
        probe: see `Probe`.
        max_probes: how many evaluations are allowed.
        first: stop at the first bad record.
    """

    probe: Probe
    max_probes: int
    first: bool = False
    probes: int = 0
    _bad_records: list[BadRecord] = field(default_factory=list)

    def run(self, spans: Spans) -> list[BadRecord]:
        """The bad records in spans on which the query failed as a whole.

        Raises:
            SearchTooLongError: `max_probes` evaluations did not suffice.
        """
        # Parts on which the query fails, each with its error if the query was run on that part.
        waiting: list[tuple[list[Span], TautochroneError | None]] = [(list(spans), None)]
        while waiting and not (self.first and self._bad_records):
            part, error = waiting.pop()
            if sum(span.width for span in part) <= 1:
                self._single_record(part, error)
                continue
            left, right = halves(part)
            left_error = self._error_of_part(left)
            if left_error is None:
                # Then it fails on the other half: that one need not be run.
                waiting.append((right, None))
                continue
            if not self.first:
                right_error = self._error_of_part(right)
                waiting += [(right, right_error)] if right_error is not None else []
            waiting.append((left, left_error))
        return self._bad_records

    def _single_record(self, part: Spans, error: TautochroneError | None) -> None:
        error = error or self._error_of_part(part)
        if error is not None:
            self._bad_records.append(BadRecord(part[0].topic, part[0].partition, part[0].low, error))

    def _error_of_part(self, part: Spans) -> TautochroneError | None:
        if self.probes >= self.max_probes:
            raise SearchTooLongError(self._bad_records)
        self.probes += 1
        return self.probe(part)


_OF_THE_DATA = ("21", "22", "23", "38", "39", "P0")
"""Classes of SQLSTATE: cardinality, data, constraints, routines of the user, errors raised by the query."""
_REASONS = "topic STRING, partition INT, offset BIGINT, error_class STRING, reason STRING"


@dataclass(frozen=True, slots=True)
class SetAside:
    """The bad records of a batch.

    Attributes:
        records: how many they are.
        first: where the first of them is, for people.
        reason: why it is bad.
        no_line: why the lines of some records of files are not known.
    """

    records: int
    first: str
    reason: Reason
    no_line: Reason | None = None


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """The good rows of a batch and its bad records, both staged, and what is known of the bad ones."""

    good: Staged
    bad: Staged | None = None
    set_aside: SetAside | None = None


@dataclass(slots=True)
class BatchSplitter:
    """Bound to one flow.

    Args:
        flow: its name.
        policy: what to do with bad records.
        quarantine: takes the bad records; only for that policy.
        align: gives the query's rows the columns of the target.
    """

    flow: str
    policy: BadRecords
    quarantine: LakeTable | None
    align: Callable[[DataFrame], DataFrame]

    def split(
        self,
        error: Exception,
        session: SparkSession,
        query: DataFrame,
        stage: Callable[[DataFrame], Staged],
        batch_id: int,
        ranges: Callable[[], tuple[str, str]],
    ) -> SplitBatch:
        """Split the batch, or raise an error that names the record.

        Args:
            error: what the batch raised.
            session: where `query` was evaluated.
            query: the flow's streaming query.
            stage: stages rows of the target.
            ranges: answers where the batch begins and ends; asked only where records can be read again.

        Raises:
            IngestError: the policy is to fail, too many records are bad, or the error is not of the data.
        """
        explained = explain(error, self.flow)
        if not _of_the_data(explained, error):
            raise explained from error
        replay = flow_replay(session, query)
        if isinstance(replay, Unsupported):
            raise explained from error
        records = replay.records(*ranges())
        probe = self._probe(replay, records)
        spans = _spans(records)
        if probe(spans) is None:
            # The second run succeeded: nothing is wrong with the records.
            raise explained from error
        if self.policy is BadRecords.FAIL or self.quarantine is None:
            raise self._error_with_location(
                explained, BadRecordSearch(probe, limits.MAX_FIRST_BAD_RECORD_PROBES, first=True), spans
            ) from error
        bad_records = self._search(explained, BadRecordSearch(probe, limits.MAX_BAD_RECORD_PROBES), spans)
        if not bad_records:
            # The query fails on many records together but on none alone: nothing can be quarantined.
            raise explained from error
        is_bad = _any_of([Span(bad.topic, bad.partition, bad.offset, bad.offset + 1) for bad in bad_records])
        good = stage(self.align(replay.query(records.where(~is_bad))))
        bad = self._stage_bad(session, records.where(is_bad), bad_records, batch_id)
        first = bad_records[0]
        reason = Reason.of(ReasonCode.RECORD_FAILED, error_class=first.error.error_class, text=first.reason)
        return SplitBatch(good, bad, SetAside(len(bad_records), first.location, reason))

    def _probe(
        self, replay: FlowReplay, records: DataFrame
    ) -> Callable[[Sequence[Span]], TautochroneError | None]:
        def probe(spans: Sequence[Span]) -> TautochroneError | None:
            rows = self.align(replay.query(records.where(_any_of(spans))))
            try:
                rows.write.format("noop").mode("append").save()
            except Exception as error:
                explained = explain(error, self.flow)
                if not _of_the_data(explained, error):
                    raise explained from error
                return explained
            return None

        return probe

    def _search(
        self, explained: TautochroneError, search: BadRecordSearch, spans: Sequence[Span]
    ) -> list[BadRecord]:
        try:
            return search.run(spans)
        except SearchTooLongError as error:
            raise IngestError(
                "TOO_MANY_BAD_RECORDS",
                f"Flow {self.flow}: {len(error.bad_records)} bad records were found in one batch, and there "
                f"are more: {explained.message}",
                hint="so many look like a change of the producer or a mistake in the query; to quarantine "
                "them all the same, bound the batches by max_offsets_per_trigger",
            ) from error

    def _error_with_location(
        self, explained: TautochroneError, search: BadRecordSearch, spans: Sequence[Span]
    ) -> TautochroneError:
        try:
            first = search.run(spans)[:1]
        except SearchTooLongError:
            first = []
        for bad in first:
            return IngestError(
                bad.error.error_class,
                f"{bad.error.message.rstrip('.')} (record: {bad.location})",
                sqlstate=bad.error.sqlstate,
                hint=f'to set such records aside and go on: bad_records = "quarantine" below '
                f"[flows.{self.flow}] in tautochrone.toml",
            )
        return explained

    def _stage_bad(
        self, session: SparkSession, records: DataFrame, bad_records: Sequence[BadRecord], batch_id: int
    ) -> Staged:
        assert self.quarantine is not None
        reasons = session.createDataFrame(
            [(b.topic, b.partition, b.offset, b.error.error_class, b.reason) for b in bad_records], _REASONS
        )
        rows = records.join(sf.broadcast(reasons), ["topic", "partition", "offset"]).select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "key",
            "value",
            "headers",
            sf.lit(None).cast("string").alias("file"),
            "error_class",
            "reason",
            sf.lit(self.flow).alias("flow"),
            sf.lit(batch_id).cast("bigint").alias("batch"),
            sf.lit(None).cast("bigint").alias("line"),
        )
        staged = self.quarantine.stage(self.quarantine.fork(), rows)
        if staged.rows != len(bad_records):
            raise IngestError(
                "QUARANTINE_INCOMPLETE",
                f"Flow {self.flow}: {len(bad_records)} bad records were found, {staged.rows} could be set "
                "aside",
                hint="records vanished from the topic meanwhile; the batch is tried again",
                retryable=True,
            )
        return staged


def ranges_of(folder: CheckpointFolder, previous: SparkPosition | None, batch_id: int) -> tuple[str, str]:
    """Where a batch of a flow with one source begins and ends, in the words of the source.

    Raises:
        FileNotFoundError: the folder does not tell.
    """
    planned = folder.offsets(batch_id)
    first = folder.kafka_initial_offsets() if previous is None else source_offsets(previous.offsets)[0]
    if planned is None or first is None:
        raise FileNotFoundError(f"{folder.path}: no offsets of batch {batch_id}")
    return first, source_offsets(planned)[0]


def _of_the_data(explained: TautochroneError, error: Exception) -> bool:
    """`explained` is what `explain` made of `error`."""
    if isinstance(explained, OffsetsOutOfRangeError):
        return False
    return (
        explained.sqlstate.startswith(_OF_THE_DATA) or "PythonException" in f"{type(error).__name__}: {error}"
    )


def _spans(records: DataFrame) -> list[Span]:
    """The first and last offset of each partition."""
    ranges = records.groupBy("topic", "partition").agg(sf.min("offset"), sf.max("offset")).collect()
    return sorted(
        (Span(topic, part, low, high + 1) for topic, part, low, high in ranges),
        key=lambda span: (span.topic, span.partition),
    )


def _any_of(spans: Sequence[Span]) -> Column:
    """A condition: the record is in one of the spans."""
    single: dict[tuple[str, int], list[int]] = {}
    conditions = []
    for span in spans:
        if span.width == 1:
            single.setdefault((span.topic, span.partition), []).append(span.low)
        else:
            same_partition = (sf.col("topic") == span.topic) & (sf.col("partition") == span.partition)
            conditions.append(same_partition & sf.col("offset").between(span.low, span.high - 1))
    for (topic, partition), offsets in single.items():
        same_partition = (sf.col("topic") == topic) & (sf.col("partition") == partition)
        conditions.append(same_partition & sf.col("offset").isin(offsets))
    return reduce(or_, conditions, sf.lit(False))
