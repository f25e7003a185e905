"""Times for people: ISO 8601, UTC, milliseconds."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["iso_timestamp"]


def iso_timestamp(at_ms: int | None) -> str | None:
    """Epoch milliseconds as text; None stays None."""
    if at_ms is None:
        return None
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
