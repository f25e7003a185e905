"""Files that a flow's file sources do not take in.

Three lists are compared: the files that exist, the files that the source's log says were planned, and the
files that a batch really read. No content is read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.errors import IngestError
from tautochrone.ingest.checkpoint_folder import CheckpointFolder
from tautochrone.ingest.folder_decision import source_offsets
from tautochrone.ingest.source_checks import SourceCheck
from tautochrone.ingest.stream_errors import diverged_error
from tautochrone.model import events
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.model.source import MAX_REPORTED_PATHS, SkippedFiles, SkipReason, Unsupported
from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.sources.registry import sources_of
from tautochrone.spark.sources.spark_source import FileListing

__all__ = ["SkippedFilesCheck", "skipped_files"]

_MIN_INTERVAL_S = 10.0
_INTERVAL_PER_LISTING = 20
"""Seconds until the next listing for each second that the last one took."""


def skipped_files(
    listed: Mapping[str, int], seen: Mapping[str, int], oldest_ms: int, *, by_name: bool
) -> dict[SkipReason, list[str]]:
    """Files that are there and whose content no batch took or will take.

    Args:
        listed: path → modification time in ms, as the files are now.
        seen: the same of those that were planned for a batch.
        oldest_ms: older files that were not seen are left out.
        by_name: files are told apart by their names alone.

    >>> skipped_files({"f/a": 2, "f/b": 5}, {"f/a": 1}, 0, by_name=False)
    {<SkipReason.REPLACED: 'REPLACED_IN_PLACE'>: ['f/a']}
    """
    names = {_name(path) for path in seen} if by_name else set()
    skipped: dict[SkipReason, list[str]] = {}
    for path, modified_ms in listed.items():
        if path in seen:
            if seen[path] != modified_ms:
                skipped.setdefault(SkipReason.REPLACED, []).append(path)
        elif _name(path) in names:
            skipped.setdefault(SkipReason.SAME_NAME, []).append(path)
        elif modified_ms < oldest_ms:
            skipped.setdefault(SkipReason.TOO_OLD, []).append(path)
    return skipped


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


@dataclass(slots=True)
class SkippedFilesCheck(SourceCheck):
    """What one flow's file sources skip.

    Args:
        stored: answers the skipped files that are stored for the flow.
        store: replaces them; files that were missing stay stored.
    """

    flow: str
    dataset: str
    emit: events.Emit
    stored: Callable[[], Sequence[SkippedFiles]]
    store: Callable[[Sequence[SkippedFiles]], None]
    _folder: CheckpointFolder | None = None
    _may_miss: bool = False
    _listing: FileListing | None = None
    _missing: list[str] = field(default_factory=list)
    _last_report: dict[SkipReason, list[str]] = field(default_factory=dict)
    _has_reported: bool = False
    _unchecked_reasons: set[Reason] = field(default_factory=set)
    _next_s: float = 0.0

    def started(
        self, session: SparkSession, rows: DataFrame, query: StreamingQuery, folder: CheckpointFolder
    ) -> None:
        """`query` runs over `rows` and keeps its logs in `folder`."""
        self._folder = folder
        listings = [source.file_listing(session, query) for source in sources_of(rows)]
        supported = [listing for listing in listings if not isinstance(listing, Unsupported)]
        # Each of these listings has the files of all sources of the query, so any of them will do.
        self._listing = supported[0] if supported else None
        self._may_miss = any(listing.may_miss_files for listing in supported)

    def before_batch(self, batch_id: int, previous: SparkPosition | None) -> None:
        """See `SourceCheck`: the batch that runs reads all files that were planned for it.

        Spark leaves out, without an error, a file that went away after it was planned.

        Raises:
            IngestError: `SOURCE_FILE_MISSING` (retryable), unless the reader ignores missing files;
                `FLOW_POSITIONS_DIVERGED`, the folder does not say which files were planned.
        """
        if self._listing is None:
            return
        try:
            missing = sorted(self._planned(batch_id, previous) - self._listing.read_by_batch())
        except (Py4JError, PySparkException) as error:
            self._report_unchecked(error)
            return
        except FileNotFoundError as error:
            raise diverged_error(
                self.flow, f"batch {batch_id} is planned with {error}, which is gone"
            ) from error
        if missing and not self._may_miss:
            and_others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise IngestError(
                "SOURCE_FILE_MISSING",
                f"Flow {self.flow} planned batch {batch_id} with {missing[0]}{and_others}, which went away "
                "before it was read",
                hint="put it back and the batch is read again; to go on without it set the reader's option "
                "ignoreMissingFiles (or spark.sql.files.ignoreMissingFiles) to true",
                retryable=True,
            )
        self._missing += missing

    def after_batch(self, previous: SparkPosition | None, position: SparkPosition) -> SparkPosition:
        """See `SourceCheck`: records files of the batch that are gone, if missing files are ignored."""
        self._record_missing(position.batch_id, previous)
        return position

    def _record_missing(self, batch_id: int, previous: SparkPosition | None) -> None:
        if self._listing is not None and self._may_miss:
            try:
                existing = {
                    path for source in self._listing.sources() for path in self._listing.listed(source)
                }
            except (Py4JError, PySparkException) as error:
                self._report_unchecked(error)
                return
            missing_paths = self._planned(batch_id, previous) - existing - {*self._missing}
            self._missing += sorted(missing_paths)

    def inspect(self, *, at_once: bool = False) -> None:
        """Compare what is there with what was taken, unless that was done a moment ago. One listing.

        Raises:
            FencedError: a newer owner exists.
        """
        if self._listing is None or (time.monotonic() < self._next_s and not at_once):
            return
        began = time.monotonic()
        try:
            skipped = self._compare(self._listing)
        except (Py4JError, PySparkException) as error:
            self._report_unchecked(error)
            self._next_s = time.monotonic() + _MIN_INTERVAL_S
            return
        took_s = time.monotonic() - began
        self._next_s = time.monotonic() + max(_MIN_INTERVAL_S, _INTERVAL_PER_LISTING * took_s)
        self._report(skipped)

    def _report_unchecked(self, error: Exception) -> None:
        text = (str(error).splitlines() or [""])[0]
        reason = Reason.of(ReasonCode.FILES_UNCHECKED, error_class=type(error).__name__, text=text)
        if reason not in self._unchecked_reasons:
            self._unchecked_reasons.add(reason)
            self.emit(events.SourceFilesUnchecked(flow=self.flow, dataset=self.dataset, reason=reason))

    def _compare(self, listing: FileListing) -> dict[SkipReason, list[str]]:
        skipped: dict[SkipReason, list[str]] = {}
        for source in listing.sources():
            # What was planned meanwhile must not look skipped: the log is read after the listing.
            listed = listing.listed(source)
            assert self._folder is not None
            seen = self._folder.seen_files(source.log)
            new = skipped_files(listed, seen, source.oldest_ms, by_name=source.by_name)
            for reason, paths in new.items():
                skipped[reason] = sorted([*skipped.get(reason, []), *paths])
        if self._missing:
            skipped[SkipReason.MISSING] = list(self._missing)
        return skipped

    def _report(self, skipped: dict[SkipReason, list[str]]) -> None:
        if skipped == self._last_report and self._has_reported:
            return
        for reason, paths in skipped.items():
            if paths != self._last_report.get(reason):
                self.emit(
                    events.SourceFilesSkipped(
                        flow=self.flow,
                        dataset=self.dataset,
                        reason=str(reason),
                        files=len(paths),
                        paths=paths[:MAX_REPORTED_PATHS],
                    )
                )
        new = [
            SkippedFiles(self.flow, reason, len(paths), tuple(paths[:MAX_REPORTED_PATHS]))
            for reason, paths in skipped.items()
        ]
        if self._has_reported or _differs(self.stored(), new):
            self.store(new)
        self._last_report, self._has_reported = skipped, True

    def _planned(self, batch_id: int, previous: SparkPosition | None) -> set[str]:
        assert self._listing is not None
        assert self._folder is not None
        ends = source_offsets(self._folder.offsets(batch_id) or "")
        starts = [] if previous is None else source_offsets(previous.offsets)
        planned: set[str] = set()
        for source in self._listing.sources():
            start = _log_offset(starts, source.number)
            end = _log_offset(ends, source.number)
            if end > start:
                planned |= self._folder.planned_files(source.log, start + 1, end)
        return planned


def _differs(stored: Sequence[SkippedFiles], new: Sequence[SkippedFiles]) -> bool:
    """Whether storing `new` would change anything: what is stored as missing stays."""
    before = {files.reason: files for files in stored}
    replaced = {reason for reason in before if reason is not SkipReason.MISSING}
    return not replaced <= {files.reason for files in new} or any(
        before.get(files.reason) != files
        if files.reason is not SkipReason.MISSING or files.reason not in before
        else not {*files.paths} <= {*before[files.reason].paths}
        for files in new
    )


def _log_offset(offsets: list[str], number: int) -> int:
    """The newest entry of a file source's log that the offsets include; -1: none."""
    if number >= len(offsets) or offsets[number].strip() == "-":
        return -1
    offset = json.loads(offsets[number])
    return int(offset["logOffset"] if isinstance(offset, dict) else offset)
