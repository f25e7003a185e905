"""Checkpoints as values, how datasets are refreshed to them, and what decides about them: aligned cuts and
invariants.

Aligned cuts: of roots whose sources run ahead of the slowest one, a cut takes older versions. Pure.

*Source time* of a version of a root is the greatest event time among its rows; the *skew* of a cut is how far
the source times of its roots are apart.

Invariants: queries over several tables that must return no row, else a checkpoint is not published.

Refreshes: what a user may ask for, what a refresh did, why, what it took. Never silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tautochrone.errors import InvariantError
from tautochrone.model.definitions import ExpectationCount
from tautochrone.model.names import CheckpointNumber, TableName, Version
from tautochrone.model.reason import Reason, ReasonCode

__all__ = [
    "Alignment",
    "BrokenInvariant",
    "Checkpoint",
    "CheckpointState",
    "Consistency",
    "HeldBack",
    "InvariantEntry",
    "NodeRefresh",
    "Pin",
    "Refresh",
    "RefreshMode",
    "RefreshPolicy",
    "RefreshRecord",
    "Resolution",
    "SourceTime",
    "align",
    "computed_all",
    "worst_mode",
]


class RefreshMode(StrEnum):
    """How a dataset reached its version for a checkpoint, cheapest first.

    `WAITING`: it got none, because the bulk of a source is not complete.
    """

    NO_DATA = "no_data"
    APPEND = "append"
    INCREMENTAL = "incremental"
    DIFF = "diff"
    FULL = "full"
    WAITING = "waiting"


class RefreshPolicy(StrEnum):
    """What the user allows for a view. Whatever it is, a first build and a changed definition are full.

    `AUTO` takes what is expected to be cheapest. `INCREMENTAL` follows the change even where computing
    everything would be cheaper; what has no rule is compared (`diff`). `INCREMENTAL_STRICT` fails
    instead of comparing. `FULL` computes everything whenever an input changed.
    """

    AUTO = "auto"
    INCREMENTAL = "incremental"
    INCREMENTAL_STRICT = "incremental_strict"
    FULL = "full"


def worst_mode(modes: list[RefreshMode]) -> RefreshMode:
    """The most expensive of several modes; `NO_DATA` for none."""
    order = list(RefreshMode)
    return max(modes, key=order.index, default=RefreshMode.NO_DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRefresh:
    """The mode of one node of a view's plan."""

    node: str
    mode: RefreshMode
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Refresh:
    """The outcome of one refresh of one dataset. Rows are counts, duration is wall time in ms.

    `estimate_ms` is what the refresh was expected to take when its mode was chosen, None when there was
    nothing to choose from. `delta_rows` is the upper bound of rows that changed in its inputs, as the
    choice knew it. `cpu_ms` is the CPU time of its Spark tasks on all executors, None where nobody measured.
    `expectations` are the dataset's, with the rows that violate them.
    """

    mode: RefreshMode
    reason: Reason
    rows_inserted: int = 0
    rows_deleted: int = 0
    duration_ms: int = 0
    nodes: tuple[NodeRefresh, ...] = ()
    estimate_ms: int | None = None
    delta_rows: int = 0
    cpu_ms: int | None = None
    expectations: tuple[ExpectationCount, ...] = ()


