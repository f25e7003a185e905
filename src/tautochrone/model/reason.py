"""Why something was done, or not done: a code and its parameters. Code decides by these, never by texts.

    reason = Reason.of(ReasonCode.NEW_INPUT, input="lake.default.orders")
    reason.code               # what a program looks at
    describe(reason)          # 'lake.default.orders is a new input', for people
    Reason.from_json(reason.to_json()) == reason

Parameters are JSON values. A reason that another release wrote with a code that is not known here reads as
`UNKNOWN`, with its text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from string import Formatter
from typing import Any

__all__ = ["Reason", "ReasonCode", "describe", "reason_fields", "several", "unclassified"]


class ReasonCode(StrEnum):
    """All codes; `docs/reasons.md` says what each means to a user.

    Stored in the store and emitted with events: a code is never renamed and never used for something else.
    """

    UNKNOWN = "UNKNOWN"
    SEVERAL = "SEVERAL"

    # Why a dataset was refreshed in its mode.
    FIRST_BUILD = "FIRST_BUILD"
    DEFINITION_CHANGED = "DEFINITION_CHANGED"
    FULL_REFRESH_REQUESTED = "FULL_REFRESH_REQUESTED"
    POLICY_IS_FULL = "POLICY_IS_FULL"
    NO_INPUT_CHANGED = "NO_INPUT_CHANGED"
    NO_NEW_ROWS = "NO_NEW_ROWS"
    INPUTS_APPENDED = "INPUTS_APPENDED"
    EVENTS_MERGED = "EVENTS_MERGED"
    NO_EVENTS_OF_KEYS = "NO_EVENTS_OF_KEYS"
    ROWS_ADDED_TO_LINEAR_QUERY = "ROWS_ADDED_TO_LINEAR_QUERY"
    ESTIMATED_COSTS = "ESTIMATED_COSTS"
    FEW_INPUT_ROWS = "FEW_INPUT_ROWS"
    COMMITTED_BEFORE_CRASH = "COMMITTED_BEFORE_CRASH"
    ADOPTED = "ADOPTED"
    NODE_RULE = "NODE_RULE"

    # Why a change could not be followed.
    INCREMENTAL_FAILED = "INCREMENTAL_FAILED"
    UNSUPPORTED_QUERY = "UNSUPPORTED_QUERY"
    NODE_NEEDS_MODE = "NODE_NEEDS_MODE"
    NOT_LINEAR = "NOT_LINEAR"
    NOT_DETERMINISTIC = "NOT_DETERMINISTIC"
    UNVERSIONED_SOURCE = "UNVERSIONED_SOURCE"
    NEW_INPUT = "NEW_INPUT"
    COLUMN_NOT_COMPARABLE = "COLUMN_NOT_COMPARABLE"
    STATE_MISSING = "STATE_MISSING"
    STATE_NOT_IN_PLAN = "STATE_NOT_IN_PLAN"
    STATE_TABLE_GONE = "STATE_TABLE_GONE"
    STATE_FORMAT_DIFFERS = "STATE_FORMAT_DIFFERS"
    STATE_EXPIRED = "STATE_EXPIRED"

    # How a table changed between two versions.
    TABLE_UNCHANGED = "TABLE_UNCHANGED"
    NO_ROWS_MOVED = "NO_ROWS_MOVED"
    TABLE_APPENDED = "TABLE_APPENDED"
    COLUMNS_ADDED = "COLUMNS_ADDED"
    ROWS_OVERWRITTEN = "ROWS_OVERWRITTEN"
    ROWS_DELETED = "ROWS_DELETED"
    COLUMN_REPLACED = "COLUMN_REPLACED"
    TABLE_ROLLED_BACK = "TABLE_ROLLED_BACK"
    VERSION_EXPIRED = "VERSION_EXPIRED"
    TIME_MOVED = "TIME_MOVED"

    # Why a dataset has no version for a checkpoint, or an invariant was not checked.
    REFRESH_FAILED = "REFRESH_FAILED"
    WAITS_FOR_INPUT = "WAITS_FOR_INPUT"
    INPUT_UNREADABLE = "INPUT_UNREADABLE"
    WAITS_FOR_BULK = "WAITS_FOR_BULK"
    UPSTREAM_HAS_NO_VERSION = "UPSTREAM_HAS_NO_VERSION"
    LEFT_TO_BE_REBUILT = "LEFT_TO_BE_REBUILT"
    NO_VERSION_AT_CHECKPOINT = "NO_VERSION_AT_CHECKPOINT"

    # Why a checkpoint waits, is held back or given up.
    JOBS_AT_WORK = "JOBS_AT_WORK"
    SINK_LACKS_CHECKPOINT = "SINK_LACKS_CHECKPOINT"
    CHECKPOINT_OPENED_BY_OTHERS = "CHECKPOINT_OPENED_BY_OTHERS"
    WAITS_FOR_VERSION = "WAITS_FOR_VERSION"
    ROOT_NOT_IN_CUT = "ROOT_NOT_IN_CUT"
    JOB_TAKES_NO_PART = "JOB_TAKES_NO_PART"
    GIVEN_UP_BY_OTHERS = "GIVEN_UP_BY_OTHERS"
    BREAKS_INVARIANTS = "BREAKS_INVARIANTS"
    ADOPTION_INTERRUPTED = "ADOPTION_INTERRUPTED"
    JOB_SKIPPED_CHECKPOINT = "JOB_SKIPPED_CHECKPOINT"
    JOB_NOT_RUNNING = "JOB_NOT_RUNNING"
    JOB_UNFINISHED = "JOB_UNFINISHED"
    SOURCE_NOT_OBSERVED = "SOURCE_NOT_OBSERVED"
    INVARIANT_BROKEN = "INVARIANT_BROKEN"
    JOB_AWAY = "JOB_AWAY"
    PATIENCE_USED_UP = "PATIENCE_USED_UP"
    CHECKPOINT_STATE = "CHECKPOINT_STATE"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and what it is about. `str(reason)` is its text.

    Raises:
        ValueError: a parameter is missing that the text of the code needs.
    """

    code: ReasonCode
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = sorted(parameters_of(self.code) - self.params.keys())
        if missing:
            raise ValueError(f"a reason {self.code} needs {', '.join(missing)}")

    @classmethod
    def of(cls, code: ReasonCode, **params: Any) -> Reason:
        """A reason with these parameters; all of them must be JSON values."""
        return cls(code, params)

    @classmethod
    def stored(cls, text: str, code: str | None, params: Mapping[str, Any] | None) -> Reason:
        """A reason from what the store keeps: `UNKNOWN` with its text if this release does not know it."""
        if code not in set(ReasonCode):
            return unclassified(text)
        try:
            reason = cls(ReasonCode(str(code)), params or {})
            describe(reason)
        except (ValueError, TypeError, LookupError, AttributeError):
            # The parameters are those of another release.
            return unclassified(text)
        return reason

    @classmethod
    def from_json(cls, data: Any) -> Reason:
        """The other way of `to_json`. A plain text, which older releases send, is `UNKNOWN`.

        Raises:
            TypeError: it is neither an object nor a text.
        """
        if isinstance(data, str):
            return unclassified(data)
        if not isinstance(data, Mapping) or not isinstance(data.get("text"), str):
            raise TypeError(f"{data!r:.80} is no reason")
        params = data.get("params")
        if params is not None and not isinstance(params, Mapping):
            raise TypeError(f"{params!r:.80} are no parameters of a reason")
        return cls.stored(data["text"], data.get("code"), params)

    def to_json(self) -> dict[str, Any]:
        """Code, parameters and text. The text is for releases that do not know the code."""
        return {"code": str(self.code), "params": dict(self.params), "text": describe(self)}

    def map_texts(self, change: Callable[[str], str]) -> Reason:
        """The same reason with every text in its parameters changed, such as by redaction."""
        return Reason(self.code, _map_texts(self.params, change))

    def __str__(self) -> str:
        return describe(self)

    def __hash__(self) -> int:
        return hash((self.code, json.dumps(self.params, sort_keys=True, default=str)))


