"""The first build of a captured table, most of whose rows are as they were copied.

A copy reads ranges of the key that do not overlap, each in one snapshot, so it has every key once. The merge
looks at each key by itself (see `runtime.merges.latest_events`), so

    rows = copied rows whose keys have no events in the log + the merge of all other keys

Only the keys with events are sorted. Without events, as with a database that rests, the copied rows are the
table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf

from tautochrone.model import limits
from tautochrone.model.auto_cdc import KeyedApply
from tautochrone.model.names import quoted
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.runtime.merges.capture_files import CopiedFileRows
from tautochrone.runtime.merges.latest_events import (
    InvalidValues,
    has_invalid,
    invalid_rows,
    invalid_values,
    is_deterministic,
    latest_rows,
    same_values,
    summarize,
)
from tautochrone.spark.execute.expectations import observed_counts
from tautochrone.spark.execute.materialize import computed_on_executors, unpersist

__all__ = ["CopiedRows", "copied_rows"]

_EXACT_TYPES = (
    *("boolean", "tinyint", "smallint", "int", "bigint"),
    *("date", "timestamp", "timestamp_ntz", "string", "binary"),
)
"""With decimals, the types that make different values of different keys of a database: a value that they do
not have fails the refresh. Of arrays the lake loses where their indexes begin."""


@dataclass(frozen=True, slots=True)
class CopiedRows:
    """The rows of a table.

    Attributes:
        rows: with the table's columns, to be read once.
        replaced: in files of the copy, the rows that these replace: data file → positions.
        is_empty: there are no rows.
    """

    rows: DataFrame
    _copied: DataFrame
    _apply: KeyedApply
    _observation: Observation
    _cached: Sequence[DataFrame] = ()
    _invalid: InvalidValues | None = None
    replaced: Mapping[str, Sequence[int]] = field(default_factory=dict)
    is_empty: bool = False

    def invalid(self) -> InvalidValues | None:
        """After something read `rows`: those with values that the types of their columns do not have."""
        if observed_counts(self._observation, 1, was_read=True) == [0]:
            return self._invalid
        invalid = self._copied.where(has_invalid(self._apply))
        copied = invalid_rows(invalid, self._apply, sf.count(sf.lit(1)))
        parts = [each for each in (copied, self._invalid) if each is not None]
        if not parts:
            return None
        return InvalidValues(sum(each.rows for each in parts), min(each.example for each in parts))

    def release(self) -> None:
        """What was held for `rows` and `invalid`."""
        _release(self._cached)


def copied_rows(
    events: DataFrame, apply: KeyedApply, files: CopiedFileRows | None = None
) -> CopiedRows | Reason | None:
    """The rows of a table that is built of one copy, beside those in files; or why all of its keys must be
    merged; None: no row was copied."""
    if apply.snapshot is None or apply.weight is not None:
        return None
    counts = _counts(events, apply)
    if counts.first_copy is None and files is None:
        return None
    reason = _why_merged(events, apply, counts, frozenset() if files is None else files.copies)
    if reason is not None:
        return reason
    is_copied = sf.col(quoted(apply.snapshot)).isNotNull()
    if not counts.others:
        return replace(_with_changed_rows(events, apply), is_empty=counts.first_copy is None)
    names = [quoted(key) for key in apply.keys]
    cached: list[DataFrame] = []
    try:
        keys, _ = computed_on_executors(events.where(~is_copied).select(*names).distinct())
        cached.append(keys)
        all_rows = events if files is None else events.unionByName(files.rows)
        changed, _ = computed_on_executors(_join_by_keys(all_rows, keys, names, "left_semi"))
        cached.append(changed)
        copied = _join_by_keys(events.where(is_copied), keys, names, "left_anti")
        built = _with_changed_rows(copied, apply, changed, cached)
        if files is None:
            return built
        return replace(built, replaced=files.positions(keys, same_values("rows", "keys", names)))
    except BaseException:
        _release(cached)
        raise


@dataclass(frozen=True, slots=True)
class _Counts:
    """
    Attributes:
        first_copy, last_copy: numbers of copies; None: there is none.
        others: rows that are not copied, but events of the log.
        truncates: among the others.
    """

    first_copy: int | None
    last_copy: int | None
    others: int
    truncates: int


def _counts(events: DataFrame, apply: KeyedApply) -> _Counts:
    """It reads no column of the table."""
    is_copied = sf.col(quoted(str(apply.snapshot))).isNotNull()
    # The last column of the sequence is a number of the copy, the same for all its rows.
    copy = sf.when(is_copied, sf.col(quoted(apply.sequence[-1])))
    counts = events.agg(
        sf.min(copy), sf.max(copy), sf.count_if(~is_copied), sf.count_if(sf.expr(apply.truncate or "false"))
    ).head()
    assert counts is not None
    return _Counts(*counts)


def _why_merged(
    events: DataFrame, apply: KeyedApply, counts: _Counts, copies: Collection[int]
) -> Reason | None:
    """Why a key could be in the table twice, or not only keys with events must be looked at."""
    if not is_deterministic(events):
        return Reason.of(ReasonCode.EVENTS_NOT_DETERMINISTIC)
    kinds = dict(events.dtypes)
    for key in apply.keys:
        if not kinds[key].startswith("decimal(") and kinds[key] not in _EXACT_TYPES:
            return Reason.of(ReasonCode.COLUMN_COMPARED_BY_SPARK, column=key, type=kinds[key])
    if len({*copies, counts.first_copy, counts.last_copy} - {None}) > 1:
        return Reason.of(ReasonCode.SEVERAL_COPIES)
    if counts.truncates:
        return Reason.of(ReasonCode.TABLE_TRUNCATED)
    limit = limits.MAX_BROADCAST_VALUES // len(apply.keys)
    if counts.others > limit:
        return Reason.of(ReasonCode.MANY_EVENTS_AFTER_COPY, rows=counts.others, limit=limit)
    return None


def _with_changed_rows(
    copied: DataFrame, apply: KeyedApply, changed: DataFrame | None = None, cached: Sequence[DataFrame] = ()
) -> CopiedRows:
    """
    Args:
        changed: all rows of the keys that have events in the log.
    """
    observation = Observation()
    rows = copied.observe(observation, sf.count_if(has_invalid(apply)).alias("invalid")).drop(*apply.dropped)
    if changed is None:
        return CopiedRows(rows, copied, apply, observation)
    summary = summarize(changed, apply)
    merged = latest_rows(changed, apply, summary, None)
    invalid = invalid_values(changed, apply, summary)
    return CopiedRows(rows.unionByName(merged), copied, apply, observation, cached, invalid)


def _release(cached: Iterable[DataFrame]) -> None:
    for frame in cached:
        unpersist(frame)


def _join_by_keys(rows: DataFrame, keys: DataFrame, names: Sequence[str], how: str) -> DataFrame:
    """Rows that have one of the keys, or none of them. NULL equals NULL."""
    return rows.alias("rows").join(sf.broadcast(keys.alias("keys")), same_values("rows", "keys", names), how)
