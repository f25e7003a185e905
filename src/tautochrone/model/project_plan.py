"""What the next run will do with a project's definitions, as values.

`runtime.planning` makes a plan from the definitions, the store and the metadata of tables, by the functions
that a run decides with. Whoever shows a plan, or acts on one, looks at codes and never at texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Any

from tautochrone.errors import TautochroneError
from tautochrone.model.checkpoint import RefreshMode
from tautochrone.model.definitions import DatasetKind
from tautochrone.model.names import CheckpointNumber, TableName
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "ColumnChange",
    "ColumnChangeKind",
    "Danger",
    "DangerKind",
    "DatasetPlan",
    "DefinitionChange",
    "FlowPlan",
    "FlowStart",
    "InvariantPlan",
    "PinnedVersions",
    "ProjectPlan",
    "Refusal",
    "SinkAction",
    "SinkPlan",
    "Treatment",
]


class DefinitionChange(StrEnum):
    """A definition beside the one that is deployed. How it is written does not count."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


class Treatment(StrEnum):
    """What the next run does with a dataset because of the definitions.

    `BUILD`: all rows are computed and replaced. `COMPARE`: all rows are computed, those that differ are
    written. `FOLLOW`: only the change of its inputs is computed. `CREATE`: a streaming table is created and
    its flows begin. `ALTER`: it gets columns. `CLEAR`: it is emptied and its flows begin anew. `LEAVE`:
    nothing but news of its sources. `RETIRE`: the job leaves its table as it is. `REFUSE`: see `Refusal`.
    """

    BUILD = "build"
    COMPARE = "compare"
    FOLLOW = "follow"
    CREATE = "create"
    ALTER = "alter"
    CLEAR = "clear"
    LEAVE = "leave"
    RETIRE = "retire"
    REFUSE = "refuse"


class ColumnChangeKind(StrEnum):
    """`KEPT`: the definition no longer has it, and a streaming table keeps it, NULL in new rows."""

    ADDED = "added"
    REMOVED = "removed"
    KEPT = "kept"
    RETYPED = "retyped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnChange:
    """A column that comes, goes or changes its type; types in Spark's spelling, None where there is none."""

    name: str
    kind: ColumnChangeKind
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error that the next run will end with, or that its dataset, flow or sink will get.

    Attributes:
        ends_run: nothing is refreshed; otherwise everything that does not depend on the subject goes on.
        is_certain: whether it happens in any case, or only if rows of an input turn out to be others.
    """

    error_class: str
    text: str
    hint: str | None = None
    location: str | None = None
    ends_run: bool = False
    is_certain: bool = True

    @classmethod
    def of(cls, error: TautochroneError, *, ends_run: bool = False, is_certain: bool = True) -> Refusal:
        """What a run would say of an error."""
        return cls(
            error_class=error.error_class,
            text=error.message,
            hint=error.hint,
            location=error.location,
            ends_run=ends_run,
            is_certain=is_certain,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPlan:
    """What becomes of one dataset.

    Attributes:
        mode: of its refresh in the next run, if its sources have no news; None: there is no refresh.
        reason: why.
        is_conditional: it happens only if rows of an input turn out to be others; otherwise the refresh is
            `no_data`.
        is_news: the refresh has nothing to do with definitions: an input has news already, or cannot tell.
        causes: its inputs that change because of definitions.
        parts: of the definition that differ, as `project.identity.changed_parts` names them.
        difference: of the normalised text, as lines of a unified difference; empty where only what the text
            evaluates to differs. None: the text with which the rows were computed is not known.
        rows: that its table has now; None: it has none yet, or does not tell.
        duration_ms: of its newest refresh that computed all rows, as far as the history knows one.
        states: companion tables of its state, which are built anew with it.
        sinks: names of the sinks and publications that get its change.
        renamed_from: a dataset that goes and had the same definition.
    """

    dataset: TableName
    kind: DatasetKind
    change: DefinitionChange
    treatment: Treatment
    reason: Reason
    mode: RefreshMode | None = None
    is_conditional: bool = False
    is_news: bool = False
    causes: tuple[TableName, ...] = ()
    parts: tuple[str, ...] = ()
    difference: tuple[str, ...] | None = ()
    columns: tuple[ColumnChange, ...] = ()
    rows: int | None = None
    duration_ms: int | None = None
    states: tuple[TableName, ...] = ()
    sinks: tuple[str, ...] = ()
    refusal: Refusal | None = None
    renamed_from: TableName | None = None
    location: str | None = None

    @property
    def same_text_cause(self) -> str:
        """What changed where the text did not, half a sentence."""
        causes = [_CAUSES[part] for part in self.parts if part in _CAUSES]
        return "; ".join(causes) or "what it reads or calls gives another query"

    @property
    def is_changed(self) -> bool:
        """Whether the next run does anything with it that it would not do with the deployed definitions."""
        if self.change is not DefinitionChange.UNCHANGED or self.refusal is not None:
            return True
        return self.treatment is not Treatment.LEAVE and not self.is_news


_CAUSES = {
    "query": "what it reads or calls when it is evaluated (a file, a variable, a function) gives another one",
    "functions": "a Python function that runs in it is another, or calls one that is",
    "settings": "a Spark setting that decides its rows is another",
    "inputs": "columns that it reads have other types",
}
"""By part of a definition."""


class FlowStart(StrEnum):
    """What becomes of a flow that does not go on. `LOST`: nothing reads on from its position, which stays in
    the table for a flow of this name."""

    BEGINS = "begins"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlan:
    """What becomes of a flow into a streaming table that exists."""

    flow: str
    dataset: TableName
    start: FlowStart
    reason: Reason
    location: str | None = None


class SinkAction(StrEnum):
    """`SEND_ALL`: all rows of some tables are sent. `SEND_CHANGES`: what changes. `RETIRE`: nobody delivers
    to it any more, and what it shows stays."""

    SEND_ALL = "send all"
    SEND_CHANGES = "send changes"
    LEAVE = "leave"
    RETIRE = "retire"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """What becomes of a sink or of a publication.

    Attributes:
        sent_whole: tables of which all rows are sent, with the reason.
        changed: tables of which the change is sent.
    """

    sink: str
    format: str
    change: DefinitionChange
    action: SinkAction
    reason: Reason
    is_publication: bool = False
    sent_whole: Mapping[TableName, Reason] = field(default_factory=dict)
    changed: tuple[TableName, ...] = ()
    refusal: Refusal | None = None
    location: str | None = None

    @property
    def is_changed(self) -> bool:
        """Whether it is another sink than the deployed one, or is refused."""
        return self.change is not DefinitionChange.UNCHANGED or self.refusal is not None

    @property
    def is_rebuilt(self) -> bool:
        """Whether all rows of a table are sent that it has already."""
        return any(reason.code is ReasonCode.CHANGES_UNKNOWN for reason in self.sent_whole.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantPlan:
    """An invariant that comes, changes or goes: the next checkpoint is published only if it holds."""

    invariant: str
    change: DefinitionChange
    location: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedVersions:
    """A reader's pin that keeps old versions of tables which the next run rewrites (epoch milliseconds)."""

    owner: str
    checkpoint: CheckpointNumber | None
    expires_at_ms: int
    datasets: tuple[TableName, ...]


