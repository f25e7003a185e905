"""Aligned cuts: of roots whose sources run ahead of the slowest one, a cut takes older versions. Pure.

*Source time* of a version of a root is the greatest event time among its rows; the *skew* of a cut is how far
the source times of its roots are apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tautochrone.model.names import Version

__all__ = ["Alignment", "HeldBack", "SourceTime", "align"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTime:
    """The source time of a version, in epoch milliseconds."""

    version: Version
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBack:
    """A root of which a cut takes an older version.

    Its newest version is `ahead_ms` ahead of what is taken of the root `behind`, None when that one's source
    time isn't known yet; `taken_ms` is the source time of what is taken of it itself.
    """

    ahead_ms: int | None
    taken_ms: int
    behind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """What a cut takes of each root, and which of them are held back."""

    roots: Mapping[str, str]
    held: Mapping[str, HeldBack]


def align(
    newest: Mapping[str, str],
    times: Mapping[str, Sequence[SourceTime]],
    last: Mapping[str, str],
    bound_ms: int,
) -> Alignment:
    """The newest versions of which none is more than `bound_ms` ahead of another.

    Args:
        newest: what an unaligned cut would take.
        times: of the roots that take part, the versions that a cut may take, from that of the last cut on,
            oldest first. Empty: nothing is known yet of a root that takes part; it stays where it is, and
            so do the others, for nobody knows how far ahead of it they are.
        last: what the last cut took. Nothing goes back behind it.
    """
    roots = dict(newest)
    for name in newest.keys() & times.keys():
        if not times[name]:
            roots[name] = last.get(name, newest[name])
    ways = {name: _Way(times[name], last.get(name)) for name in newest if times.get(name)}
    unknown = sorted(name for name in newest.keys() & times.keys() if not times[name])
    behind = unknown[0] if unknown else ""
    # Whoever goes back may become the slowest: then the others must not be ahead of what is left of it.
    while ways and not unknown:
        slowest = min(ways, key=lambda name: (ways[name].at_ms, ways[name].is_held, name))
        moved = [way.go_back(ways[slowest].at_ms + bound_ms) for way in ways.values()]
        if not any(moved):
            behind = slowest
            break
    if unknown:
        for way in ways.values():
            way.stay()
    roots |= {name: way.version for name, way in ways.items()}
    held = {
        name: HeldBack(
            ahead_ms=None if unknown else way.newest_ms - ways[behind].at_ms,
            taken_ms=way.at_ms,
            behind=behind,
        )
        for name, way in ways.items()
        if way.is_held
    }
    return Alignment(roots=roots, held=held)


class _Way:
    """The versions of one root that may be taken: from the newest back to that of the last cut."""

    def __init__(self, found: Sequence[SourceTime], last: str | None) -> None:
        versions = [one.version for one in found]
        self._found = found
        self._floor = versions.index(Version(last)) if last in versions else 0
        self._at = len(found) - 1
        # What was told need not have the version of the last cut: the root stays there until it has.
        self._stays = last if last is not None and last not in versions else None

    @property
    def at_ms(self) -> int:
        return self._found[self._at].at_ms

    @property
    def newest_ms(self) -> int:
        return self._found[-1].at_ms

    @property
    def version(self) -> str:
        return self._found[self._at].version if self._stays is None else self._stays

    @property
    def is_held(self) -> bool:
        return self._at < len(self._found) - 1 or self._stays is not None

    def stay(self) -> None:
        """As far back as possible."""
        self._at = self._floor

    def go_back(self, until_ms: int) -> bool:
        """To the newest version that is not after `until_ms`, as far as possible; whether it moved."""
        before = self._at
        while self._at > self._floor and self.at_ms > until_ms:
            self._at -= 1
        return self._at < before
