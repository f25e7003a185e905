"""The checkpoint folders of Structured Streaming queries: read one, or write it anew; and whose they are.

The layout of one is Spark's: `metadata` (the query id), `offsets/<batch>` (written before a batch runs),
`commits/<batch>` (written after it), `sources/<n>/…` (what each source remembers for itself: the file
source's list of files, Kafka's initial offsets), `state/`. The lake table is the truth; this folder is what
Spark needs to go on from there. It may be on any file system that Spark can reach, so its small text files
are read and written through Hadoop's API.

Each owner of the job runs a flow's query in a folder of its own:

    <flow>/<generation>-<fence>-<token>     ours: the job's fence, and a token that no other process has
    <flow>/<generation>                     Spark's own pipelines

A full refresh begins a new generation. An owner that was paused, and wakes up when a newer one exists, only
writes where nobody reads. What the newer one needs of an older folder it takes before its query starts: the
state under a new name, where the sources began as a copy; all else comes from the table's position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tautochrone.model.source_position import SparkPosition
from tautochrone.spark.jvm.driver_calls import driver_calls, joined_texts, split_texts

__all__ = ["CheckpointFolder", "Files", "FlowCheckpointFolders", "FolderName", "FolderState", "Planned"]


_RENAMES_WHOLE = frozenset({"file", "hdfs", "viewfs"})
"""Schemes of file systems on which a folder gets its new name at once, whatever is in it."""

_STORES_WHOLE = joined_texts(("s3a", "gs"))
"""Schemes of object stores that show a file when all of it is stored, over an older one at once."""

_WHOLE = ".whole"
"""A hidden file in a folder that is a copy: none of its files is missing."""


class Files:
    """Reads and writes whole UTF-8 files. Paths are absolute, with or without a scheme."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm: Any = session._jvm  # noqa: SLF001
        self._conf: Any = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
        self._calls = driver_calls()

    def _open(self, path: str) -> tuple[Any, Any]:
        target = self._jvm.org.apache.hadoop.fs.Path(path)
        return target.getFileSystem(self._conf), target

    def read(self, path: str) -> str | None:
        """The content, or None when there is no such file."""
        text: str | None = self._calls.read(self._conf, path)
        return text

    def write(self, path: str, text: str) -> None:
        """Write the file whole. Where a file is visible while it is written: under another name first, then
        renamed over the old one. The other name is used once: two processes that write one file never write
        into each other's."""
        name = f".{path.rsplit('/', 1)[-1]}.{uuid4().hex}.new"
        if not self._calls.write(self._conf, path, text, name, _STORES_WHOLE):
            raise OSError(f"{path} cannot be written: the file system does not rename {name}")

    def delete(self, path: str) -> None:
        """Delete a file or a folder with all in it; a missing one is fine.

        Raises:
            OSError: it is still there.
        """
        if not self._calls.delete(self._conf, path):
            raise OSError(f"{path} cannot be deleted: the file system keeps it")

    def exists(self, path: str) -> bool:
        return bool(self._calls.exists(self._conf, path))

    def is_local(self, path: str) -> bool:
        """Whether it is on this machine, and nobody has set another file system for local files."""
        return bool(self._calls.isLocal(self._conf, path))

    def renames_whole(self, path: str) -> bool:
        """Whether a folder there is renamed at once; object stores copy file by file."""
        system, target = self._open(path)
        return str(system.makeQualified(target).toUri().getScheme()) in _RENAMES_WHOLE

    def rename(self, path: str, to: str) -> None:
        """Give a folder another name; nothing may be there under it.

        Raises:
            FileNotFoundError: there is no such folder, or no longer.
        """
        system, source = self._open(path)
        target = self._jvm.org.apache.hadoop.fs.Path(to)
        try:
            if system.exists(source) and not system.exists(target) and system.rename(source, target):
                return
        except Py4JJavaError:
            if system.exists(source):
                raise
        raise FileNotFoundError(path)

    def move(self, path: str, to: str) -> None:
        """Give a folder another name, in a way that may die at any point. Repeatable: what is moved already
        is left alone, even where somebody made the folder `path` again.

        Where folders are not renamed at once, all files are copied, and a marker says that none is missing.
        """
        if not self.exists(path):
            return
        if self.renames_whole(path):
            if not self.exists(to):
                self.rename(path, to)
            return
        if not self.exists(f"{to}/{_WHOLE}"):
            self.delete(to)
            self.copy(path, to, self.stamps(path))
            self.write(f"{to}/{_WHOLE}", "")
        self.delete(path)

    def copy(self, path: str, to: str, names: Iterable[str]) -> None:
        """Copy files, by their names relative to the folder `path`, to the same names in the folder `to`."""
        system, source = self._open(path)
        _, target = self._open(to)
        below, copy = self._jvm.org.apache.hadoop.fs.Path, self._jvm.org.apache.hadoop.fs.FileUtil.copy
        for name in names:
            if not copy(system, below(source, name), system, below(target, name), False, True, self._conf):
                raise OSError(f"{path}/{name} cannot be copied to {to}")

    def names(self, path: str) -> list[str]:
        """Visible names in a folder, sorted; empty when there is no such folder."""
        return sorted(name for name in self._all_names(path) if not name.startswith("."))

    def is_empty(self, path: str) -> bool:
        """Whether there is no such folder, or nothing in it, hidden names included."""
        return not self._all_names(path)

    def _all_names(self, path: str) -> list[str]:
        return split_texts(str(self._calls.names(self._conf, path)))

    def stamps(self, path: str) -> dict[str, tuple[int, int]]:
        """Relative path → (modification time in ms, bytes) of the visible files below a folder."""
        texts = split_texts(str(self._calls.stamps(self._conf, path, True, "")))
        return {
            name: (int(modified), int(size))
            for name, modified, size in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
            if not name.rsplit("/", 1)[-1].startswith(".")
        }


