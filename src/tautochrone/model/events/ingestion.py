"""Ingestion: flows, their batches, and what their sources hold that they do not take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tautochrone.model.counts import counted
from tautochrone.model.definitions import ExpectationCount
from tautochrone.model.events.base import Event, dataset_line, hint_lines, short, some_of, violated
from tautochrone.model.reason import Reason
from tautochrone.model.source import KeptLog

__all__ = [
    "Batch",
    "BatchSkipped",
    "BulkAgain",
    "BulkComplete",
    "ChangesThroughLog",
    "CopiedThroughLog",
    "CopyWaits",
    "EventsSetAside",
    "FilesNotTakenIn",
    "FilesTakenIn",
    "FlowFailed",
    "FlowFolder",
    "FlowFromSnapshot",
    "FlowRecovered",
    "FlowRestarted",
    "ForeignTableFollowed",
    "ForeignTableNotFollowed",
    "KafkaTopicIdsUnknown",
    "KafkaTopicRecreated",
    "LogKept",
    "LogWrittenBySpark",
    "MalformedNotCounted",
    "MalformedRecords",
    "Quarantined",
    "SchemaChangeIgnored",
    "SourceAlarm",
    "SourceFilesSkipped",
    "SourceFilesUnchecked",
    "SourceMoved",
    "SourceRowsLeftOut",
    "TableSetAside",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFolder(Event):
    """A flow's checkpoint folder was written anew, copied or moved."""

    flow: str
    dataset: str
    action: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFromSnapshot(Event):
    """A flow over a lake table begins with all rows of a version."""

    flow: str
    dataset: str
    sources: Sequence[str]
    reason: Reason

    def text(self) -> str:
        sources = f"sources {', '.join(self.sources)}"
        return dataset_line(self.dataset, f"flow from snapshot ({sources}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Event):
    """A batch was committed."""

    flow: str
    dataset: str
    batch: int
    rows: int
    expectations: Sequence[ExpectationCount] = ()
    """those of the table, each with `name`, `action`, and the rows of the batch that violate it as
    `violations` and `change`"""
    source_ms: int | None = None
    """of a change log, as the next four: when its newest transaction was committed"""
    chunks_left: int | None = None
    """of the first copy"""
    chunks_done: int | None = None
    """of the first copy"""
    waiting: Sequence[str] | None = None
    """relations whose copy is not complete"""
    lag: Mapping[str, int] | None = None
    """how far the log is ahead, by unit"""
    snapshot: str | None = None
    """of a [function that returns snapshots](auto-cdc.md#snapshots-of-a-function): the version that was
    taken"""

    def text(self) -> str:
        left = self.chunks_left
        copy = f", {left} chunk{'s' * (left != 1)} of the copy left" if left else ""
        behind = "".join(f", {count:,} {unit} behind" for unit, count in (self.lag or {}).items())
        ingested = f"ingested +{counted(self.rows, 'row')} (batch {self.batch}){violated(self.expectations)}"
        return dataset_line(self.dataset, f"{ingested}{copy}{behind}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSkipped(Event):
    """The table has this batch already."""

    flow: str
    dataset: str
    batch: int
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"batch skipped (batch {self.batch}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkComplete(Event):
    """The bulk of some tables of a database is complete and the log has passed it: their rows are states that
    the database had."""

    flow: str
    dataset: str
    relations: Sequence[str]

    def text(self) -> str:
        return dataset_line(self.dataset, f"copied: {some_of(self.relations)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAgain(Event):
    """Some tables of a database are copied again."""

    flow: str
    dataset: str
    relations: Sequence[str]
    reason: Reason

    def text(self) -> str:
        relations = f"relations {', '.join(self.relations)}"
        return dataset_line(self.dataset, f"bulk again ({relations}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChangeIgnored(Event):
    """A captured table has other columns in the database from here on, and the capture ignores it."""

    flow: str
    dataset: str
    relation: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSetAside(Event):
    """A table of a captured database cannot be captured as it is: the others go on, and what the lake has of
    it stays as it was; in each run."""

    flow: str
    dataset: str
    relation: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMoved(Event):
    """The log of a captured database is read from another server now, such as a promoted replica."""

    flow: str
    dataset: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyWaits(Event):
    """A copy of a database waits for transactions that are open there; repeated each minute."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"copy waits: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAlarm(Event):
    """Something at a source needs somebody's attention before it fails; repeated each minute."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"source alarm: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKept(Event):
    """How far a capture is behind its database, and what that keeps of its log for it; each minute."""

    flow: str
    dataset: str
    source: str
    phase: str
    """`copying`, `passing` or `following`, as in `taut sources`"""
    lag: Mapping[str, int]
    """how far the log is ahead of the table, by unit"""
    lag_ms: int | None
    """by at most so much the table is behind in time; null: not known"""
    kept: Sequence[KeptLog]
    """by each reader of the log, as in `taut sources`"""
    warnings: Sequence[Reason]
    """what fills the disk of the database; each is a `source_alarm` too"""
    problem: str | None = None
    """why the database did not say what it keeps"""

    def text(self) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesThroughLog(Event):
    """Changes of a table of a light capture go through the log table as rows, instead of into a file of their
    table; said again when the reason changes."""

    flow: str
    dataset: str
    relation: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"changes of {self.relation} go through the log: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedThroughLog(Event):
    """Rows of the first copy of a light capture go through the log table, since only Spark writes the files
    of their table; said again when the reason changes."""

    flow: str
    dataset: str
    relation: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"{self.relation} is copied through the log: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWrittenBySpark(Event):
    """A Spark job writes the batches of a change log, instead of the driver itself, or of the tasks that copy
    rows; said again when the reason changes."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"written by Spark: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined(Event):
    """Bad records were written into the quarantine table."""

    flow: str
    dataset: str
    quarantine_table: str = field(metadata={"json": "beside"})
    """the quarantine table"""
    batch: int
    records: int
    first: str
    """where the first of them is: of a record of a file the line, where it is known"""
    reason: Reason
    no_line: Reason | None = None
    """why the lines of some records of files are not known"""

    def text(self) -> str:
        unknown = "" if self.no_line is None else f" ({self.no_line})"
        return dataset_line(
            self.dataset,
            f"{counted(self.records, 'bad record')} set aside in {short(self.quarantine_table)}, "
            f"the first at {self.first}: {self.reason}{unknown}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsSetAside(Event):
    """Events of AUTO CDC without a key or a sequence value were left out of a merge."""

    flow: str
    dataset: str
    records: int
    """how many"""
    input: str
    """the table that has them"""
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"{counted(self.records, 'event')} set aside: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedRecords(Event):
    """A batch had records of files that the reader could not parse."""

    flow: str
    dataset: str
    batch: int
    records: int
    """all of them"""
    written: int
    """those whose rows have NULL values instead, as Spark writes them in PERMISSIVE mode"""
    dropped: int
    """those that the reader's mode DROPMALFORMED left out"""
    quarantined: int
    """those that were set aside"""
    files: Mapping[str, int]
    """by URL of the file how many of them; the 20 files that have most"""
    reason: Reason | None = None
    """why no file is named"""

    def text(self) -> str:
        fates = {"with NULL": self.written, "dropped": self.dropped, "set aside": self.quarantined}
        counts = ", ".join(f"{count:,} {fate}" for fate, count in fates.items() if count)
        named = [f"{file.rsplit('/', 1)[-1]} {count:,}" for file, count in self.files.items()]
        text = f"{counted(self.records, 'record')} did not parse ({counts})"
        where = some_of(named) if named else self.reason
        return dataset_line(self.dataset, f"{text}: {where}" if where else text)


@dataclass(frozen=True, slots=True, kw_only=True)
class MalformedNotCounted(Event):
    """Records of files that the reader cannot parse are not counted, because the rows would be others."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"records that do not parse are not counted: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFilesSkipped(Event):
    """Source files were left out."""

    flow: str
    dataset: str
    files: int
    paths: Sequence[str]
    """the first ones"""
    reason: str

    def text(self) -> str:
        paths = f"{', '.join(self.paths[:3])}{', …' if self.files > 3 else ''}"
        return dataset_line(
            self.dataset, f"{counted(self.files, 'source file')} skipped ({self.reason}): {paths}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesTakenIn(Event):
    """Files that views read in batch came, changed or vanished since the last cut."""

    files: str
    added: int
    changed: int
    removed: int
    rows_inserted: int
    rows_deleted: int
    malformed: int = 0
    """records of CSV and JSON that came and did not parse: their rows have NULL values instead"""

    def text(self) -> str:
        counts = f"{counted(self.added, 'file')} added, {self.changed:,} changed, {self.removed:,} removed"
        malformed = f"; {counted(self.malformed, 'record')} did not parse" if self.malformed else ""
        return f"  {self.files:<32} {counts}{malformed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesNotTakenIn(Event):
    """Views read files themselves and compare all rows until the next listing."""

    files: str
    reason: Reason

    def text(self) -> str:
        return f"  {self.files:<32} compared as a whole: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTableFollowed(Event):
    """The shadow table of a table of another lake format was brought to its newest version."""

    table: str
    version: int
    before: int | None
    files_added: int
    files_removed: int
    files_with_deletes: int

    def text(self) -> str:
        counts = f"{counted(self.files_added, 'file')} added, {self.files_removed:,} removed"
        deletes = f", {self.files_with_deletes:,} with deleted rows" if self.files_with_deletes else ""
        return f"  {self.table:<32} version {self.version}: {counts}{deletes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignTableNotFollowed(Event):
    """A table of another lake format could not be read or followed. Views over it fail until it can."""

    table: str
    reason: Reason

    def text(self) -> str:
        return f"  {self.table:<32} not followed: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFilesUnchecked(Event):
    """It could not be checked whether files were left out."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, str(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRowsLeftOut(Event):
    """A reader's options leave out rows without an error, or Kafka's records are gone that it goes on
    without."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, str(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopicRecreated(Event):
    """A topic was deleted and created again."""

    flow: str
    dataset: str
    topics: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"recreated topics {', '.join(self.topics)}: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTopicIdsUnknown(Event):
    """The broker does not tell topic ids."""

    flow: str
    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, str(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowFailed(Event):
    """A flow failed."""

    failure: ClassVar[bool] = True

    flow: str
    dataset: str
    error: str
    hint: str | None
    again_in_s: float | None

    def text(self) -> str:
        lines = [f"  flow {self.flow} FAILED: {self.error}", *hint_lines(self.hint)]
        lines += [f"    it is started again in {self.again_in_s:g} s"] if self.again_in_s else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRestarted(Event):
    """A flow that failed was started again."""

    flow: str
    dataset: str
    attempt: int
    reason: Reason

    def text(self) -> str:
        return f"  flow {self.flow} started again (attempt {self.attempt})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRecovered(Event):
    """A flow that failed has made progress."""

    flow: str
    dataset: str
    attempts: int

    def text(self) -> str:
        return f"  flow {self.flow} has recovered"
