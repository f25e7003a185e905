"""The functions that define AUTO CDC flows, as Databricks and Spark 4.2 have them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.errors import PySparkTypeError
from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
from pyspark.sql import Column

from tautochrone.errors import DefinitionError
from tautochrone.model.auto_cdc import AutoCdc, ColumnChoice
from tautochrone.project.databricks.decorators import caller, shown
from tautochrone.project.databricks.unsupported import databricks_only

__all__ = ["create_auto_cdc_flow", "create_auto_cdc_from_snapshot_flow"]

_NOT_BITEMPORAL = (
    "tables with both the time of the event and that of its arrival are not supported: leave "
    "system_sequence_by out, and store the table as SCD type 1 (the newest row of each key) or 2 (all)"
)
SnapshotSource = Callable[[Any], Any]


class _OneSnapshot:
    """The snapshot function for a DataFrame and its version, which a file computed while it was imported."""

    def __init__(self, snapshot: tuple[Any, Any]) -> None:
        self._snapshot = snapshot

    def __call__(self, latest_version: Any) -> tuple[Any, Any] | None:
        return None if latest_version == self._snapshot[1] else self._snapshot


_INSTEAD = {"system_sequence_by": _NOT_BITEMPORAL}
"""By argument that Databricks knows: what to write instead."""


def create_auto_cdc_flow(
    target: str,
    source: str,
    keys: Sequence[str | Column],
    sequence_by: str | Column,
    ignore_null_updates: bool = False,
    apply_as_deletes: str | Column | None = None,
    apply_as_truncates: str | Column | None = None,
    column_list: Sequence[str | Column] | None = None,
    except_column_list: Sequence[str | Column] | None = None,
    stored_as_scd_type: str | int | None = 1,
    track_history_column_list: Sequence[str | Column] | None = None,
    track_history_except_column_list: Sequence[str | Column] | None = None,
    *,
    ignore_null_updates_column_list: Sequence[str | Column] | None = None,
    ignore_null_updates_except_column_list: Sequence[str | Column] | None = None,
    where: str | Column | None = None,
    name: str | None = None,
    flow_name: str | None = None,
    once: bool = False,
    **unknown: Any,
) -> None:
    """A flow that merges the change events of `source` into the streaming table `target`.

    Args:
        flow_name: an older name of `name`.
        once: has no effect. The source is a stream, of which each event is taken once.

    Raises:
        DefinitionError: `AUTO_CDC_TWO_COLUMN_LISTS`, and those of `AutoCdc.check`.
    """
    location = caller()
    text = shown(location)
    given = sorted(key for key, value in unknown.items() if value is not None and value is not False)
    if where is not None:
        given.append("where")
    if given:
        raise DefinitionError(
            "AUTO_CDC_ARGUMENT_NOT_SUPPORTED",
            f"create_auto_cdc_flow() does not take {', '.join(given)}",
            sqlstate="0A000",
            location=text,
            hint=_INSTEAD.get(given[0])
            or _did_you_mean(given)
            or "leave it out; conditions and computed columns belong into a temporary view as the source",
        )
    null_ignoring = _choice(
        ignore_null_updates_column_list,
        ignore_null_updates_except_column_list,
        "ignore_null_updates_column_list",
        text,
    )
    if null_ignoring is not None and ignore_null_updates:
        raise _two_lists("ignore_null_updates=True", "a list of the columns in which NULL is ignored", text)
    auto_cdc = AutoCdc(
        keys=_names(keys, "keys"),
        sequence=sequence_by,
        delete=apply_as_deletes,
        truncate=apply_as_truncates,
        columns=_choice(column_list, except_column_list, "column_list", text),
        is_ignoring_nulls=bool(ignore_null_updates) or null_ignoring is not None,
        null_ignoring=null_ignoring,
        is_once=bool(once),
        scd_type=_scd_type(stored_as_scd_type, text),
        tracked=_choice(
            track_history_column_list,
            track_history_except_column_list,
            "track_history_column_list",
            text,
        ),
    )
    registry: Any = get_active_graph_element_registry()
    registry.register_auto_cdc(name or flow_name or target, target, source, auto_cdc, location)


def create_auto_cdc_from_snapshot_flow(
    target: str,
    source: str | SnapshotSource | None = None,
    keys: Sequence[str | Column] = (),
    stored_as_scd_type: str | int | None = 1,
    track_history_column_list: Sequence[str | Column] | None = None,
    track_history_except_column_list: Sequence[str | Column] | None = None,
    *,
    snapshot_and_version: SnapshotSource | tuple[Any, Any] | None = None,
    name: str | None = None,
    once: bool = False,
) -> None:
    """A flow that merges what changes in the rows of `source` into `target`.

    Of a dataset or table the rows at each checkpoint are a snapshot, and the time of the checkpoint is the
    sequence value of what changed. A function is called with the version of the newest snapshot, or None, and
    returns the next one with its version, which is the sequence value:

        def next_snapshot(latest_version):
            version = (latest_version or 0) + 1
            path = f"/exports/customers_{version}.csv"
            return (spark.read.csv(path, header=True), version) if os.path.exists(path) else None

    Args:
        snapshot_and_version: an older name of `source` for a function. It may also be a DataFrame and its
            version, which are one snapshot for each run.

    Raises:
        DefinitionError: `AUTO_CDC_SNAPSHOT_SOURCE`, and those of `create_auto_cdc_flow`.
    """
    location = caller()
    text = shown(location)
    if once:
        raise databricks_only("once", "create_auto_cdc_from_snapshot_flow(once=True)", text)
    if isinstance(snapshot_and_version, tuple) and len(snapshot_and_version) == 2:
        snapshot_and_version = _OneSnapshot(snapshot_and_version)
    given = [argument for argument in (source, snapshot_and_version) if argument is not None]
    if len(given) != 1 or not (isinstance(given[0], str) or callable(given[0])):
        raise DefinitionError(
            "AUTO_CDC_SNAPSHOT_SOURCE",
            f"create_auto_cdc_from_snapshot_flow() of {target} has no source, or something else than one",
            sqlstate="42000",
            location=text,
            hint="give the name of a dataset or table, or a function that takes the newest version and "
            "returns the next snapshot with its version",
        )
    tracked = _choice(
        track_history_column_list, track_history_except_column_list, "track_history_column_list", text
    )
    snapshots_of = given[0]
    auto_cdc = AutoCdc(
        keys=_names(keys, "keys"),
        sequence=None,
        scd_type=_scd_type(stored_as_scd_type, text),
        tracked=tracked,
        snapshots_of=(snapshots_of,) if isinstance(snapshots_of, str) else None,
        takes_snapshots=True,
    )
    registry: Any = get_active_graph_element_registry()
    register = registry.register_auto_cdc if isinstance(snapshots_of, str) else registry.register_snapshots
    register(name or target, target, snapshots_of, auto_cdc, location)


def _scd_type(value: str | int | None, location: str) -> int:
    text = "1" if value is None else str(value).strip()
    if not text.isdecimal():
        raise DefinitionError(
            "AUTO_CDC_SCD_TYPE",
            f"An AUTO CDC flow stores its table as SCD type {text}",
            sqlstate="0A000",
            location=location,
            hint=_NOT_BITEMPORAL,
        )
    return int(text)


def _choice(
    names: Sequence[str | Column] | None,
    except_names: Sequence[str | Column] | None,
    argument: str,
    location: str,
) -> ColumnChoice | None:
    """The chosen columns. An empty list is one that is not given: projects fill lists from configurations."""
    chosen, left_out = _names_if_any(names, argument), _names_if_any(except_names, argument)
    if chosen and left_out:
        raise _two_lists(argument, "the list of columns to leave out", location)
    if chosen:
        return ColumnChoice(chosen)
    return ColumnChoice(left_out, is_except=True) if left_out else None


def _two_lists(first: str, second: str, location: str) -> DefinitionError:
    return DefinitionError(
        "AUTO_CDC_TWO_COLUMN_LISTS",
        f"create_auto_cdc_flow() got {first} and {second}",
        location=location,
        hint="give one of the two",
    )


def _names_if_any(columns: Sequence[str | Column] | None, argument: str) -> tuple[str, ...]:
    return () if columns is None else _names(columns, argument)


def _names(columns: Sequence[str | Column], argument: str) -> tuple[str, ...]:
    """Names of columns, which are given as texts or as `col(…)`."""
    if isinstance(columns, (str, Column)):
        columns = [columns]
    names = [_name(column) if isinstance(column, Column) else column for column in columns]
    for name in names:
        if not isinstance(name, str):
            raise PySparkTypeError(
                errorClass="NOT_LIST_OF_STR",
                messageParameters={"arg_name": argument, "arg_type": type(name).__name__},
            )
    return tuple(name.strip("`") for name in names)


def _name(column: Column) -> str:
    node: Any = column._jc  # noqa: SLF001
    return str(node.toString())


def _did_you_mean(given: Sequence[str]) -> str | None:
    known = ("apply_as_deletes", "apply_as_truncates", "column_list", "except_column_list", "sequence_by")
    near = [match for name in given for match in difflib.get_close_matches(name, known, n=1, cutoff=0.75)]
    return f"did you mean {', '.join(near)}?" if near else None
