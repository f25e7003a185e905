"""The run: Spark, definitions, who owns the job, and how it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tautochrone.model.events.base import Event, dataset_line, hint_lines, short, some_of
from tautochrone.model.reason import Reason

__all__ = [
    "Abort",
    "Catalog",
    "CatalogMapped",
    "ColumnsAdded",
    "ColumnsIgnored",
    "DatasetsRetired",
    "DefinitionWarning",
    "DefinitionsNotReloaded",
    "DefinitionsReloading",
    "FullRefresh",
    "Graph",
    "GraphDataset",
    "JarDownload",
    "OpenlineageFailed",
    "Recommit",
    "RootsOfTarget",
    "RootsPinLost",
    "Run",
    "RunNotRemembered",
    "SettingIgnored",
    "SinksOff",
    "SourceReadTwice",
    "SparkDied",
    "SparkRestarting",
    "Starting",
    "Stopping",
    "TableFormatMapped",
    "Takeover",
    "ViewNotPersisted",
    "WaitingForRun",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting(Event):
    """Spark is being started. A reason says why where nothing but sinks needs it."""

    pipeline: str
    master: str
    reason: Reason | None = None

    def text(self) -> str:
        why = "" if self.reason is None else f": {self.reason}"
        return f"pipeline {self.pipeline}: starting Spark on {self.master} (about 6 s){why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphDataset:
    """A dataset of the resolved definitions."""

    dataset: str
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph(Event):
    """The definitions were resolved."""

    datasets: Sequence[GraphDataset]

    def text(self) -> str:
        kinds = [entry.kind for entry in self.datasets]
        counts = ", ".join(
            f"{kinds.count(kind)} {kind}{'s' * (kinds.count(kind) > 1)}" for kind in sorted({*kinds})
        )
        return f"the definitions fit together: {counts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog(Event):
    """Checkpoints can be read here as an Iceberg REST catalog."""

    uri: str
    warehouse: str

    def text(self) -> str:
        return f"readable at one instant as Iceberg REST catalog {self.uri} (warehouse {self.warehouse})"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingForRun(Event):
    """Another process runs the job, and `--wait` was given."""

    job: str
    owner: str | None
    host: str | None
    pid: int | None
    since_ms: int | None
    wait_ms: int | None
    checkpoint: int | None
    reason: Reason

    def text(self) -> str:
        return f"waiting: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover(Event):
    """This run owns the job now."""

    job: str
    fence: int

    def text(self) -> str:
        return f"job {self.job} taken over with fence {self.fence}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommit(Event):
    """A batch that an earlier run had prepared was committed."""

    dataset: str
    rows: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort(Event):
    """A batch that an earlier run had prepared was deleted."""

    dataset: str
    rows: int
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class JarDownload(Event):
    """A jar that Spark needs is downloaded, once per machine."""

    artifact: str
    number: int
    total: int

    def text(self) -> str:
        return f"downloading jar {self.number} of {self.total}: {self.artifact}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetsRetired(Event):
    """Datasets that the project no longer defines: nothing writes their tables any more, which stay."""

    datasets: Sequence[str]

    def text(self) -> str:
        names = ", ".join(map(short, self.datasets))
        return f"no longer in the project: {names}; the tables stay until `taut drop` removes them"


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRefresh(Event):
    """A table is computed or read from the beginning."""

    dataset: str
    invalidates: Sequence[str]
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsAdded(Event):
    """A streaming table got new columns."""

    dataset: str
    columns: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"columns added (columns {', '.join(self.columns)}): {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnsIgnored(Event):
    """A captured table does not take columns of its database, or keeps some that it no longer has; in each
    run."""

    dataset: str
    columns: Sequence[str]
    """that it does not take"""
    absent: Sequence[str]
    """those that the database no longer has"""
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewNotPersisted(Event):
    """A persisted view could not be stored in the catalog."""

    dataset: str
    reason: Reason

    def text(self) -> str:
        return dataset_line(self.dataset, f"view not persisted: {self.reason}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionWarning(Event):
    """A part of a definition has another effect than its author may expect."""

    location: str
    reason: Reason

    def text(self) -> str:
        return f"warning: {self.location}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReadTwice(Event):
    """Two tables are fed from one source by queries of their own."""

    source: str
    datasets: Sequence[str]
    locations: Sequence[str]
    reason: str
    hint: str

    def text(self) -> str:
        datasets = ", ".join(map(short, self.datasets))
        return f"warning: {datasets} ({', '.join(self.locations)}): {self.reason}\n  hint: {self.hint}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNotRemembered(Event):
    """The next run starts Spark even if nothing changes until then."""

    reason: Reason

    def text(self) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingIgnored(Event):
    """A [Spark setting](catalogs.md#settings-that-do-not-apply) of the project does not apply."""

    setting: str
    value: str
    origin: str
    reason: Reason

    def text(self) -> str:
        return f"warning: {self.setting} ({self.origin}) is ignored: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinksOff(Event):
    """Nothing is delivered to the project's sinks and publications in this [target](targets.md)."""

    sinks: Sequence[str]
    reason: Reason

    def text(self) -> str:
        return f"sinks are off: {self.reason} ({some_of(self.sinks)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootsOfTarget(Event):
    """A run reads the [ingested tables of another target](targets.md#roots-of-another-target) at one of its
    checkpoints."""

    target: str
    checkpoint: int
    datasets: Sequence[str]
    ingested: Sequence[str]
    """what this target ingests itself, since the other one has no such table"""
    reason: Reason

    def text(self) -> str:
        names = some_of([short(name) for name in self.datasets])
        line = f"checkpoint {self.checkpoint} of target {self.target}: {names or 'no table'} ({self.reason})"
        if not self.ingested:
            return line
        own = some_of([short(name) for name in self.ingested])
        return f"{line}\n  warning: target {self.target} has no {own}: this target ingests it itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class RootsPinLost(Event):
    """A run no longer keeps the checkpoint of [another target](targets.md#roots-of-another-target) that it
    reads: queries may fail until the next run."""

    target: str
    checkpoint: int
    reason: Reason

    def text(self) -> str:
        return f"warning: checkpoint {self.checkpoint} of target {self.target} is not kept: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormatMapped(Event):
    """A definition asks for another [format](catalogs.md#formats) than the lake's, and the table is written
    in the lake's."""

    dataset: str
    format: str | None
    location: str
    reason: Reason

    def text(self) -> str:
        return f"warning: {short(self.dataset)} ({self.location}): {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogMapped(Event):
    """A dataset's name begins with [a catalog](catalogs.md#datasets-in-several-catalogs) that no setting
    defines, and it becomes a database of the lake; once for each catalog."""

    catalog: str
    location: str
    reason: Reason

    def text(self) -> str:
        return f"warning: {self.location}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenlineageFailed(Event):
    """Lineage events could not be sent."""

    failure: ClassVar[bool] = True

    dropped: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkDied(Event):
    """Spark's Java process has ended."""

    failure: ClassVar[bool] = True

    error_class: str
    error: str
    hint: str | None

    def text(self) -> str:
        return "\n".join([self.error, *hint_lines(self.hint, "  ")])


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkRestarting(Event):
    """A continuous run starts a new Spark."""

    attempt: int
    in_s: float
    reason: str

    def text(self) -> str:
        return f"a new Spark is started in {self.in_s:g} s (attempt {self.attempt})"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsReloading(Event):
    """A source changed, or a new password for it is there: a continuous run ends its work and begins anew,
    with definitions as the source is now."""

    in_s: float
    error: str

    def text(self) -> str:
        return f"{self.error}\ndefinitions are loaded anew in {self.in_s:g} s, by a new start of this run"


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionsNotReloaded(Event):
    """A source or the file of its password changed, but definitions cannot be loaded as it is now: the run
    goes on with those that it has."""

    error: str
    hint: str | None

    def text(self) -> str:
        lines = [f"definitions cannot be loaded anew: {self.error}", *hint_lines(self.hint, "  ")]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping(Event):
    """The run ends after the work that is under way."""

    def text(self) -> str:
        return "stopping after what is under way (Ctrl-C again: at once)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Event):
    """The run has ended."""

    state: str
    problems: Sequence[str]

    def text(self) -> str:
        return f"run {self.state}"
