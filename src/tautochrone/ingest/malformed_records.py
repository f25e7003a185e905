"""Records of a flow's files that do not parse: counted with each batch, or set aside in its quarantine table.

    1. the batch's good rows are staged, and Spark counts meanwhile    2. are there records to set aside?
    3. the batch's files are read again, only such records are kept    4. their lines are looked up
    5. they are staged, and committed with the good rows (`ingest.committer`)

Spark counts while it reads, so a batch without such records is read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tautochrone.errors import IngestError
from tautochrone.ingest.bad_records import SetAside
from tautochrone.model import events
from tautochrone.model.lake import LakeTable, Staged
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import MALFORMED_DROPPED, MALFORMED_WRITTEN, QUARANTINE_SCHEMA
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.sources.malformed import CountedRecords, CountedStream, counted_stream, records_by_file
from tautochrone.spark.sources.record_lines import TextLayout, with_lines

__all__ = ["MalformedRecords", "counted_violations"]

_ERROR_CLASS = "MALFORMED_RECORD"


@dataclass(slots=True)
class MalformedRecords:
    """Bound to one flow.

    Args:
        flow: its name.
        dataset: its target.
        emit: reports.
        quarantine: takes the records that do not parse; None: they stay where Spark leaves them.
    """

    flow: str
    dataset: str
    emit: events.Emit
    quarantine: LakeTable | None
    _session: SparkSession | None = None
    _stream: CountedStream | None = None
    _reported: set[str] = field(default_factory=set)

    def begin(self, session: SparkSession, rows: DataFrame) -> DataFrame:
        """The stream to query instead of `rows`, with the same rows but for those that are set aside."""
        self._session = session
        self._stream = counted_stream(session, rows, set_aside=self.quarantine is not None)
        for text in self._stream.uncounted:
            if text not in self._reported:
                self._reported.add(text)
                reason = Reason.of(ReasonCode.MALFORMED_NOT_COUNTED, text=text)
                self.emit(events.MalformedNotCounted(flow=self.flow, dataset=self.dataset, reason=reason))
        return self._stream.rows

    @property
    def counts_records(self) -> bool:
        """Whether a source of the stream is read so that such records are counted."""
        return self._stream is not None and self._stream.is_counted

    def counts(self, query: StreamingQuery) -> CountedRecords:
        """Of the batch that runs, after its rows were read. Where there are some, its files are read again to
        name those that have them."""
        if self._stream is None:
            return CountedRecords()
        counts = self._stream.counts(query)
        if not counts.written and not counts.dropped:
            return counts
        assert self._session is not None
        frames = [rows for rows, _ in self._stream.records(self._session, query, set_aside=False)]
        try:
            files = records_by_file(reduce(DataFrame.unionByName, frames)) if frames else {}
            return replace(counts, files=files)
        except (PySparkException, Py4JJavaError) as error:
            # A file that cannot be read any more costs names, not a batch whose rows are written.
            text = problem_of(error).message
            return replace(counts, unnamed=Reason.of(ReasonCode.FILES_NOT_READ_AGAIN, text=text))

    def set_aside(
        self, query: StreamingQuery, counts: CountedRecords, batch_id: int
    ) -> tuple[Staged, SetAside, Mapping[str, int]]:
        """Stage the records of the running batch that its rows are without; answers also how many are in each
        file.

        Raises:
            IngestError: `QUARANTINE_INCOMPLETE` (retryable), the files do not give the same records again.
        """
        assert self._stream is not None
        assert self._session is not None
        assert self.quarantine is not None
        frames = [
            _with_lines(self._session, rows, layout)
            for rows, layout in self._stream.records(self._session, query)
        ]
        records = reduce(DataFrame.unionByName, frames)
        staged = self.quarantine.stage(self.quarantine.fork(), _quarantined(records, self.flow, batch_id))
        if staged.rows != counts.set_aside:
            self.quarantine.discard(staged)
            raise IngestError(
                "QUARANTINE_INCOMPLETE",
                f"Flow {self.flow}: {counts.set_aside} records did not parse, {staged.rows} could be set "
                "aside",
                hint="files were changed while the batch read them; the batch is tried again",
                retryable=True,
            )
        without = records.groupBy("no_line").agg(sf.count("file").alias("n")).orderBy(sf.desc("n")).collect()
        unknown = {row["no_line"]: row["n"] for row in without if row["no_line"] is not None}
        first = (
            records.orderBy("file", sf.col("line").asc_nulls_last())
            .select("file", "line", _reason().alias("reason"))
            .first()
        )
        assert first is not None
        line = "" if first["line"] is None else f", line {first['line']:,}"
        set_aside = SetAside(
            staged.rows,
            f"file {first['file']}{line}",
            Reason.of(ReasonCode.RECORD_FAILED, error_class=_ERROR_CLASS, text=first["reason"]),
            None
            if not unknown
            else Reason.of(
                ReasonCode.LINES_NOT_KNOWN, records=sum(unknown.values()), text=next(iter(unknown))
            ),
        )
        return staged, set_aside, records_by_file(records)

    def report(self, counts: CountedRecords, batch_id: int) -> None:
        """Say how many records of a committed batch did not parse."""
        if counts.total:
            self.emit(
                events.MalformedRecords(
                    flow=self.flow,
                    dataset=self.dataset,
                    batch=batch_id,
                    records=counts.total,
                    written=counts.written,
                    dropped=counts.dropped,
                    quarantined=counts.set_aside,
                    reason=counts.unnamed,
                    files=counts.files,
                )
            )


def counted_violations(counts: CountedRecords) -> Mapping[str, int]:
    """The counts as a table's commit keeps them, without those that are 0."""
    named = {MALFORMED_WRITTEN: counts.written, MALFORMED_DROPPED: counts.dropped}
    return {name: count for name, count in named.items() if count}


def _with_lines(session: SparkSession, rows: DataFrame, layout: TextLayout) -> DataFrame:
    """The records with their lines, or with the reason why no line is known."""
    # Kept, because they are looked at several times, and files that are read again may have changed.
    records = rows.localCheckpoint(eager=True)
    try:
        return with_lines(session, records, layout).localCheckpoint(eager=True)
    except (PySparkException, Py4JJavaError) as error:
        # A file that cannot be read as text costs numbers, not a batch whose records are there.
        text = f"the file could not be read as text: {problem_of(error).message}"
        return records.select("*", sf.lit(None).cast("bigint").alias("line"), sf.lit(text).alias("no_line"))


def _reason() -> Column:
    no_value = sf.concat(sf.lit("the record does not parse: no value for "), sf.col("missing"))
    return sf.when(sf.col("missing") != "", no_value).otherwise("the record does not parse")


def _quarantined(records: DataFrame, flow: str, batch_id: int) -> DataFrame:
    """The records as rows of a quarantine table."""
    known = {
        "value": sf.encode(sf.col("record"), "UTF-8"),
        "file": sf.col("file"),
        "error_class": sf.lit(_ERROR_CLASS),
        "reason": _reason(),
        "flow": sf.lit(flow),
        "batch": sf.lit(batch_id),
        "line": sf.col("line"),
    }
    columns = StructType.fromDDL(QUARANTINE_SCHEMA)
    assert isinstance(columns, StructType)
    return records.select(
        *(
            known.get(column.name, sf.lit(None)).cast(column.dataType).alias(column.name)
            for column in columns.fields
        )
    )
