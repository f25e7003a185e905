"""Tables of a captured database that cannot be captured as they are, that changed, or that are new.

Those that cannot be captured are set aside, so that the others go on: a table's trouble is its own. Such a
table has no definition. What the lake has of it stays as it was, and it is copied when it can be captured
again. Tables that changed, or came while a run goes on, need definitions that are loaded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from tautochrone.errors import DefinitionError, DefinitionsOutdatedError, TautochroneError
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.sources.capture.definitions import matches_any

__all__ = [
    "NewTables",
    "absent_tables",
    "aside_reason",
    "definitions_outdated_error",
    "outdated_if_refused",
    "refused_names",
    "require_capturable",
]


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


def definitions_outdated_error(name: str, change: str) -> DefinitionsOutdatedError:
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


@dataclass(slots=True)
class NewTables:
    """
    Args:
        captured: names `schema.table` that the definitions have.
        patterns, exclude: what the names of captured tables match.
        aside: tables that are not captured as they were when definitions were loaded.

    Example:
        >>> new_tables = NewTables(["shop.orders"], ["shop.*"], [])
        >>> existing = ["shop.orders", "shop.cards", "other.cards"]
        >>> new_tables.take(existing), new_tables.take(existing)
        ('shop.cards', None)
    """

    captured: Collection[str]
    patterns: Sequence[str]
    exclude: Sequence[str]
    aside: Mapping[str, Reason] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)

    def take(self, existing: Iterable[str]) -> str | None:
        """One that the definitions would have if they were loaded now. Each is returned once: if they do not
        load with it, the flow goes on without it."""
        refused = refused_names(self.aside)
        for name in existing:
            if name in self.captured or name in self._taken or name in refused:
                continue
            if matches_any(name, self.patterns) and not matches_any(name, self.exclude):
                self._taken.add(name)
                return name
        return None
