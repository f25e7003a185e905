"""The timeline of a Hudi table that others write: which instants are completed, and what they say.

Hudi's format: https://hudi.apache.org/tech-specs. An instant is a time and an action. It is requested, then
inflight, then completed, each by a file of its own in the folder of the timeline. Up to table version 6 the
folder is `.hoodie` and the metadata of completed instants is JSON; from version 8 on it is
`.hoodie/timeline`, the metadata is Avro, and the name of a completed instant has the time of completion.

Older instants are archived. Their files are not read: a base file that is older than the timeline is one of a
completed instant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tautochrone.sources.damage import DAMAGED, avro_records, text_of
from tautochrone.sources.storage import Storage, StoredFile

__all__ = [
    "HudiTimeline",
    "Instant",
    "TimelineError",
    "TimelineState",
    "properties_of",
    "replaced_groups",
]

_CHANGING = frozenset({"commit", "deltacommit", "replacecommit"})
"""Actions whose files are those of the table, once they are completed."""
_TAKING_BACK = frozenset({"rollback", "restore"})
"""Actions that may remove completed instants."""
_REMOVING_FILES = frozenset({"clean", *_TAKING_BACK})
_INSTANT = re.compile(r"(\d{14,17})(?:_(\d{14,17}))?\.([a-z]+)(?:\.(requested|inflight))?")
_SECOND = len("yyyyMMddHHmmss")
_AVRO = b"Obj\x01"
_CLUSTERING = "CLUSTER"


class TimelineError(Exception):
    """The timeline is damaged, or has something that is not understood."""


@dataclass(frozen=True, slots=True, order=True)
class Instant:
    """A completed instant.

    Attributes:
        time: of the request, which base files have in their names. Times are compared as texts.
        completed: the time of the completion, as digits from the year to the millisecond.
        name: of its file.
    """

    time: str
    completed: str
    action: str
    name: str


@dataclass(frozen=True, slots=True)
class TimelineState:
    """What the timeline has at a moment.

    Attributes:
        instants: completed ones that may change rows, by time.
        taken_back: when an instant was last taken back, or files of one that failed; empty: never.
        pending: times of instants that are not completed.
        removing: names of instants that remove files; some of them may be under way.
    """

    instants: tuple[Instant, ...]
    taken_back: str
    pending: frozenset[str]
    removing: frozenset[str]

    @property
    def stamp(self) -> str:
        """Another one with each instant that may change rows: the greatest time of a completion, the instants
        completed in that second, because some storages know times to the second only, and `taken_back`."""
        newest = max((each.completed for each in self.instants), default="")
        times = [each.time for each in self.instants if each.completed[:_SECOND] == newest[:_SECOND]]
        return f"{newest}/{','.join(times)}/{self.taken_back}"

    def later_than(self, stamp: str) -> list[Instant] | None:
        """The instants completed since a stamp; None: some of them may be archived, or were taken back."""
        newest, times, taken_back = stamp.split("/")
        is_known = any(each.completed <= newest for each in self.instants)
        if not is_known or taken_back != self.taken_back:
            return None
        return [
            each
            for each in self.instants
            if each.completed > newest
            or (each.completed[:_SECOND] == newest[:_SECOND] and each.time not in times.split(","))
        ]

    def is_committed(self, time: str) -> bool:
        """Whether the files of an instant are those of the table. What is older than all is archived."""
        if not self.instants or time in self.pending:
            return False
        return time < self.instants[0].time or any(each.time == time for each in self.instants)


class HudiTimeline:
    """The instants of a table.

    Args:
        folder: of the timeline, as Hadoop spells it.
        has_completion_times: names of completed instants have them.
    """

    def __init__(self, storage: Storage, folder: str, *, has_completion_times: bool) -> None:
        self._storage = storage
        self._folder = folder
        self._has_completion_times = has_completion_times
        self._metadata: dict[str, Mapping[str, Any]] = {}

    def state(self) -> TimelineState:
        """What the timeline has now.

        Raises:
            OSError: it cannot be listed.
        """
        files = self._storage.files(self._folder)
        matches = [(file, match) for file in files if (match := _INSTANT.fullmatch(file.path))]
        completed = [
            Instant(match[1], self._completion(file, match), match[3], file.path)
            for file, match in matches
            if match[4] is None and match[3] != "inflight"
        ]
        known = {each.time for each in completed}
        return TimelineState(
            tuple(sorted(each for each in completed if each.action in _CHANGING)),
            max((each.completed for each in completed if each.action in _TAKING_BACK), default=""),
            frozenset(match[1] for _, match in matches) - known,
            frozenset(file.path for file, match in matches if match[3] in _REMOVING_FILES),
        )

    def _completion(self, file: StoredFile, match: re.Match[str]) -> str:
        if self._has_completion_times and match[2] is not None:
            return match[2]
        moment = datetime.fromtimestamp(file.modified_ms / 1000, UTC)
        return f"{moment:%Y%m%d%H%M%S}{file.modified_ms % 1000:03d}"

    def metadata(self, instants: Iterable[Instant]) -> Mapping[str, Mapping[str, Any]]:
        """What completed instants say, by name. What was read once is remembered.

        Raises:
            TimelineError, DamagedFileError, CodecError: it is damaged, or compressed in an unknown way.
            OSError: it cannot be read; it may be archived meanwhile.
        """
        self._metadata = {
            each.name: self._metadata.get(each.name) or self._read(each.name) for each in instants
        }
        return self._metadata

    def is_clustering(self, instant: Instant, *, has_meta_columns: bool) -> bool:
        """Whether an instant has the same rows in other files, meta columns included.

        Raises:
            TimelineError, DamagedFileError, CodecError, OSError: as of `metadata`.
        """
        metadata = self._metadata[instant.name]
        if instant.action != "replacecommit" or metadata.get("operationType") != _CLUSTERING:
            return False
        if not has_meta_columns:
            return True
        for action in ("clustering", "replacecommit"):
            try:
                plan = self._read(f"{instant.time}.{action}.requested").get("clusteringPlan") or {}
            except FileNotFoundError:
                continue
            return bool(plan.get("preserveHoodieMetadata"))
        return False

    def _read(self, name: str) -> Mapping[str, Any]:
        path = f"{self._folder}/{name}"
        content = self._storage.read(path)
        try:
            is_avro = content.startswith(_AVRO)
            return _as_record(avro_records(path, content)[0] if is_avro else json.loads(content))
        except DAMAGED as error:
            raise TimelineError(f"{path} is damaged: {text_of(error)}") from error


def _as_record(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it is no record")
    return value


def properties_of(text: str) -> dict[str, str]:
    r"""Java's properties, as `Properties.store` writes them.

    >>> properties_of("#of a table\nhoodie.table.name=a\\:b\n")
    {'hoodie.table.name': 'a:b'}
    """
    properties = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            match = re.match(r"\s*((?:\\.|[^=:\\])*)[=:]\s*(.*)", line)
            if match:
                properties[_unescaped(match[1].strip())] = _unescaped(match[2])
    return properties


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text)


def replaced_groups(metadata: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Partition and id of the file groups that instants replaced."""
    return {
        (partition, group)
        for each in metadata
        for partition, groups in (each.get("partitionToReplaceFileIds") or {}).items()
        for group in groups or ()
    }
