"""Adoption, relocation, revision, drops: what `taut adopt`, `relocate`, `revise`, `drop` and `rename` did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tautochrone.model.counts import counted
from tautochrone.model.events.base import Event, dataset_line, done_or_planned, short
from tautochrone.model.reason import Reason
from tautochrone.model.revision import RevisedTable

__all__ = [
    "Adopted",
    "DatasetDropped",
    "DatasetRenamed",
    "DropPart",
    "DropPartKind",
    "LakeAccepted",
    "NothingToAdopt",
    "PipelineRenamed",
    "Relocated",
    "RelocationOutside",
    "Revised",
    "Revision",
    "RevisionConfirmed",
    "RevisionLeft",
    "RevisionPlanned",
    "RevisionWaiting",
    "Surveyed",
    "TableCopied",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed(Event):
    """What `taut adopt` would do with a table."""

    dataset: str
    action: str
    reason: Reason
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopied(Event):
    """`taut adopt --from-warehouse` copies a table into the lake, or would with `--dry-run`."""

    dataset: str
    files: int
    bytes: int
    dry_run: bool

    def text(self) -> str:
        copied = done_or_planned("copied", dry_run=self.dry_run)
        return dataset_line(
            self.dataset, f"{copied}: {counted(self.files, 'file')}, {counted(self.bytes, 'byte')}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted(Event):
    """A table was taken over."""

    dataset: str
    action: str
    version: str
    reason: Reason

    def text(self) -> str:
        outcome = "left to be rebuilt" if self.action == "rebuild" else "taken over"
        return dataset_line(self.dataset, f"{outcome} at version {self.version}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToAdopt(Event):
    """There is no table to take over."""

    job: str
    reason: Reason

    def text(self) -> str:
        return f"nothing to take over for job {self.job}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRenamed(Event):
    """Tables belong to the pipeline under its new name."""

    pipeline: str
    before: str
    jobs: int
    tables: int

    def text(self) -> str:
        return f"{counted(self.tables, 'table')} of pipeline {self.before} now in pipeline {self.pipeline}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocated(Event):
    """A copied storage is one of its own."""

    storage: str
    before: Sequence[str]
    id: str
    tables: int
    source_lists: int

    def text(self) -> str:
        return (
            f"{self.storage} is a storage of its own now: {counted(self.tables, 'table')} and views, "
            f"{counted(self.source_lists, 'list')} of source files"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RelocationOutside(Event):
    """Files outside the storage were left alone."""

    table: str
    files: int
    sample: str
    reason: str

    def text(self) -> str:
        return dataset_line(
            self.table, f"{counted(self.files, 'file')} left alone, such as {self.sample}: {self.reason}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAccepted(Event):
    """The store takes the lake at its new address for the same one."""

    pipeline: str
    lake: str
    jobs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPlanned(Event):
    """What a revision would do."""

    to: int | None
    tables: Sequence[RevisedTable]
    revoked: tuple[int, ...]
    sinks: Sequence[str]
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionWaiting(Event):
    """A revision still keeps the old data."""

    revision: str
    state: str
    to: int | None
    tables: Sequence[RevisedTable]
    revoked: tuple[int, ...]
    sinks: Sequence[str]
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revised(Event):
    """A table was taken back."""

    revision: str
    dataset: str
    action: str
    version: str | None
    reason: Reason | str

    def text(self) -> str:
        return dataset_line(self.dataset, f"{self.action}  ({self.reason})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionLeft(Event):
    """A table is left to another job's run."""

    revision: str
    dataset: str
    job: str | None
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision(Event):
    """All tables of a revision are taken back."""

    revision: str
    to: int | None
    tables: int
    sinks: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return (
            f"revision {self.revision}: {counted(self.tables, 'table')}; the next run computes them again; "
            f"`taut revise --confirm {self.revision}` drops the old data"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionConfirmed(Event):
    """The old data of a revision was given up."""

    revision: str
    tables: int


class DropPartKind(StrEnum):
    """What a part of a dropped dataset is."""

    TABLE = "table"
    STATE = "state"
    STREAM_FOLDER = "stream folder"
    MIRROR = "table of a sink"
    RECORDS = "records"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPart(Event):
    """A part of a dataset that `taut drop` takes, or leaves. `bytes` where they are known."""

    dataset: str
    kind: DropPartKind
    name_of_part: str
    bytes: int | None = None
    stays: bool = False
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDropped(Event):
    """A dataset that left the project is gone, with `tables` tables of the lake."""

    dataset: str
    tables: int
    keeps_table: bool
    kept_as: Sequence[str] = ()
    """The names that somebody gave its tables after the drop was decided: these stay, with their files."""

    def text(self) -> str:
        stays = "; its table stays, and belongs to no pipeline" if self.keeps_table else ""
        if self.kept_as:
            stays += f"; what is called {', '.join(self.kept_as)} by now stays"
        return dataset_line(self.dataset, f"dropped{stays}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRenamed(Event):
    """A dataset goes on under the new name of its definition, with `tables` tables of the lake. `readers` are
    tables of the project that read it, `others` what reads it by its former name and has to be changed."""

    dataset: str
    before: str
    tables: int
    readers: Sequence[str]
    others: Sequence[str]
    sinks_with_both: Sequence[str] = ()
    """Sinks that get all rows under the new name and keep what they have under the old one."""

    def text(self) -> str:
        by_hand = f"; change what reads it besides: {', '.join(self.others)}" if self.others else ""
        if self.sinks_with_both:
            names = ", ".join(self.sinks_with_both)
            by_hand += f"; {names} get it anew, and keep what they have under the old name"
        return dataset_line(self.dataset, f"was {short(self.before)}, and goes on{by_hand}")