_COMPACT = ".compact"
# Spark refuses to plan its first batch while anything is in these.
_EMPTY_BEFORE = ("offsets", "commits", "state")
# A commit file as Spark writes it for a query without watermark; the watermark that belongs to the
# batch itself stands in its offsets file.
_PLAIN_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
_REWRITING = "_rewriting"
"""A file that exists while the folder is written anew; then only the state in the folder can be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderState:
    """What the folder says. Batch ids count from 0; None means that there is none.

    `has_leftovers`: files are where Spark accepts none before it plans its first batch, because it was killed
    while it wrote them. `torn`: a process ended while it wrote the folder anew.
    """

    query_id: str | None
    planned: int | None
    finished: int | None
    has_leftovers: bool = False
    torn: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the folder says of a batch: its offsets, the files of its sources, and the text of those that are
    not archived yet. Two that are read at different times are equal when nobody wrote between them."""

    query_id: str
    batch_id: int
    offsets: str
    present: frozenset[str]
    fresh: Mapping[str, str]


class CheckpointFolder:
    """One query's folder at `path`; `archive` is where copies of its source files are kept."""

    def __init__(self, files: Files, path: str, archive: str) -> None:
        self._files = files
        self.path = path
        self.archive = archive
        self._archived: dict[str, tuple[int, int]] = {}
        self._stamps: dict[str, tuple[int, int]] = {}

    def state(self) -> FolderState:
        planned = self._newest("offsets")
        return FolderState(
            query_id=self.query_id,
            planned=planned,
            finished=self._newest("commits"),
            has_leftovers=planned is None
            and not all(self._files.is_empty(f"{self.path}/{log}") for log in _EMPTY_BEFORE),
            torn=self._files.exists(f"{self.path}/{_REWRITING}"),
        )

    def offsets(self, batch_id: int) -> str | None:
        return self._files.read(f"{self.path}/offsets/{batch_id}")

    def plan(self, batch_id: int) -> Planned:
        """What the batch was planned as.

        Raises:
            FileNotFoundError: the folder does not say.
        """
        query_id, offsets = self.query_id, self.offsets(batch_id)
        if query_id is None or offsets is None:
            raise FileNotFoundError(f"{self.path}: no metadata or no offsets of batch {batch_id}")
        # At any depth: Iceberg's source keeps its initial offset in `sources/<n>/offsets/0`.
        stamps = self._files.stamps(f"{self.path}/sources")
        fresh = {
            path: self._files.read(f"{self.path}/sources/{path}")
            for path, stamp in sorted(stamps.items())
            if self._archived.get(path) != stamp
        }
        # Spark deletes logs that a compacted one holds, also while they are read here.
        gone = {path for path, text in fresh.items() if text is None}
        self._stamps = {path: stamp for path, stamp in stamps.items() if path not in gone}
        return Planned(
            query_id=query_id,
            batch_id=batch_id,
            offsets=offsets,
            present=frozenset(self._stamps),
            fresh={path: text for path, text in fresh.items() if text is not None},
        )

    def position(self, planned: Planned, before: SparkPosition | None, *, stateful: bool) -> SparkPosition:
        """The position after the batch, archiving what the sources wrote since `before`.

        Raises:
            FileNotFoundError: the folder lacks a file of the sources, or the watermark of the batch before.
        """
        finished = self._newest("commits")
        commit = None if finished is None else self._required(f"commits/{finished}")
        return SparkPosition(
            query_id=planned.query_id,
            batch_id=planned.batch_id,
            offsets=planned.offsets,
            commit=commit or _PLAIN_COMMIT,
            source_files=self._archive_sources(planned, before),
            stateful=stateful,
        )

    def _required(self, path: str) -> str:
        text = self._files.read(f"{self.path}/{path}")
        if not text:
            raise FileNotFoundError(f"{self.path}/{path}")
        return text

    def mark_committed(self) -> None:
        """The table has the position of the last plan: its source files need not be archived again."""
        self._archived = self._stamps

    @property
    def query_id(self) -> str | None:
        """The query whose folder it is; None: no query has begun in it."""
        metadata = self._files.read(f"{self.path}/metadata")
        return None if metadata is None else str(json.loads(metadata)["id"])

    def holds_state_of(self, position: SparkPosition) -> bool:
        """Whether its state is the one after `position`, and not one after other rows under that number."""
        return (
            self.query_id == position.query_id
            and self.offsets(position.batch_id) == position.offsets
            and self.has_state(position.batch_id + 1)
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

    def rewrite(self, position: SparkPosition) -> None:
        """Make the folder say exactly what `position` says. A crash leaves a folder that is known to be torn,
        and is written again. Of a stateful flow the offsets stay that prove of which batches the state is."""
        self._files.write(f"{self.path}/{_REWRITING}", "")
        if position.stateful:
            for log in ("offsets", "commits"):
                self._forget_batches_after(log, position.batch_id)
            self._forget_state_after(position.batch_id + 1)
        else:
            for log in _EMPTY_BEFORE:
                self._files.delete(f"{self.path}/{log}")
        self._files.delete(f"{self.path}/sources")
        for name in position.source_files:
            text = self._files.read(f"{self.archive}/{name}")
            if text is None:
                raise FileNotFoundError(f"{self.archive}/{name}")
            for path, content in json.loads(text).items():
                self._files.write(f"{self.path}/sources/{path}", content)
        # What proves of which batches the state is must never be missing for a moment.
        if self.query_id != position.query_id:
            self._files.write(f"{self.path}/metadata", json.dumps({"id": position.query_id}))
        self._files.write(f"{self.path}/commits/{position.batch_id}", position.commit)
        if position.batch_id > 0 and self.offsets(position.batch_id - 1) is None:
            # Spark refuses a log that begins with its newest batch; of the one before, which was
            # committed, only the existence counts.
            self._files.write(f"{self.path}/offsets/{position.batch_id - 1}", position.offsets)
        if self.offsets(position.batch_id) != position.offsets:
            self._files.write(f"{self.path}/offsets/{position.batch_id}", position.offsets)
        self._files.delete(f"{self.path}/{_REWRITING}")

    def copy_start_of(self, other: CheckpointFolder, *, planned: bool) -> None:
        """Begin where the sources of `other` began, of which no batch is in the table; with its first batch
        as it was `planned` there. `metadata` goes last: without it nothing has begun."""
        query_id = other.query_id
        if query_id is None:
            return
        self._files.delete(self.path)
        # Spark writes what its sources remember before the offsets of a batch: read the other way round.
        first = other.offsets(0) if planned else None
        for path in self._files.stamps(f"{other.path}/sources"):
            text = self._files.read(f"{other.path}/sources/{path}")
            if text is not None:
                self._files.write(f"{self.path}/sources/{path}", text)
        if first is not None:
            self._files.write(f"{self.path}/offsets/0", first)
        self._files.write(f"{self.path}/metadata", json.dumps({"id": query_id}))

    @property
    def is_local(self) -> bool:
        return self._files.is_local(self.path)

    @property
    def can_be_renamed(self) -> bool:
        """Whether the file system gives a folder its new name at once."""
        return self._files.renames_whole(self.path)

    def size(self) -> tuple[int, int]:
        """How many files are in it, and their bytes."""
        stamps = self._files.stamps(self.path)
        return len(stamps), sum(size for _, size in stamps.values())

    def move_from(self, other: CheckpointFolder) -> None:
        """Become what `other` is, with its state: by a new name, or a copy where folders cannot be renamed.

        Raises:
            FileNotFoundError: `other` is not there any more.
        """
        self._files.delete(self.path)
        if self.can_be_renamed:
            self._files.rename(other.path, self.path)
        else:
            # `metadata` goes last: without it nobody takes the copy for a whole one.
            names = sorted(self._files.stamps(other.path), key=lambda name: (name == "metadata", name))
            self._files.copy(other.path, self.path, names)

    def correct_schema_paths(self) -> None:
        """Put this folder's name into the paths of state schemas, which contain the name of the folder that
        the state was moved from."""
        parent, name = self.path.rsplit("/", 1)
        flow = parent.rsplit("/", 1)[-1]
        older = re.compile(rf"(/{re.escape(flow)}/)[^/]+(/state/)")
        for path in self._files.stamps(f"{self.path}/state"):
            if "/_metadata/v2/" not in f"/{path}":
                continue
            file = f"{self.path}/state/{path}"
            text = self._files.read(file) or ""
            corrected = older.sub(rf"\g<1>{name}\g<2>", text)
            if corrected != text:
                self._files.write(file, corrected)

    def iceberg_initial_offsets(self) -> Mapping[int, str]:
        """What Iceberg's sources remember as their initial offsets: number of the source → offset."""
        numbers = [int(name) for name in self._files.names(f"{self.path}/sources") if name.isdigit()]
        texts = {number: self._files.read(self._initial_offset_file(number)) for number in numbers}
        return {number: text for number, text in texts.items() if text is not None}

    def kafka_initial_offsets(self) -> str | None:
        """Where Kafka's source began, as JSON, when it is the query's first source."""
        text = self._files.read(f"{self.path}/sources/0/0")
        return None if text is None else text.strip().splitlines()[-1]

    def seen_files(self, source: int) -> dict[str, int]:
        """All files that a file source planned for batches: URL-encoded path → modification time in ms."""
        names = self._files.names(f"{self.path}/sources/{source}")
        logs = sorted(_needed(f"{source}/{name}" for name in names), key=_log_number)
        return {entry["path"]: int(entry["timestamp"]) for log in logs for entry in self._entries(log)}

    def planned_files(self, source: int, first: int, last: int) -> set[str]:
        """The files in a file source's log from entry `first` to `last`, URL-encoded.

        Raises:
            FileNotFoundError: the folder lacks an entry.
        """
        paths: set[str] = set()
        for number in range(first, last + 1):
            plain = self._entries(f"{source}/{number}") or self._entries(f"{source}/{number}{_COMPACT}")
            if not plain:
                raise FileNotFoundError(f"{self.path}/sources/{source}/{number}")
            paths |= {entry["path"] for entry in plain if entry["batchId"] == number}
        return paths

    def _entries(self, log: str) -> list[dict[str, Any]]:
        text = self._files.read(f"{self.path}/sources/{log}") or ""
        # The first line is the version of the log's format.
        return [json.loads(line) for line in text.splitlines()[1:]]

    def set_iceberg_initial_offsets(self, offsets: Mapping[int, str]) -> None:
        """Put initial offsets where Iceberg's sources look for them."""
        for number, offset in offsets.items():
            self._files.write(self._initial_offset_file(number), offset)

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

    def _forget_batches_after(self, log: str, batch_id: int) -> None:
        for name in self._files.names(f"{self.path}/{log}"):
            if name.isdigit() and int(name) > batch_id:
                self._files.delete(f"{self.path}/{log}/{name}")

    def _initial_offset_file(self, source: int) -> str:
        return f"{self.path}/sources/{source}/offsets/0"

    def _newest(self, log: str) -> int | None:
        batches = [int(name) for name in self._files.names(f"{self.path}/{log}") if name.isdigit()]
        return max(batches, default=None)

    def _archive_sources(self, planned: Planned, last: SparkPosition | None) -> tuple[str, ...]:
        before = () if last is None else last.source_files
        content = dict(planned.fresh)
        if not content:
            return before
        if any(path.endswith(_COMPACT) for path in content):
            # A compacted log holds all that came before it: start the archive over, or it grows for ever.
            needed, before = _needed(planned.present), ()
            content = {
                path: content[path] if path in content else self._required(f"sources/{path}")
                for path in sorted(needed)
            }
        elif len(content) == len(planned.present):
            # These are all source files: earlier archives are not needed.
            before = ()
        text = json.dumps(content)
        # Named after what is in it: an older owner that wakes up cannot put other content under the name.
        name = f"{planned.batch_id:012d}-{sha256(text.encode()).hexdigest()[:16]}.json"
        if self._files.read(f"{self.archive}/{name}") != text:
            self._files.write(f"{self.archive}/{name}", text)
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


_NAME = re.compile(r"(\d+)(?:-(\d+)-([0-9a-z]+))?")


@dataclass(frozen=True, slots=True, order=True)
class FolderName:
    """The name of a flow's folder. A fence of 0 is that of a folder without an owner.

    >>> str(FolderName.parse("0-12-3f9a"))
    '0-12-3f9a'
    >>> FolderName.parse("1").fence
    0
    """

    generation: int
    fence: int = 0
    token: str = ""

    @classmethod
    def parse(cls, text: str) -> FolderName | None:
        """None for what is no folder of a query."""
        match = _NAME.fullmatch(text)
        return None if match is None else cls(int(match[1]), int(match[2] or 0), match[3] or "")

    def __str__(self) -> str:
        return f"{self.generation}-{self.fence}-{self.token}" if self.token else str(self.generation)


class FlowCheckpointFolders:
    """The checkpoint folders of one flow: the owner's own, and those of older owners.

    Args:
        root: the flow's folder; its queries' folders are in it.
        archives: what its sources remember is archived in this one, by generation.
        fence: of the job; 0 for who only reads.
        fresh: a new generation begins.
    """

    def __init__(
        self, files: Files, root: str, archives: str, *, fence: int = 0, token: str = "", fresh: bool = False
    ) -> None:
        self._files = files
        self._root = root
        self._archives = archives
        # A folder may be gone while its archive still exists.
        archived = (FolderName.parse(name) for name in files.names(archives))
        names = [*self._names(), *(name for name in archived if name is not None)]
        newest = max((name.generation for name in names), default=-1)
        self._own = FolderName(newest + 1 if fresh else max(newest, 0), fence, token)

    @property
    def own(self) -> CheckpointFolder:
        return self._folder(self._own)

    @property
    def without_owner(self) -> CheckpointFolder:
        """Where Spark's own pipelines run the flow."""
        return self._folder(FolderName(self._own.generation))

    @property
    def root(self) -> str:
        return self._root

    def highest_fence(self) -> int:
        """The highest fence of all owners that have a folder here; 0 if none has."""
        return max((name.fence for name in self._names()), default=0)

    def older(self) -> list[CheckpointFolder]:
        """The folders of older owners in this generation, the newest first. Never one with the same fence:
        which of two processes with one fence is older is not known."""
        return [self._folder(name) for name in self._older() if name.generation == self._own.generation]

    @property
    def has_leftovers(self) -> bool:
        """Whether there are folders of older owners. They are not needed once `own` is complete."""
        return bool(self._older())

    def delete_leftovers(self) -> None:
        for name in self._older():
            self._files.delete(f"{self._root}/{name}")

    def _older(self) -> list[FolderName]:
        return sorted((name for name in self._names() if name.fence < self._own.fence), reverse=True)

    def _folder(self, name: FolderName) -> CheckpointFolder:
        return CheckpointFolder(self._files, f"{self._root}/{name}", f"{self._archives}/{name.generation}")

    def _names(self) -> Sequence[FolderName]:
        names = (FolderName.parse(text) for text in self._files.names(self._root))
        return [name for name in names if name is not None]