def unclassified(text: str) -> Reason:
    """A reason of which only the text is known."""
    return Reason(ReasonCode.UNKNOWN, {"text": text})


def several(reasons: Sequence[Reason]) -> Reason:
    """Several reasons as one; the first is the most important one.

    Raises:
        ValueError: there is none.
    """
    if not reasons:
        raise ValueError("no reasons")
    if len(reasons) == 1:
        return reasons[0]
    return Reason(ReasonCode.SEVERAL, {"reasons": [reason.to_json() for reason in reasons]})


def describe(reason: Reason) -> str:
    """The text of a reason, one sentence without a full stop."""
    text = _TEXTS[reason.code]
    return text.format_map(reason.params) if isinstance(text, str) else text(reason.params)


def reason_fields(name: str, reason: Reason | None) -> dict[str, Any]:
    """A reason as fields of an event, as fields of a line of `--json`, or as columns.

    Its text is `name`, with its code and its parameters beside it. Without a reason all of them are None.
    """
    if reason is None:
        return {name: None, f"{name}_code": None, f"{name}_params": None}
    return {name: describe(reason), f"{name}_code": str(reason.code), f"{name}_params": dict(reason.params)}


def parameters_of(code: ReasonCode) -> frozenset[str]:
    """The parameters that every reason of a code has."""
    text = _TEXTS[code]
    if not isinstance(text, str):
        return _COMPUTED_FROM[code]
    return frozenset(name for _, name, _, _ in Formatter().parse(text) if name)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_texts(part, change) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_map_texts(part, change) for part in value]
    return value


