"""Commit metadata of tables that got another name, and of those that read them.

Older commits keep the names of then. Each commit knows how many renames were before it, and the newest commit
metadata of a table has all of them in order: the later ones say what is called how now. A name that is given
again means another table before a rename than after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tautochrone.model.lake import CommitMetadata

__all__ = ["renamed", "with_current_names", "with_renames"]

Renames = Sequence[Mapping[str, str]]


def with_current_names(metadata: CommitMetadata, renames: Renames) -> CommitMetadata:
    """The same with the names that tables and flows have now.

    Args:
        renames: all of its table, of which the commit knows the first ones.

    >>> from tautochrone.model.names import Fence
    >>> metadata = CommitMetadata(pipeline="p", job="p", fence=Fence(1), store="s", inputs={"old": "7"})
    >>> with_current_names(metadata, [{"old": "new"}, {"new": "newest"}]).inputs
    {'newest': '7'}
    """
    for names in renames[len(metadata.renames) :]:
        metadata = _named(metadata, names)
    return metadata


def with_renames(before: CommitMetadata | None, new: CommitMetadata) -> CommitMetadata:
    """The metadata of a commit after `before`, which knows all renames until then."""
    if before is None or len(before.renames) <= len(new.renames):
        return new
    return replace(new, renames=before.renames)


def renamed(metadata: CommitMetadata, names: Mapping[str, str]) -> CommitMetadata:
    """The same with new names, which it remembers from now on; itself if neither it nor an older commit has
    one of the former ones."""
    known = {*metadata.positions, *metadata.inputs, *metadata.companions}
    of_older_commits: set[str] = set()
    for before in metadata.renames:
        of_older_commits = {before.get(name, name) for name in of_older_commits} | {*before.values()}
    if not names.keys() & (known | of_older_commits):
        return metadata
    return _named(metadata, {old: new for old, new in names.items() if old != new})


def _named(metadata: CommitMetadata, names: Mapping[str, str]) -> CommitMetadata:
    return replace(
        metadata,
        positions={names.get(flow, flow): position for flow, position in metadata.positions.items()},
        inputs={names.get(name, name): version for name, version in metadata.inputs.items()},
        companions={names.get(name, name): version for name, version in metadata.companions.items()},
        renames=(*metadata.renames, names),
    )
