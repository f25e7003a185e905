"""Change events from Kafka before they are merged: repetitions go, and events in no known order are refused.

The rules are those of `spark.execute.change_order`. A repetition is looked for among the events that are
merged already only when a new event's position is not above that of its key, which is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf

from tautochrone.errors import RefreshError
from tautochrone.model.auto_cdc import (
    OFFSET,
    PARTITION,
    POSITION_RESTARTS,
    SEQUENCE_COLUMN,
    TOPIC,
    Restart,
    restarts_text,
)
from tautochrone.runtime.refresh.event_keys import EventKeys
from tautochrone.runtime.refresh.event_merges import input_of
from tautochrone.runtime.refresh.task import RefreshTask
from tautochrone.spark.execute.change_order import IS_CANDIDATE, MOVED, WENT_BACK, ChangeOrder
from tautochrone.spark.execute.materialize import materialize
from tautochrone.spark.execute.merge_events import SEQUENCE

__all__ = ["EventOrder"]


@dataclass(slots=True)
class EventOrder:
    """The order of the events of one refresh, as `EventMerge.renamed` gives them."""

    task: RefreshTask
    order: ChangeOrder
    restarts: Sequence[Restart]
    _checked: DataFrame | None = None

    def of_all(self, events: DataFrame) -> DataFrame:
        """The events without repetitions, if none is merged yet. Those in no known order are `INVALID`."""
        return self._marked(self.order.checked(self.order.first_copies(events), None))

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
        known = order.known(state_of(keys))
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
        return self._marked(order.checked(copies, known))

    def require_order(self) -> None:
        """
        Raises:
            RefreshError: `CHANGE_EVENTS_ORDER_WENT_BACK`, `CHANGE_EVENTS_IN_SEVERAL_PARTITIONS`.
        """
        assert self._checked is not None
        bad = self._checked.where(sf.col(MOVED) | sf.col(WENT_BACK))
        order = (sf.col(f"{SEQUENCE}.{name}") for name in (TOPIC, PARTITION, OFFSET))
        for event in bad.orderBy(sf.col(MOVED).desc(), *order).limit(1).collect():
            raise self._moved(event) if event[MOVED] else self._went_back(event, bad)

    # -- inside -----------------------------------------------------------------------------------

    def _marked(self, checked: DataFrame) -> DataFrame:
        self._checked = checked
        return checked.drop(MOVED, WENT_BACK)

    def _went_back(self, event: Row, bad: DataFrame) -> RefreshError:
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

    def _moved(self, event: Row) -> RefreshError:
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
