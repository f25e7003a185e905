"""For how long a table of AUTO CDC remembers deletions: a property of the table."""

from __future__ import annotations

from collections.abc import Mapping

from tautochrone.errors import DefinitionError
from tautochrone.model.log_retention import duration_ms

__all__ = ["TOMBSTONE_RETENTION", "tombstone_retention_ms"]

TOMBSTONE_RETENTION = "tautochrone.tombstone-retention"


def tombstone_retention_ms(properties: Mapping[str, str], location: str) -> int | None:
    """Milliseconds, from the properties of a streaming table; None: it remembers them for ever.

    Raises:
        DefinitionError: `INVALID_TOMBSTONE_RETENTION`.

    >>> tombstone_retention_ms({"tautochrone.tombstone-retention": "2 days"}, "a.py:1")
    172800000
    """
    text = properties.get(TOMBSTONE_RETENTION)
    if text is None:
        return None
    retention_ms = duration_ms(text)
    if retention_ms is None:
        raise DefinitionError(
            "INVALID_TOMBSTONE_RETENTION",
            f"{text!r} is no duration for which a table remembers deletions",
            location=location,
            hint="such as '2 days' or '12h'",
        )
    return retention_ms
