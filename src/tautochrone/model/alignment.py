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
    """The source time of a version, in epoch milliseconds.

    `complete_until_ms`, where it is later: the version has all that its source committed until then, so it is
    not behind another root before that. None: not known.
    """

    version: Version
    at_ms: int
    complete_until_ms: int | None = None

    @property
    def complete_ms(self) -> int:
        """Until when the version is not behind its source, as far as anybody knows."""
        return max(self.at_ms, self.complete_until_ms or self.at_ms)


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
    held_back: Mapping[str, HeldBack]


def align(
    newest: Mapping[str, str],
    times: Mapping[str, Sequence[SourceTime]],
    last: Mapping[str, str],
    max_skew_ms: int,
) -> Alignment:
    """The newest versions of which none is more than `max_skew_ms` ahead of another: the source time of none
    is later than that after the time until which another one is complete.

    Args:
        newest: what an unaligned cut would take.
        times: of the roots that take part, the versions that a cut may take, from that of the last cut on,
            oldest first. Empty: no source time of the root is known yet. It stays where it is, and so do the
            others, because nobody knows how far ahead of it they are.
        last: what the last cut took. No root goes back behind it.
    """
    roots = dict(newest)
    for name in newest.keys() & times.keys():
        if not times[name]:
            roots[name] = last.get(name, newest[name])
    candidates = {name: _RootVersions(times[name], last.get(name)) for name in newest if times.get(name)}
    unknown = sorted(name for name in newest.keys() & times.keys() if not times[name])
    behind = unknown[0] if unknown else ""
    # A root that goes back may become the slowest, and then bounds the others.
    while candidates and not unknown:
        slowest = min(
            candidates, key=lambda name: (candidates[name].complete_ms, candidates[name].is_held_back, name)
        )
        moved = [root.go_back(candidates[slowest].complete_ms + max_skew_ms) for root in candidates.values()]
        if not any(moved):
            behind = slowest
            break
    if unknown:
        for root in candidates.values():
            root.stay()
    roots |= {name: root.version for name, root in candidates.items()}
    held_back = {
        name: HeldBack(
            ahead_ms=None if unknown else root.newest_ms - candidates[behind].complete_ms,
            taken_ms=root.at_ms,
            behind=behind,
        )
        for name, root in candidates.items()
        if root.is_held_back
    }
    return Alignment(roots=roots, held_back=held_back)


class _RootVersions:
    """The versions of one root that may be taken: from the newest back to that of the last cut."""

    def __init__(self, source_times: Sequence[SourceTime], last: str | None) -> None:
        versions = [source_time.version for source_time in source_times]
        self._source_times = source_times
        self._oldest_index = versions.index(Version(last)) if last in versions else 0
        self._index = len(source_times) - 1
        # The source times need not include the version of the last cut: the root stays at it until they do.
        self._last_version = last if last is not None and last not in versions else None

    @property
    def at_ms(self) -> int:
        return self._source_times[self._index].at_ms

    @property
    def complete_ms(self) -> int:
        return self._source_times[self._index].complete_ms

    @property
    def newest_ms(self) -> int:
        return self._source_times[-1].at_ms

    @property
    def version(self) -> str:
        return self._source_times[self._index].version if self._last_version is None else self._last_version

    @property
    def is_held_back(self) -> bool:
        return self._index < len(self._source_times) - 1 or self._last_version is not None

    def stay(self) -> None:
        """As far back as possible."""
        self._index = self._oldest_index

    def go_back(self, until_ms: int) -> bool:
        """To the newest version that is not after `until_ms`, as far as possible; whether it moved."""
        before = self._index
        while self._index > self._oldest_index and self.at_ms > until_ms:
            self._index -= 1
        return self._index < before
