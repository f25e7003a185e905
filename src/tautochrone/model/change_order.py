"""The sequence of a change event that came through Kafka: where it stands in the database's log and in Kafka.

    STRUCT<generation, …position, is_upsert?, offset, …row?, is_upsert?, topic, partition, digest>

The fields before `is_upsert` or `offset` are the position in the log; there are none where offsets alone
order the events. A log's positions begin lower after a failover or a restore. Offsets cannot tell that from
an event that its connector sends again, so both are needed (`spark.execute.change_order`).

The property `tautochrone.position-restarts` of the table says from which offsets on the positions are those
of another log: a JSON object as Spark's option `startingOffsets` takes it, or a list of such, oldest first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tautochrone.errors import DefinitionError

__all__ = [
    "DIGEST",
    "GENERATION",
    "IS_UPSERT",
    "OFFSET",
    "PARTITION",
    "POSITION_RESTARTS",
    "TOPIC",
    "Restart",
    "position_restarts",
    "restarts_text",
]

GENERATION, OFFSET, IS_UPSERT = "generation", "offset", "is_upsert"
TOPIC, PARTITION, DIGEST = "topic", "partition", "digest"

POSITION_RESTARTS = "tautochrone.position-restarts"

Restart = Mapping[str, Mapping[int, int]]
"""Topic → partition → the first offset whose event has a position of the next log."""


def position_restarts(properties: Mapping[str, str], location: str) -> tuple[Restart, ...]:
    """Where the positions of a table's events began anew, oldest first; from its properties.

    Raises:
        DefinitionError: `INVALID_POSITION_RESTARTS`.

    >>> position_restarts({"tautochrone.position-restarts": '{"orders": {"0": 120}}'}, "a.py:1")
    ({'orders': {0: 120}},)
    """
    text = properties.get(POSITION_RESTARTS)
    if text is None:
        return ()
    try:
        parsed = json.loads(text)
        restarts = parsed if isinstance(parsed, list) else [parsed]
        read = tuple(
            {
                topic: {int(partition): _offset(offset) for partition, offset in offsets.items()}
                for topic, offsets in restart.items()
            }
            for restart in restarts
        )
    except (ValueError, AttributeError) as error:
        raise DefinitionError(
            "INVALID_POSITION_RESTARTS",
            f"{text!r} names no offsets of partitions",
            location=location,
            hint='such as {"orders": {"0": 120, "1": 95}}, or a list of such, oldest first',
        ) from error
    return read


def restarts_text(restarts: Sequence[Restart]) -> str:
    """The property's value, the same for equal restarts."""
    return json.dumps(list(restarts) if len(restarts) != 1 else restarts[0], sort_keys=True)


def _offset(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value
