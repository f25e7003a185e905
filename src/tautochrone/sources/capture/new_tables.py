"""Tables that come to a captured database while a run goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tautochrone.model.reason import Reason
from tautochrone.sources.capture.definitions import matches_any
from tautochrone.sources.capture.set_aside import refused_names

__all__ = ["NewTables"]


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