def computed_all(run: Refresh) -> bool:
    """It evaluated the whole query; in an incremental one `DIFF` is the worst of several nodes."""
    if run.reason.code is ReasonCode.BUILD_APPLIED:
        return False
    whole = {node.node for node in run.nodes if node.reason.code is not ReasonCode.BUILD_APPLIED} <= {"query"}
    return run.mode is RefreshMode.FULL or (run.mode is RefreshMode.DIFF and whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantEntry:
    """An invariant as the topology records it, with the job that checks it.

    `location` is its file, `definition` the fingerprint of its query, `tables` what it reads,
    clocks included.
    """

    name: str
    location: str
    definition: str
    tables: frozenset[TableName]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenInvariant:
    """What an invariant said of a checkpoint that was not published.

    `rows` counts the rows that break it, `at_least` when counting stopped there; `sample` is a few of them as
    text. With `problem` the query failed, so that nothing is known of its rows.
    """

    name: str
    location: str
    rows: int
    at_least: bool = False
    sample: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def error(self) -> str:
        """One sentence with the error class, without any row."""
        return str(self._as_error())

    def _as_error(self) -> InvariantError:
        if self.problem is not None:
            return InvariantError(
                "INVARIANT_FAILED",
                f"The invariant {self.name} could not be checked: {self.problem}",
                location=self.location,
                hint="correct the query or the data; until then readers stay at the checkpoint before",
            )
        count = f"{'at least ' if self.at_least else ''}{self.rows:,} {'row' if self.rows == 1 else 'rows'}"
        return InvariantError(
            "INVARIANT_BROKEN",
            f"The invariant {self.name} returned {count} instead of none",
            location=self.location,
            hint="`taut checkpoints --json` has some of the rows; correct the data, until then "
            "readers stay at the checkpoint before",
        )


class Consistency(StrEnum):
    """`STRONG`: several tables at one checkpoint. `WEAK`: the newest version of each."""

    STRONG = "strong"
    WEAK = "weak"


class CheckpointState(StrEnum):
    """Where a checkpoint stands. `OPEN` is a target; it ends as `PUBLISHED`, `PARTIAL` or `ABORTED`.

    `PARTIAL`: some job went on to a newer one without it; it shows the tables of the others only.
    """

    OPEN = "open"
    PUBLISHED = "published"
    PARTIAL = "partial"
    ABORTED = "aborted"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One recorded cut. Times are epoch milliseconds; `roots` are the versions of the cut itself.

    `broken` are the invariants for which it, or some job's part of it, was given up.
    """

    number: CheckpointNumber
    state: CheckpointState
    cut_at_ms: int
    published_at_ms: int | None
    roots: Mapping[TableName, Version]
    broken: tuple[BrokenInvariant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRecord:
    """One refresh as history keeps it.

    If it failed, `error` is set instead of a version: the text of `failure`.
    """

    checkpoint: CheckpointNumber
    dataset: TableName
    version: Version | None
    refresh: Refresh | None
    error: str | None
    finished_at_ms: int
    failure: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A read's answer: the checkpoint (None for weak reads) and the version of each table.

    `pin` identifies the lease that keeps these versions, empty when none was asked for; `behind` explains
    tables that are older than the newest checkpoint and why.
    """

    checkpoint: CheckpointNumber | None
    versions: Mapping[TableName, Version]
    pin: str
    behind: Mapping[TableName, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A reader's lease: these versions stay until it ends (epoch milliseconds)."""

    id: str
    checkpoint: CheckpointNumber | None
    owner: str
    expires_at_ms: int
    versions: Mapping[TableName, Version]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """The source time of a version, in epoch milliseconds.

    `complete_until_ms`, where it is later: the version has all that its source committed until then, so it is
    not behind another root before that. None: not known.
    """

    version: Version
    at_ms: int
    complete_until_ms: int | None = None

    @property
    def complete_ms(self) -> int:
        """Until when the version is not behind its source, as far as anybody knows."""
        return max(self.at_ms, self.complete_until_ms or self.at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A root of which a cut takes an older version.

    Its newest version is `ahead_ms` ahead of what is taken of the root `behind`, None when that one's source
    time isn't known yet.
    """

    ahead_ms: int | None
    behind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What a cut takes of each root, and which of them are held back."""

    roots: Mapping[str, str]
    held_back: Mapping[str, HeldBack]


def align(
    newest: Mapping[str, str],
    times: Mapping[str, Sequence[SourceTime]],
    last: Mapping[str, str],
    max_skew_ms: int,
) -> Alignment:
    """The newest versions of which none is more than `max_skew_ms` ahead of another: the source time of none
    is later than that after the time until which another one is complete.

    Args:
        newest: what an unaligned cut would take.
        times: of the roots that take part, the versions that a cut may take, from that of the last cut on,
            oldest first. Empty: no source time of the root is known yet. It stays where it is, and so do the
            others, because nobody knows how far ahead of it they are.
        last: what the last cut took. No root goes back behind it.
    """
    roots = dict(newest)
    for name in newest.keys() & times.keys():
        if not times[name]:
            roots[name] = last.get(name, newest[name])
    candidates = {name: _RootVersions(times[name], last.get(name)) for name in newest if times.get(name)}
    unknown = sorted(name for name in newest.keys() & times.keys() if not times[name])
    behind = unknown[0] if unknown else ""
    # A root that goes back may become the slowest, and then bounds the others.
    while candidates and not unknown:
        slowest = min(
            candidates, key=lambda name: (candidates[name].complete_ms, candidates[name].is_held_back, name)
        )
        moved = [root.go_back(candidates[slowest].complete_ms + max_skew_ms) for root in candidates.values()]
        if not any(moved):
            behind = slowest
            break
    if unknown:
        for root in candidates.values():
            root.stay()
    roots |= {name: root.version for name, root in candidates.items()}
    held_back = {
        name: HeldBack(
            ahead_ms=None if unknown else root.newest_ms - candidates[behind].complete_ms,
            behind=behind,
        )
        for name, root in candidates.items()
        if root.is_held_back
    }
    return Alignment(roots=roots, held_back=held_back)


class _RootVersions:
    """The versions of one root that may be taken: from the newest back to that of the last cut."""

    def __init__(self, source_times: Sequence[SourceTime], last: str | None) -> None:
        versions = [source_time.version for source_time in source_times]
        self._source_times = source_times
        self._oldest_index = versions.index(Version(last)) if last in versions else 0
        self._index = len(source_times) - 1
        # The source times need not include the version of the last cut: the root stays at it until they do.
        self._last_version = last if last is not None and last not in versions else None

    @property
    def at_ms(self) -> int:
        return self._source_times[self._index].at_ms

    @property
    def complete_ms(self) -> int:
        return self._source_times[self._index].complete_ms

    @property
    def newest_ms(self) -> int:
        return self._source_times[-1].at_ms

    @property
    def version(self) -> str:
        return self._source_times[self._index].version if self._last_version is None else self._last_version

    @property
    def is_held_back(self) -> bool:
        return self._index < len(self._source_times) - 1 or self._last_version is not None

    def stay(self) -> None:
        """As far back as possible."""
        self._index = self._oldest_index

    def go_back(self, until_ms: int) -> bool:
        """To the newest version that is not after `until_ms`, as far as possible; whether it moved."""
        before = self._index
        while self._index > self._oldest_index and self.at_ms > until_ms:
            self._index -= 1
        return self._index < before
