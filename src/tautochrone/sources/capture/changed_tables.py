"""Tables of a captured database that are others than the definitions say."""

from __future__ import annotations

from tautochrone.errors import DefinitionsOutdatedError

__all__ = ["definitions_outdated"]


def definitions_outdated(name: str, change: str) -> DefinitionsOutdatedError:
    """For a table that is captured as it is now once definitions are loaded anew.

    Args:
        change: the end of a sentence about the table, such as `was dropped`.
    """
    return DefinitionsOutdatedError(
        "CAPTURED_TABLE_CHANGED",
        f"The table {name} {change} since definitions were loaded",
        hint="run again, as a continuous run does by itself: definitions then have the table as it is",
    )