# -- texts --------------------------------------------------------------------------------------------


def _several_text(params: Mapping[str, Any]) -> str:
    return "; ".join(str(Reason.from_json(reason)) for reason in params["reasons"])


def _unversioned_text(params: Mapping[str, Any]) -> str:
    return f"it reads {', '.join(params['sources'])}, which has no versions"


def _costs_text(params: Mapping[str, Any]) -> str:
    moved = [_changed_share(**table) for table in params["changed"]]
    moved += [f"{clock} went on" for clock in params["clocks"]]
    ways = ", ".join(
        f"{way} {params[f'{way}_ms'] / 1000:.1f} s {'measured' if params[f'{way}_measured'] else 'expected'}"
        for way in ("incremental", "full")
    )
    policy = params.get("policy")
    policy_text = f"its refresh policy is {policy}; " if policy else ""
    return f"{policy_text}{', '.join(moved)}; {ways}"


def _changed_share(table: str, changed_rows: int | None, rows: int | None) -> str:
    if changed_rows is None or rows is None:
        return f"{table} changed"
    share = 100 * min(1.0, changed_rows / max(rows, changed_rows, 1))
    text = "less than 0.01" if 0 < share < 0.01 else f"{share:.2g}" if share < 10 else f"{share:.0f}"
    return f"{text} % of {table} changed"


def _unfinished_text(params: Mapping[str, Any]) -> str:
    owner = params["waits_for"]
    waits = "" if owner is None else f", and waits for job {owner}"
    return f"job {params['job']} is at work on checkpoint {params['checkpoint']}{waits}"


