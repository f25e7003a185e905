"""The checkpoint folder of one Structured Streaming query: read it, or write it anew.

The layout is Spark's: `metadata` (the query id), `offsets/<batch>` (written before a batch runs),
`commits/<batch>` (written after it), `sources/<n>/…` (what each source remembers for itself: the file
source's list of files, Kafka's first offsets), `state/`. The lake table is the truth; this folder is
what Spark needs to go on from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tautochrone.ingest.files import Files
from tautochrone.model.lake import FlowPosition

__all__ = ["CheckpointFolder", "FolderState"]

_COMPACT = ".compact"
# Spark refuses to plan its first batch while anything is in these.
_EMPTY_BEFORE = ("offsets", "commits", "state")
# A commit file as Spark writes it for a query without watermark; the watermark that belongs to the
# batch itself stands in its offsets file.
_PLAIN_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """What the folder says. Batch ids count from 0; None means that there is none.

    `litter` are files where Spark wants none before it plans its first batch: what it was writing when it
    was killed.
    """

    query_id: str | None
    planned: int | None
    finished: int | None
    litter: bool = False


class CheckpointFolder:
    """One query's folder at `path`; `archive` is where copies of its source files are kept."""

    def __init__(self, files: Files, path: str, archive: str) -> None:
        self._files = files
        self.path = path
        self.archive = archive
        self._archived: dict[str, tuple[int, int]] = {}

    def state(self) -> FolderState:
        metadata = self._files.read(f"{self.path}/metadata")
        planned = self._newest("offsets")
        return FolderState(
            query_id=None if metadata is None else str(json.loads(metadata)["id"]),
            planned=planned,
            finished=self._newest("commits"),
            litter=planned is None
            and not all(self._files.is_empty(f"{self.path}/{log}") for log in _EMPTY_BEFORE),
        )

    def offsets(self, batch_id: int) -> str | None:
        return self._files.read(f"{self.path}/offsets/{batch_id}")

    def position(self, batch_id: int, known: FlowPosition | None, *, stateful: bool) -> FlowPosition:
        """The position after `batch_id`, archiving what the sources remember since `known`."""
        metadata = self._files.read(f"{self.path}/metadata")
        offsets = self.offsets(batch_id)
        if metadata is None or offsets is None:
            raise FileNotFoundError(f"{self.path}: no metadata or no offsets of batch {batch_id}")
        finished = self._newest("commits")
        commit = None if finished is None else self._files.read(f"{self.path}/commits/{finished}")
        return FlowPosition(
            query_id=str(json.loads(metadata)["id"]),
            batch_id=batch_id,
            offsets=offsets,
            commit=commit or _PLAIN_COMMIT,
            source_files=self._archive_sources(batch_id, known),
            stateful=stateful,
        )

    def has_state(self, version: int) -> bool:
        """Whether the state store holds `version` for every partition of operator 0."""
        root = f"{self.path}/state/0"
        partitions = [name for name in self._files.names(root) if name.isdigit()]
        if not partitions:
            return False
        for partition in partitions:
            folders = [f"{root}/{partition}"]
            # Stream-stream joins keep several stores per partition, each in a folder of its own;
            # `_metadata` beside the versions of partition 0 holds their schema.
            inner = self._files.names(folders[0])
            stores = [name for name in inner if "." not in name and not name.startswith("_")]
            folders = [f"{folders[0]}/{name}" for name in stores] or folders
            for folder in folders:
                if not any(
                    name.split(".")[0].split("_")[0] == str(version) for name in self._files.names(folder)
                ):
                    return False
        return True

    def rewrite(self, position: FlowPosition) -> None:
        """Make the folder say exactly what `position` says. `offsets` goes last: until it is there a
        crash leaves a folder that compares as gone and is written again."""
        self._files.delete(f"{self.path}/offsets")
        self._files.delete(f"{self.path}/commits")
        self._files.delete(f"{self.path}/sources")
        if position.stateful:
            self._forget_state_after(position.batch_id + 1)
        else:
            self._files.delete(f"{self.path}/state")
        for name in position.source_files:
            text = self._files.read(f"{self.archive}/{name}")
            if text is None:
                raise FileNotFoundError(f"{self.archive}/{name}")
            for path, content in json.loads(text).items():
                self._files.write(f"{self.path}/sources/{path}", content)
        self._files.write(f"{self.path}/metadata", json.dumps({"id": position.query_id}))
        self._files.write(f"{self.path}/commits/{position.batch_id}", position.commit)
        if position.batch_id > 0:
            # Spark refuses a log that begins with its newest batch; of the one before, which was
            # committed, only the existence counts.
            self._files.write(f"{self.path}/offsets/{position.batch_id - 1}", position.offsets)
        self._files.write(f"{self.path}/offsets/{position.batch_id}", position.offsets)

    def first_offsets(self) -> Mapping[int, str]:
        """What Iceberg's sources remember as their first offsets: number of the source → offset."""
        numbers = [int(name) for name in self._files.names(f"{self.path}/sources") if name.isdigit()]
        found = {number: self._files.read(self._first_offset(number)) for number in numbers}
        return {number: text for number, text in found.items() if text is not None}

    def initial_offsets(self) -> str | None:
        """Where Kafka's source began, as JSON, when it is the query's first source."""
        text = self._files.read(f"{self.path}/sources/0/0")
        return None if text is None else text.strip().splitlines()[-1]

    def seen_files(self, source: int) -> dict[str, int]:
        """All files that a file source planned for batches: URL-encoded path → modification time in ms."""
        names = self._files.names(f"{self.path}/sources/{source}")
        logs = sorted(_needed(f"{source}/{name}" for name in names), key=_log_number)
        return {entry["path"]: int(entry["timestamp"]) for log in logs for entry in self._entries(log)}

    def planned_files(self, source: int, first: int, last: int) -> set[str]:
        """The files in a file source's log from entry `first` to `last`, URL-encoded."""
        found: set[str] = set()
        for number in range(first, last + 1):
            plain = self._entries(f"{source}/{number}") or self._entries(f"{source}/{number}{_COMPACT}")
            found |= {entry["path"] for entry in plain if entry["batchId"] == number}
        return found

    def _entries(self, log: str) -> list[dict[str, Any]]:
        text = self._files.read(f"{self.path}/sources/{log}") or ""
        # The first line is the version of the log's format.
        return [json.loads(line) for line in text.splitlines()[1:]]

    def begin_at(self, offsets: Mapping[int, str]) -> None:
        """Put first offsets where Iceberg's sources look for them."""
        for number, offset in offsets.items():
            self._files.write(self._first_offset(number), offset)

    def sweep(self) -> None:
        """Remove what is left of a first batch that was never planned. Where the sources begin stays: a
        source that begins at the newest would begin somewhere else."""
        for log in _EMPTY_BEFORE:
            self._files.delete(f"{self.path}/{log}")

    def wipe(self) -> None:
        self._files.delete(self.path)

    def _forget_state_after(self, version: int) -> None:
        """A state that Spark saved whole later on would be taken for that of a batch that runs again."""
        for path in self._files.stamps(f"{self.path}/state"):
            *folders, name = path.split("/")
            number = name.split(".")[0].split("_")[0]
            described = any(folder.startswith("_") for folder in folders)
            if number.isdigit() and int(number) > version and not described:
                self._files.delete(f"{self.path}/state/{path}")

    def _first_offset(self, source: int) -> str:
        return f"{self.path}/sources/{source}/offsets/0"

    def _newest(self, log: str) -> int | None:
        batches = [int(name) for name in self._files.names(f"{self.path}/{log}") if name.isdigit()]
        return max(batches, default=None)

    def _archive_sources(self, batch_id: int, known: FlowPosition | None) -> tuple[str, ...]:
        before = () if known is None else known.source_files
        # At any depth: Iceberg's source keeps its first offset in `sources/<n>/offsets/0`.
        present = self._files.stamps(f"{self.path}/sources")
        fresh = {path for path, stamp in present.items() if self._archived.get(path) != stamp}
        if not fresh:
            return before
        if any(path.endswith(_COMPACT) for path in fresh):
            # A compacted log holds all that came before it: start the archive over, or it grows for ever.
            fresh, before = _needed(present), ()
        elif len(fresh) == len(present):
            # All there is: nothing of before is needed.
            before = ()
        name = f"{batch_id:012d}.json"
        content = {path: self._files.read(f"{self.path}/sources/{path}") or "" for path in sorted(fresh)}
        self._files.write(f"{self.archive}/{name}", json.dumps(content))
        self._archived = present
        return (*(old for old in before if old != name), name)


def _log_number(path: str) -> int:
    number = path.split("/", 1)[1].removesuffix(_COMPACT)
    return int(number) if number.isdigit() else -1


def _needed(paths: Iterable[str]) -> set[str]:
    """Source files that a restart reads: per source the newest compacted log and what follows it."""
    paths = list(paths)
    newest: dict[str, int] = {}
    for path in paths:
        source, name = path.split("/", 1)
        if name.endswith(_COMPACT):
            newest[source] = max(newest.get(source, -1), int(name.removesuffix(_COMPACT)))
    needed = set()
    for path in paths:
        source, name = path.split("/", 1)
        number = name.removesuffix(_COMPACT)
        limit = newest.get(source, -1)
        if not number.isdigit() or int(number) > limit or name == f"{limit}{_COMPACT}":
            needed.add(path)
    return needed
