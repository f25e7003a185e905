"""The section `[maintenance]` of `tautochrone.toml`: what is kept, and how much is done at a time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MaintenanceRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRules:
    """How a job keeps its tables small. Times in milliseconds.

    The newest `keep_last` checkpoints stay readable, and those younger than `keep_ms` of which two are at
    least `spacing_ms` apart. Within `history_ms` every version of every table stays, for those who follow
    changes from outside. A run looks at its tables once in `every_ms`, and begins with no further one after
    `budget_ms`; a table of which fewer than `min_versions` may go is left alone. From `min_files` small files
    on they are rewritten as bigger ones, about `max_files` of them at a time; 0 leaves all files as they are.
    Files that nothing refers to are deleted when they are older than `orphans_ms`; a run looks for them once
    in `orphans_every_ms`, never when that is 0.
    """

    enabled: bool
    keep_ms: int
    keep_last: int
    spacing_ms: int
    history_ms: int
    every_ms: int
    budget_ms: int
    min_versions: int
    min_files: int
    max_files: int
    orphans_ms: int
    orphans_every_ms: int
