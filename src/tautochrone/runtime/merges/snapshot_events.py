"""The snapshots of an AUTO CDC flow as events: what changed in the rows of its source, by key.

A row that came is an event of its key, a key without a row any more an event of deletion. Rows that are the
same in both snapshots are none. The sequence value of all of them is the time of the checkpoint, and always
later than all that is known of their keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import TimestampType

from tautochrone.errors import RefreshError
from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TRUNCATE_COLUMN,
    AutoCdc,
)
from tautochrone.model.lake import ChangeKind, LakeTable
from tautochrone.model.names import Version, quoted
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.task import RefreshTask
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.execute.materialize import first_row, materialize
from tautochrone.spark.execute.merge_events import (
    DELETED,
    SEQUENCE,
    EventMerge,
    all_equal,
    prefixed,
    row_hash,
)
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = [
    "SnapshotChange",
    "after_known",
    "current_rows",
    "key_not_unique_error",
    "require_unknown",
    "snapshot_change",
]


_SIGN, _HASH, _WEIGHT, _ROW = "__taut_sign", "__taut_hash", "__taut_weight", "__taut_row"
_ROWS, _WAS_THERE = "__taut_rows", "__taut_was_there"
_SPECIAL = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)


@dataclass(frozen=True, slots=True)
class SnapshotChange:
    """What changed between two snapshots.

    Attributes:
        events: with the columns of the flow's query.
        new_keys: the keys of rows whose key had no row that went.
        count: of the events.
    """

    events: DataFrame
    new_keys: DataFrame
    count: int


def snapshot_change(
    task: RefreshTask,
    flow: ResolvedFlow,
    auto_cdc: AutoCdc,
    source: LakeTable,
    merged: Version | None,
    base: SparkSession,
    session: SparkSession,
) -> SnapshotChange | None:
    """What changed in the source's rows since a version, or None if nothing did.

    Args:
        merged: the version of the source whose rows the table holds; None: it holds none.
        base: reads the lake itself.
        session: evaluates the flow's query.

    Raises:
        RefreshError: `AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE`.
    """
    signed, max_rows = _signed_rows(task, flow, auto_cdc, source, merged, base, session)
    if not signed:
        return None
    both = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), signed)
    keys = auto_cdc.merge_columns([name for name in both.columns if name != _SIGN], task.location).keys
    changed, count = materialize(_by_key(both, keys), max_rows=max_rows)
    if count == 0:
        return None
    _require_unique(changed.where(sf.col(_ROWS) > 1), keys, task)
    now = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=task.cut_at_ms)
    names = [name for name in both.columns if name not in (*keys, _SIGN)]
    events = changed.select(
        *(sf.col(quoted(key)) for key in keys),
        *(sf.col(f"{_ROW}.{quoted(name)}").alias(name) for name in names),
        sf.lit(now).cast(TimestampType()).alias(SEQUENCE_COLUMN),
        (sf.col(_ROWS) == 0).alias(DELETE_COLUMN),
        sf.lit(False).alias(TRUNCATE_COLUMN),
    )
    came = changed.where((sf.col(_ROWS) > 0) & ~sf.col(_WAS_THERE))
    return SnapshotChange(events, came.select(*(quoted(key) for key in keys)), count)


def current_rows(table: DataFrame, auto_cdc: AutoCdc) -> DataFrame:
    """The rows of the newest snapshot that a table holds, without the columns of SCD type 2."""
    if auto_cdc.scd_type == 1:
        return table
    return table.where(sf.col(END_COLUMN).isNull()).drop(START_COLUMN, END_COLUMN)


def _signed_rows(
    task: RefreshTask,
    flow: ResolvedFlow,
    auto_cdc: AutoCdc,
    source: LakeTable,
    merged: Version | None,
    base: SparkSession,
    session: SparkSession,
) -> tuple[list[DataFrame], int]:
    """Rows that came (sign 1) and that went (sign -1) since a version, and how many they are at most."""
    newest = task.inputs[source.name]
    change = None if merged is None else source.change_between(merged, newest)
    if change is not None and change.kind is ChangeKind.NONE:
        return [], 0
    plan = analyzed_plan(flow.evaluate(session))
    if merged is not None and change is not None and change.kind is not ChangeKind.UNKNOWN:
        rows = source.changed_rows(base, merged, newest)
        parts = [(1, rows.added), (-1, rows.removed)]
        signed = [
            _with_sign(stream_as_batch(session, plan, part), sign) for sign, part in parts if part is not None
        ]
        return signed, rows.rows
    signed = [_with_sign(stream_as_batch(session, plan, source.read(base, newest)), 1)]
    max_rows = source.row_count(newest) or 0
    if merged is not None:
        # The source was rebuilt: its rows are compared with those that the table holds.
        stored = dataframe_of_plan(session, analyzed_plan(task.table.read(base, task.fork.version)))
        columns = [quoted(name) for name in signed[0].columns if name != _SIGN]
        signed.append(_with_sign(current_rows(stored, auto_cdc).select(*columns), -1))
        max_rows += task.table.row_count(task.fork.version) or 0
    return signed, max_rows


def _with_sign(rows: DataFrame, sign: int) -> DataFrame:
    return rows.drop(*_SPECIAL).withColumn(_SIGN, sf.lit(sign))


def _by_key(signed: DataFrame, keys: Sequence[str]) -> DataFrame:
    """For each key whose rows are not the same: the new row, how many there are, whether an old one went."""
    key_columns = [sf.col(quoted(key)) for key in keys]
    fields = [field for field in signed.schema.fields if field.name not in (*keys, _SIGN)]
    values = [sf.col(quoted(field.name)) for field in fields]
    kinds = [field.dataType for field in fields]
    # A struct without fields cannot be stored.
    row = sf.struct(*values, sf.lit(0).alias("_"))
    net = (
        signed.select(
            *key_columns,
            _SIGN,
            row_hash(values, kinds).alias(_HASH),
            row.alias(_ROW),
        )
        .groupBy(*key_columns, _HASH)
        .agg(sf.sum(_SIGN).alias(_WEIGHT), sf.any_value(_ROW).alias(_ROW))
        .where(sf.col(_WEIGHT) != 0)
    )
    return net.groupBy(*key_columns).agg(
        sf.max_by(_ROW, _WEIGHT).alias(_ROW),
        sf.sum(sf.greatest(_WEIGHT, sf.lit(0))).alias(_ROWS),
        (sf.min(_WEIGHT) < 0).alias(_WAS_THERE),
    )


def _require_unique(twice: DataFrame, keys: Sequence[str], task: RefreshTask) -> None:
    key = first_row(twice.select(*(quoted(key) for key in keys)))
    if key is not None:
        raise key_not_unique_error(dict(zip(keys, key, strict=True)), task)


def key_not_unique_error(key: dict[str, object], task: RefreshTask) -> RefreshError:
    """The refusal of a snapshot with several rows of a key."""
    return RefreshError(
        "AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE",
        f"A snapshot for {task.name} has several rows with the key {key}",
        hint="name all columns that identify a row as keys, or let the source keep one row of each key",
        location=task.location,
        sqlstate="23505",
    )


_FOLLOWING = "following"


def require_unknown(merge: EventMerge, new_keys: DataFrame, state: DataFrame, task: RefreshTask) -> None:
    """Refuse a snapshot in which a second row of a key came.

    Args:
        new_keys: the keys that the snapshot before must not have.
        state: the rows of these keys.

    Raises:
        RefreshError: `AUTO_CDC_SNAPSHOT_KEY_NOT_UNIQUE`.
    """
    renamed = zip(merge.columns.keys, merge.keys, strict=True)
    came = new_keys.select(*(sf.col(quoted(key)).alias(f"e_{name}") for key, name in renamed))
    last = state.groupBy(*merge.keys).agg(sf.max_by(DELETED, SEQUENCE).alias(DELETED))
    known = last.where(~sf.col(DELETED)).select(*prefixed("s", merge.keys))
    twice = first_row(came.join(known, all_equal(merge.keys), "left_semi"))
    if twice is not None:
        raise key_not_unique_error(dict(zip(merge.columns.keys, twice, strict=True)), task)


def after_known(folded: DataFrame, state: DataFrame) -> DataFrame:
    """The events of a snapshot, later than all that is known of their keys.

    The clock of a new owner may be behind that of the last one.
    """
    following = sf.expr(f"max({SEQUENCE}) + INTERVAL '0.001' SECOND").alias(_FOLLOWING)
    joined = folded.crossJoin(sf.broadcast(state.agg(following)))
    return joined.withColumn(SEQUENCE, sf.greatest(SEQUENCE, _FOLLOWING)).drop(_FOLLOWING)