_TEXTS: Mapping[ReasonCode, str | Callable[[Mapping[str, Any]], str]] = {
    ReasonCode.UNKNOWN: "{text}",
    ReasonCode.SEVERAL: _several_text,
    ReasonCode.FIRST_BUILD: "first build",
    ReasonCode.DEFINITION_CHANGED: "the definition changed",
    ReasonCode.FULL_REFRESH_REQUESTED: "a full refresh was asked for",
    ReasonCode.POLICY_IS_FULL: "its refresh policy is full",
    ReasonCode.NO_INPUT_CHANGED: "no input changed",
    ReasonCode.NO_NEW_ROWS: "its inputs brought no rows",
    ReasonCode.INPUTS_APPENDED: "its inputs were appended to",
    ReasonCode.EVENTS_MERGED: "the events of its input were merged by key",
    ReasonCode.NO_EVENTS_OF_KEYS: "its input got no event of a key",
    ReasonCode.ROWS_ADDED_TO_LINEAR_QUERY: "rows were only added to inputs of a linear query",
    ReasonCode.ESTIMATED_COSTS: _costs_text,
    ReasonCode.FEW_INPUT_ROWS: (
        "its inputs hold at most {rows} rows: comparing is cheaper than following the change"
    ),
    ReasonCode.COMMITTED_BEFORE_CRASH: "committed by the run before",
    ReasonCode.ADOPTED: "taken over: {proof}",
    ReasonCode.NODE_RULE: "{rule}",
    ReasonCode.INCREMENTAL_FAILED: "following the change failed: {message}",
    ReasonCode.UNSUPPORTED_QUERY: "{detail}",
    ReasonCode.NODE_NEEDS_MODE: "{node} needs {mode}: {cause}",
    ReasonCode.NOT_LINEAR: "{operator}",
    ReasonCode.NOT_DETERMINISTIC: "{function} gives something else each time",
    ReasonCode.UNVERSIONED_SOURCE: _unversioned_text,
    ReasonCode.NEW_INPUT: "{input} is a new input",
    ReasonCode.COLUMN_NOT_COMPARABLE: "column {column} cannot be compared",
    ReasonCode.STATE_MISSING: "the view has no state {state} yet",
    ReasonCode.STATE_NOT_IN_PLAN: "its plan no longer has the state {state}",
    ReasonCode.STATE_TABLE_GONE: "its state {state} is gone",
    ReasonCode.STATE_FORMAT_DIFFERS: "its state {state} was written by another release, or of other types",
    ReasonCode.STATE_EXPIRED: "the version of its state {state} that belongs to its rows is expired",
    ReasonCode.TABLE_UNCHANGED: "{table} did not change",
    ReasonCode.NO_ROWS_MOVED: "no commit to {table} moved rows",
    ReasonCode.TABLE_APPENDED: "{table} was only appended to",
    ReasonCode.COLUMNS_ADDED: "columns were added to {table}",
    ReasonCode.ROWS_OVERWRITTEN: "{table} was overwritten",
    ReasonCode.ROWS_DELETED: "{table} was deleted from",
    ReasonCode.COLUMN_REPLACED: (
        "column {column} of {table} was dropped and added again, or took another one's name"
    ),
    ReasonCode.TABLE_ROLLED_BACK: (
        "{table} was rolled back or replaced: version {version} is not in its history"
    ),
    ReasonCode.VERSION_EXPIRED: "version {version} of {table} is gone: expired, or the table was replaced",
    ReasonCode.TIME_MOVED: "{clock} is another one",
    ReasonCode.REFRESH_FAILED: "{text}",
    ReasonCode.WAITS_FOR_INPUT: "waits for {input}: {cause}",
    ReasonCode.INPUT_UNREADABLE: "{text}",
    ReasonCode.WAITS_FOR_BULK: ("waits for the bulk of {relation}, or until the log has passed it"),
    ReasonCode.UPSTREAM_HAS_NO_VERSION: "job {job} has no version of it",
    ReasonCode.LEFT_TO_BE_REBUILT: "{cause}",
    ReasonCode.NO_VERSION_AT_CHECKPOINT: "{table} has no version for this checkpoint",
    ReasonCode.JOBS_AT_WORK: (
        "they still work on it; jobs that share tables have one open checkpoint at a time"
    ),
    ReasonCode.SINK_LACKS_CHECKPOINT: "sink {sink} does not have the last one: {cause}",
    ReasonCode.CHECKPOINT_OPENED_BY_OTHERS: "{text}",
    ReasonCode.WAITS_FOR_VERSION: "it has no version for this checkpoint yet",
    ReasonCode.ROOT_NOT_IN_CUT: "its cut has no version of {table}, which the project has now",
    ReasonCode.JOB_TAKES_NO_PART: "job {job}, whose tables this job reads, takes no part in it",
    ReasonCode.GIVEN_UP_BY_OTHERS: "{text}",
    ReasonCode.BREAKS_INVARIANTS: (
        "it breaks invariants; readers see the previous checkpoint until the data changes"
    ),
    ReasonCode.ADOPTION_INTERRUPTED: (
        "an earlier adoption ended before it was complete, and tables moved since"
    ),
    ReasonCode.JOB_SKIPPED_CHECKPOINT: "job {job} skipped checkpoint {checkpoint}",
    ReasonCode.JOB_NOT_RUNNING: "job {job} isn't running and has still to do checkpoint {checkpoint}",
    ReasonCode.JOB_UNFINISHED: _unfinished_text,
    ReasonCode.SOURCE_NOT_OBSERVED: (
        "checkpoint {checkpoint} may lack what was there of {table}: job {job} has not looked at it since"
    ),
    ReasonCode.INVARIANT_BROKEN: "{text}",
    ReasonCode.JOB_AWAY: "job {job} isn't running",
    ReasonCode.PATIENCE_USED_UP: "other jobs take longer than run.patience",
    ReasonCode.CHECKPOINT_STATE: "it is {state}",
}

_COMPUTED_FROM: Mapping[ReasonCode, frozenset[str]] = {
    ReasonCode.SEVERAL: frozenset({"reasons"}),
    ReasonCode.UNVERSIONED_SOURCE: frozenset({"sources"}),
    ReasonCode.ESTIMATED_COSTS: frozenset(
        {"changed", "clocks", "incremental_ms", "incremental_measured", "full_ms", "full_measured"}
    ),
    ReasonCode.JOB_UNFINISHED: frozenset({"job", "checkpoint", "waits_for"}),
}
