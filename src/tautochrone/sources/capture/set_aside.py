"""Tables of a capture that cannot be captured as they are. They are set aside, so that the others go on: a
table's trouble is its own. Such a table has no definition. What the lake has of it stays as it was, and it is
copied when it can be captured again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from tautochrone.errors import DefinitionError, TautochroneError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sources.capture.definitions import matches_any

__all__ = ["absent_tables", "aside_reason", "refused_names", "require_capturable"]


class _Table(Protocol):
    @property
    def name(self) -> str: ...


_ABSENT = "CAPTURE_WITHOUT_TABLES"
T = TypeVar("T", bound=_Table)


def absent_tables(
    capture: str, patterns: Sequence[str], names: Iterable[str], rights: str
) -> dict[str, DefinitionError]:
    """By pattern why it stands for no table.

    Args:
        names: of all tables that the user sees.
        rights: without which it would not see one.
    """
    known = list(names)
    return {
        pattern: DefinitionError(
            "CAPTURE_WITHOUT_TABLES",
            f"The capture {capture} names {pattern}, and the database has no such table",
            hint=f"a pattern is schema.table, with * for any characters; a user sees no table without "
            f"{rights}. Of one that was dropped or renamed the lake's rows stay as they were, and it is "
            f"copied when it comes back; otherwise take its name out of tables=[…]",
        )
        for pattern in patterns
        if not any(matches_any(name, [pattern]) for name in known)
    }


def require_capturable(
    tables: Iterable[T],
    check: Callable[[T], None],
    absent: dict[str, DefinitionError],
    aside: dict[str, Reason] | None,
) -> tuple[T, ...]:
    """The tables that can be captured.

    Args:
        check: raises why a table cannot be captured.
        absent: by name what there is no table for.
        aside: gets, by name, why others are set aside; None: the first of these errors is raised.

    Raises:
        DefinitionError: no table can be captured.
    """
    troubles, capturable = dict(absent), []
    for table in tables:
        try:
            check(table)
        except DefinitionError as refused:
            troubles[table.name] = refused
        else:
            capturable.append(table)
    if troubles and (aside is None or not capturable):
        raise next(iter(troubles.values()))
    for name, error in troubles.items():
        assert aside is not None
        aside[name] = aside_reason(name, error)
    return tuple(capturable)


def aside_reason(name: str, error: TautochroneError) -> Reason:
    """Why a table is set aside."""
    return Reason.of(
        ReasonCode.TABLE_SET_ASIDE,
        relation=name,
        error=error.error_class,
        text=error.message,
        hint=str(error.hint),
    )


def refused_names(aside: Mapping[str, Reason]) -> frozenset[str]:
    """Tables that were there, and refused, when definitions were loaded: they are no new ones, and would be
    refused again."""
    return frozenset(name for name, reason in aside.items() if reason.params["error"] != _ABSENT)
