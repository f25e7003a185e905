"""What is against the topic of a table, and how it ends."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import SinkError
from tautochrone.model.names import TableName
from tautochrone.sinks.kafka.options import Mode

__all__ = ["foreign_record", "records_lost", "require_kept", "row_too_large", "topic_changed", "topic_taken"]


def topic_changed(sink: str, table: TableName, topic: str, problem: str) -> SinkError:
    """The refusal of a topic that is not what the sink left; `problem` follows its name."""
    return SinkError(
        "SINK_TOPIC_CHANGED",
        f"Sink {sink}: the topic {topic} of {table} {problem}",
        hint=_delete(topic),
        parameters={"sink": sink, "table": str(table)},
        sqlstate="55000",
    )


def records_lost(sink: str, table: TableName, topic: str, partition: int, problem: str) -> SinkError:
    """The refusal to tell the rows of a table from a topic that lacks records."""
    return SinkError(
        "SINK_TOPIC_RETENTION",
        f"Sink {sink}: partition {partition} of {topic} {problem}, so the rows of {table} cannot be told "
        "from it",
        hint=_delete(topic),
        parameters={"sink": sink, "table": str(table)},
        sqlstate="55000",
    )


def topic_taken(sink: str, table: TableName, topic: str) -> SinkError:
    """The refusal of a topic with records that the sink does not know."""
    return SinkError(
        "SINK_NAME_TAKEN",
        f"Sink {sink}: {table} goes to the topic {topic}, which has records that this sink did not write, or "
        "whose control topic is gone",
        hint=f"Give the sink another topic (option topic). If nobody else needs it, {_delete(topic)}",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="42P07",
    )


def foreign_record(sink: str, table: TableName, topic: str, partition: int, offset: int) -> SinkError:
    """The refusal of a topic into which somebody else writes."""
    return SinkError(
        "SINK_NAME_TAKEN",
        f"Sink {sink}: somebody else wrote the record at offset {offset} of partition {partition} of {topic}",
        hint=f"Stop the other writer. Then {_delete(topic)}",
        parameters={"sink": sink, "table": str(table), "topic": topic},
        sqlstate="42P07",
    )


def row_too_large(sink: str, table: TableName, row: str, size_bytes: int) -> SinkError:
    """The refusal of a row that no record of the topic can have; nothing of the delivery was sent."""
    return SinkError(
        "SINK_VALUE_UNSUPPORTED",
        f"Sink {sink}: the row {row} of {table} needs a record of {size_bytes} bytes, which is more than the "
        "topic or the client takes",
        hint="Raise max.message.bytes of the topic, and the sink's option kafka.message.max.bytes, whose "
        "default is 1000000. Or shorten such values in the query of the dataset.",
        parameters={"sink": sink, "table": str(table)},
        sqlstate="22000",
    )


def require_kept(sink: str, topic: str, mode: Mode, settings: Mapping[str, str]) -> None:
    """Refuse settings by which a topic loses rows that its table has.

    Raises:
        SinkError: `SINK_TOPIC_RETENTION`.
    """
    policy = settings["cleanup.policy"]
    is_endless = policy == "delete" and settings["retention.ms"] == settings["retention.bytes"] == "-1"
    if is_endless or (policy == "compact" and mode is Mode.UPSERT):
        return
    endless = "cleanup.policy=delete, retention.ms=-1 and retention.bytes=-1"
    raise SinkError(
        "SINK_TOPIC_RETENTION",
        f"Sink {sink}: the topic {topic} has cleanup.policy={policy}, retention.ms="
        f"{settings['retention.ms']} and retention.bytes={settings['retention.bytes']}: it deletes rows that "
        "the table still has",
        hint=f"Set {'cleanup.policy=compact' if mode is Mode.UPSERT else endless} on the topic.",
        parameters={"sink": sink, "topic": topic},
        sqlstate="55000",
    )


def _delete(topic: str) -> str:
    return f"delete the topic {topic}: the next run creates it, and delivers all rows of the table."
