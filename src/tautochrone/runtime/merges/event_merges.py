"""The merge of a table's AUTO CDC flows: the checks, the keys and the order of their events.

An event that would write a row is checked against the table's expectations before it is merged; deletions and
truncations write none. So what the table holds follows from the events that are merged, in whatever order
they come.

The keys of events become conditions, by which a merge reads few rows of the state and of the table.

Repetitions of change events from Kafka are left out, and events in no known order are refused, by the rules
of `spark.execute.change_order`. A repetition is looked for among the events that are merged already only when
a new event's position is not above that of its key, which is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from tautochrone.errors import RefreshError
from tautochrone.ingest.staging import align, require_expectations_met
from tautochrone.model.auto_cdc import (
    DELETE_COLUMN,
    END_COLUMN,
    OFFSET,
    PARTITION,
    POSITION_RESTARTS,
    SEQUENCE_COLUMN,
    START_COLUMN,
    TOPIC,
    TRUNCATE_COLUMN,
    AutoCdc,
    Restart,
    position_restarts,
    restarts_text,
)
from tautochrone.model.definitions import Dataset, Expectation
from tautochrone.model.names import TableName, quoted
from tautochrone.project.graph import ResolvedFlow
from tautochrone.runtime.refresh.task import RefreshTask
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.execute.change_order import (
    IS_CANDIDATE,
    MOVED,
    WENT_BACK,
    ChangeOrder,
    is_change_order,
    with_generation,
)
from tautochrone.spark.execute.expectations import violations, without_flags
from tautochrone.spark.execute.key_lookups import key_values
from tautochrone.spark.execute.materialize import fits_on_driver, materialize
from tautochrone.spark.execute.merge_events import SEQUENCE, EventMerge, event_merge
from tautochrone.spark.sources.stream_as_batch import stream_as_batch

__all__ = [
    "CheckedEvents",
    "EventKeys",
    "EventOrder",
    "aligned_events",
    "auto_cdc_of",
    "checked_events",
    "input_of",
    "lacks_key_or_sequence",
    "merge_of",
    "merged_events",
    "merged_rows",
    "rows_of_all_events",
]


class EventKeys:
    """The keys of folded events, as conditions for reads.

    Args:
        count: of the folded events.
        is_all: all keys are needed, because the table is emptied.
    """

    def __init__(self, merge: EventMerge, folded: DataFrame, count: int, *, is_all: bool) -> None:
        self._merge = merge
        self._folded = folded
        self._is_all = is_all
        self._values = {} if is_all or not fits_on_driver(count) else key_values(folded, merge.keys)

    def matching(self, state: DataFrame) -> DataFrame:
        """The state's rows of the keys, and the row of the last truncation."""
        if self._is_all:
            return state
        keys = self._merge.keys_of(self._folded)
        events = keys.select(*(sf.col(key).alias(f"e_{key}") for key in self._merge.keys))
        equal = [sf.col(f"e_{key}").eqNullSafe(sf.col(key)) for key in self._merge.keys]
        return self.pruned(state).join(events, reduce(Column.__and__, equal), "left_semi")

    def pruned(self, rows: DataFrame, prefix: str = "", names: Mapping[str, str] | None = None) -> DataFrame:
        """Rows without files that have none of the keys, as their statistics tell.

        Args:
            names: the rows' columns by name → the column of the events; None: they are named alike.
        """
        columns = {f"{prefix}{key}": key for key in self._values} if names is None else names
        for column, key in columns.items():
            if key in self._values:
                # The state has a row without keys: that of the last truncation.
                rows = rows.where(self._values[key].condition(quoted(column), or_null=True))
        return rows


@dataclass(frozen=True, slots=True)
class CheckedEvents:
    """The events that are merged, and the violations of each expectation since the last full refresh."""

    parts: Sequence[DataFrame]
    violations: Mapping[str, int]


