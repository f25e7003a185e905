"""Commit metadata of tables that got another name, and of those that read them.

Older commits keep the names of then. The newest commit metadata of a table says what they are called now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tautochrone.model.lake import CommitMetadata

__all__ = ["renamed", "with_current_names"]


def with_current_names(metadata: CommitMetadata, names: Mapping[str, str]) -> CommitMetadata:
    """The same with the names that tables and flows have now.

    Args:
        names: the current names by the former ones.

    >>> from tautochrone.model.names import Fence
    >>> metadata = CommitMetadata(pipeline="p", job="p", fence=Fence(1), store="s", inputs={"old": "7"})
    >>> with_current_names(metadata, {"old": "new"}).inputs
    {'new': '7'}
    """
    return replace(
        metadata,
        positions={names.get(flow, flow): position for flow, position in metadata.positions.items()},
        inputs={names.get(name, name): version for name, version in metadata.inputs.items()},
        companions={names.get(name, name): version for name, version in metadata.companions.items()},
    )


def renamed(metadata: CommitMetadata, names: Mapping[str, str]) -> CommitMetadata:
    """The same with new names, which it remembers from now on; itself if it has none of the former ones."""
    known = metadata.former_names
    if not names.keys() & {*metadata.positions, *metadata.inputs, *metadata.companions, *known.values()}:
        return metadata
    current = {old: names.get(new, new) for old, new in known.items()}
    former = {old: new for old, new in {**current, **names}.items() if old != new}
    return replace(with_current_names(metadata, names), former_names=former)