class DangerKind(StrEnum):
    """What cannot be taken back, or stops something. The worst first."""

    RUN_REFUSED = "run refused"
    DATASET_REFUSED = "dataset refused"
    SINK_REFUSED = "sink refused"
    DATASET_RETIRED = "dataset retired"
    POSITION_LOST = "position lost"
    SINK_RETIRED = "sink retired"
    SINK_REBUILT = "sink rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Danger:
    """One dangerous part of a plan; `text` is a sentence for people."""

    kind: DangerKind
    subject: str
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPlan:
    """What the next run of a job does.

    Attributes:
        checkpoint: the newest published one that the plan starts from; None: nothing was published yet.
        datasets: of the job in the order of the graph, then those that go.
        flows: those into existing tables that begin, or whose position nothing reads on from.
        is_compared: whether definitions were evaluated. Otherwise the files are those of the last run.
    """

    job: str
    checkpoint: CheckpointNumber | None = None
    datasets: tuple[DatasetPlan, ...] = ()
    flows: tuple[FlowPlan, ...] = ()
    sinks: tuple[SinkPlan, ...] = ()
    invariants: tuple[InvariantPlan, ...] = ()
    pins: tuple[PinnedVersions, ...] = ()
    is_compared: bool = True

    @property
    def has_changes(self) -> bool:
        """Whether the next run does more than take news of sources."""
        sinks = any(sink.is_changed for sink in self.sinks)
        return bool(self.flows or self.invariants or sinks or any(d.is_changed for d in self.datasets))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """What the next run will refuse, those that end it first."""
        planned: list[DatasetPlan | SinkPlan] = [*self.datasets, *self.sinks]
        refusals = [part.refusal for part in planned if part.refusal is not None]
        return tuple(sorted(refusals, key=lambda refusal: (not refusal.ends_run, not refusal.is_certain)))

    @property
    def dangers(self) -> tuple[Danger, ...]:
        """The dangerous parts, the worst first."""
        order = list(DangerKind)
        return tuple(sorted(self._dangers(), key=lambda danger: order.index(danger.kind)))

    def dataset(self, name: TableName) -> DatasetPlan | None:
        """What becomes of a dataset; None: the plan does not have it."""
        return next((planned for planned in self.datasets if planned.dataset == name), None)

    def as_json(self) -> dict[str, Any]:
        """The plan as JSON values; reasons with their codes and parameters."""
        value: dict[str, Any] = _as_json(self)
        return {
            **value,
            "has_changes": self.has_changes,
            "dangers": [_as_json(danger) for danger in self.dangers],
        }

    def _dangers(self) -> Iterator[Danger]:
        for planned in self.datasets:
            name = str(planned.dataset)
            if planned.refusal is not None:
                ends_run = planned.refusal.ends_run
                kind = DangerKind.RUN_REFUSED if ends_run else DangerKind.DATASET_REFUSED
                yield _refused(kind, name, planned.refusal)
            elif planned.change is DefinitionChange.REMOVED:
                yield Danger(kind=DangerKind.DATASET_RETIRED, subject=name, text=str(planned.reason))
        for flow in self.flows:
            if flow.start is FlowStart.LOST:
                yield Danger(kind=DangerKind.POSITION_LOST, subject=flow.flow, text=str(flow.reason))
        for sink in self.sinks:
            if sink.refusal is not None:
                yield _refused(DangerKind.SINK_REFUSED, sink.sink, sink.refusal)
            elif sink.action is SinkAction.RETIRE:
                yield Danger(kind=DangerKind.SINK_RETIRED, subject=sink.sink, text=str(sink.reason))
            elif sink.is_rebuilt:
                yield Danger(kind=DangerKind.SINK_REBUILT, subject=sink.sink, text=str(sink.reason))


def _refused(kind: DangerKind, subject: str, refusal: Refusal) -> Danger:
    text = f"[{refusal.error_class}] {refusal.text}"
    if not refusal.is_certain:
        text = f"if rows of an input turn out to be others: {text}"
    return Danger(kind=kind, subject=subject, text=text, hint=refusal.hint)


def _as_json(value: object) -> Any:
    if isinstance(value, Reason):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, TableName | type):
        return {part.name: _as_json(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, bool | int):
        return value
    return str(value)