def checked_events(
    flagged: Sequence[DataFrame],
    table: TableName,
    expectations: Sequence[Expectation],
    before: Mapping[str, int],
) -> CheckedEvents:
    """Count the violations of new events, and leave out what is dropped.

    Args:
        flagged: the events of each flow, as `with_flags` gives them.
        before: the violations of the events that are merged.

    Raises:
        ExpectationError: an event violates an expectation that fails.
    """
    if not expectations:
        return CheckedEvents(flagged, {})
    counted = {expectation.name: before.get(expectation.name, 0) for expectation in expectations}
    parts = []
    for events in flagged:
        violated = violations(events, expectations)
        # People know the columns of their table.
        rows = events.drop(SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
        require_expectations_met(table, rows, expectations, violated)
        counted = {name: count + violated[name] for name, count in counted.items()}
        parts.append(without_flags(events, expectations))
    return CheckedEvents(parts, counted)


def lacks_key_or_sequence(flow: ResolvedFlow) -> Column:
    """A condition on the events of a flow: they cannot be merged."""
    auto_cdc = flow.flow.auto_cdc
    assert auto_cdc is not None
    without_key = reduce(or_, (sf.col(quoted(key)).isNull() for key in auto_cdc.keys))
    return (without_key & ~sf.col(TRUNCATE_COLUMN)) | sf.col(SEQUENCE_COLUMN).isNull()


def merged_events(flow: ResolvedFlow, events: DataFrame) -> DataFrame:
    """Of events that were read already, those that were merged: the others were set aside.

    Whether the flow sets events aside now says nothing of them.
    """
    return events.where(~lacks_key_or_sequence(flow))


def auto_cdc_of(flows: Sequence[ResolvedFlow]) -> AutoCdc | None:
    """How the flows of a table merge; None: they append."""
    return next((flow.flow.auto_cdc for flow in flows if flow.flow.auto_cdc is not None), None)


def input_of(flow: ResolvedFlow) -> TableName:
    """The lake table whose events an AUTO CDC flow takes."""
    (table,) = flow.inputs.stream
    return table


def merge_of(
    flows: Sequence[ResolvedFlow], schema: StructType, query: StructType, location: str
) -> EventMerge:
    """How the events of a table's flows are merged.

    Args:
        schema: the table's.
        query: the schema of the flows' queries.
        location: where the table is defined.
    """
    auto_cdc = auto_cdc_of(flows)
    assert auto_cdc is not None
    columns = [*_data_columns(schema), SEQUENCE_COLUMN]
    types = {field.name: field for field in (*query.fields, *schema.fields)}
    return event_merge(
        auto_cdc,
        auto_cdc.merge_columns(columns, location),
        StructType([types[name] for name in columns]),
        truncates=any(flow.flow.auto_cdc and flow.flow.auto_cdc.truncate is not None for flow in flows),
    )


def aligned_events(
    parts: Sequence[DataFrame], schema: StructType, table: TableName, restarts: Sequence[Restart] = ()
) -> DataFrame:
    """The events of all flows, with the columns of the table and those that say what an event does.

    Args:
        restarts: where the positions of the events began anew.
    """
    events = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), parts)
    special = (SEQUENCE_COLUMN, DELETE_COLUMN, TRUNCATE_COLUMN)
    fields = [*(schema[name] for name in _data_columns(schema)), *(events.schema[name] for name in special)]
    aligned = align(events, StructType(fields), str(table))
    if not restarts or not is_change_order(aligned.schema[SEQUENCE_COLUMN].dataType):
        return aligned
    return aligned.withColumn(SEQUENCE_COLUMN, with_generation(sf.col(SEQUENCE_COLUMN), restarts))


def rows_of_all_events(
    flows: Sequence[ResolvedFlow],
    inputs: Mapping[TableName, DataFrame],
    schema: StructType,
    dataset: Dataset,
) -> DataFrame:
    """The rows of a table if all events are merged at once.

    Args:
        inputs: what the flows read, in a session in which their queries can be evaluated.
        schema: the table's.
        dataset: the table.
    """
    parts = [
        merged_events(
            flow, stream_as_batch(rows.sparkSession, analyzed_plan(flow.evaluate(rows.sparkSession)), rows)
        )
        for flow in flows
        for rows in (inputs[input_of(flow)],)
    ]
    return merged_rows(flows, parts, schema, dataset)


def merged_rows(
    flows: Sequence[ResolvedFlow], parts: Sequence[DataFrame], schema: StructType, dataset: Dataset
) -> DataFrame:
    """The rows of a table if these events are merged at once.

    Args:
        parts: the events of each flow, as its query gives them.
        schema: the table's.
        dataset: the table.
    """
    table, location = dataset.name, str(dataset.location)
    events = aligned_events(parts, schema, table, position_restarts(dataset.properties, location))
    merge = merge_of(flows, schema, events.schema, location)
    renamed = merge.renamed(events)
    if is_change_order(merge.sequence_type):
        order = ChangeOrder(merge, is_one_flow=len(flows) == 1)
        renamed = order.with_order_errors(order.first_copies(renamed), None).drop(MOVED, WENT_BACK)
    folded = merge.fold(renamed)
    nothing = events.sparkSession.createDataFrame([], merge.state_schema("run"))
    return align(merge.merge(folded, nothing).added, schema, str(table))


def _data_columns(schema: StructType) -> list[str]:
    return [name for name in schema.names if name not in (START_COLUMN, END_COLUMN)]


