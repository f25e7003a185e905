"""Tables of a captured database that are others than the definitions say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tautochrone.errors import DefinitionError, DefinitionsOutdatedError

__all__ = ["definitions_outdated", "outdated_if_refused"]


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


@contextmanager
def outdated_if_refused() -> Iterator[None]:
    """A table that cannot be captured any more is set aside once definitions are loaded anew.

    Raises:
        DefinitionsOutdatedError: with the class, and the hint, of what refused the table.
    """
    try:
        yield
    except DefinitionError as error:
        raise DefinitionsOutdatedError(
            error.error_class,
            error.message,
            hint=f"{error.hint}. Until then it is set aside: run again, as a continuous run does by itself",
        ) from error