@dataclass(slots=True)
class EventOrder:
    """The order of the events of one refresh, as `EventMerge.renamed` gives them."""

    task: RefreshTask
    order: ChangeOrder
    restarts: Sequence[Restart]
    _checked: DataFrame | None = None

    def of_all(self, events: DataFrame) -> DataFrame:
        """The events without repetitions, if none is merged yet. Those in no known order are `INVALID`."""
        return self._marked(self.order.with_order_errors(self.order.first_copies(events), None))

    def of_new(
        self,
        events: DataFrame,
        max_events: int,
        state_of: Callable[[EventKeys], DataFrame],
        merged_of: Callable[[EventKeys], DataFrame],
    ) -> DataFrame:
        """The events without repetitions. Those in no known order are `INVALID`.

        Args:
            events: new ones, at most `max_events`.
            state_of: gives the state of some keys.
            merged_of: gives events that are merged, with all that are of some keys.
        """
        order, merge = self.order, self.order.merge
        events, count = materialize(events, max_rows=max_events)
        truncates = merge.is_truncating and bool(merge.truncations(events).take(1))
        keys = EventKeys(merge, events, count, is_all=truncates)
        known = order.known_sequences(state_of(keys))
        if not truncates:
            known, _ = materialize(known, max_rows=count + 1)
        copies = order.first_copies(events)
        if order.position_fields:
            marked, count = materialize(order.candidates(copies, known), max_rows=count)
            candidates, few = materialize(marked.where(IS_CANDIDATE), max_rows=count)
            copies = marked.drop(IS_CANDIDATE)
            if few:
                merged = merged_of(EventKeys(merge, candidates, few, is_all=False))
                merged = order.in_range(merged, SEQUENCE_COLUMN, candidates)
                copies = order.without_repetitions(marked, merge.renamed(merged))
        return self._marked(order.with_order_errors(copies, known))

    def require_order(self) -> None:
        """
        Raises:
            RefreshError: `CHANGE_EVENTS_ORDER_WENT_BACK`, `CHANGE_EVENTS_IN_SEVERAL_PARTITIONS`.
        """
        assert self._checked is not None
        bad = self._checked.where(sf.col(MOVED) | sf.col(WENT_BACK))
        order = (sf.col(f"{SEQUENCE}.{name}") for name in (TOPIC, PARTITION, OFFSET))
        for event in bad.orderBy(sf.col(MOVED).desc(), *order).limit(1).collect():
            raise self._moved_event_error(event) if event[MOVED] else self._went_back_error(event, bad)

    # -- inside -----------------------------------------------------------------------------------

    def _marked(self, checked: DataFrame) -> DataFrame:
        self._checked = checked
        return checked.drop(MOVED, WENT_BACK)

    def _went_back_error(self, event: Row, bad: DataFrame) -> RefreshError:
        at = event[SEQUENCE]
        fields = self.order.position_fields
        position = ", ".join(f"{name} {at[name]}" for name in fields) or f"offset {at[OFFSET]}"
        table = self.task.name.table
        if not fields:
            begins_anew = "Kafka's topic was made anew"
            hint = f"read a new topic that has all rows, and build anew with --full-refresh {self._tables()}"
        else:
            begins_anew = "positions of another log have begun, or the topic is not in the log's order"
            hint = (
                "let the connector write a new topic with a new snapshot, read that one, and build anew with "
                f"--full-refresh {self._tables()}; or, if another log has begun and no event is missing, say "
                f"so in the table's property {POSITION_RESTARTS} = '{self._restart_at(bad)}', "
                f"then --full-refresh {table}"
            )
        return RefreshError(
            "CHANGE_EVENTS_ORDER_WENT_BACK",
            f"The event of {self.task.name} at offset {at[OFFSET]} of partition {at[PARTITION]} of "
            f"{at[TOPIC]} has a position ({position}) below that of an earlier event"
            f"{self._key_of(event)}, and does not repeat one: {begins_anew}",
            hint=hint,
            location=self.task.location,
            sqlstate="55000",
        )

    def _moved_event_error(self, event: Row) -> RefreshError:
        at = event[SEQUENCE]
        return RefreshError(
            "CHANGE_EVENTS_IN_SEVERAL_PARTITIONS",
            f"The event of {self.task.name} at offset {at[OFFSET]} of partition {at[PARTITION]} of "
            f"{at[TOPIC]} and another one{self._key_of(event)} are in different partitions, whose offsets "
            "say nothing about each other",
            hint="let all events of a key, and all of a table that is truncated, go to one partition of one "
            "topic; if they went to another one from some time on, such as after partitions were added, "
            f"name the first offset after it of every partition in the table's property {POSITION_RESTARTS}, "
            'such as \'{"orders": {"0": 1200, "1": 1150, "2": 0}}\', then --full-refresh '
            f"{self.task.name.table}",
            location=self.task.location,
            sqlstate="55000",
        )

    def _key_of(self, event: Row) -> str:
        merge = self.order.merge
        key = {column: event[name] for column, name in zip(merge.columns.keys, merge.keys, strict=True)}
        return f" of its key {key}" if all(value is not None for value in key.values()) else ""

    def _restart_at(self, bad: DataFrame) -> str:
        """The property with a restart at the first event of each partition that went back: up to there
        offsets and positions order the events of each key alike."""
        at = (sf.col(f"{SEQUENCE}.{name}").alias(name) for name in (TOPIC, PARTITION, OFFSET))
        went_back = bad.where(WENT_BACK).select(*at)
        restart: dict[str, dict[int, int]] = {}
        for topic, partition, offset in went_back.groupBy(TOPIC, PARTITION).agg(sf.min(OFFSET)).collect():
            restart.setdefault(topic, {})[partition] = offset
        return restarts_text([*self.restarts, restart])

    def _tables(self) -> str:
        inputs = (input_of(flow).table for flow in self.task.flows)
        return " ".join(dict.fromkeys((self.task.name.table, *inputs)))
