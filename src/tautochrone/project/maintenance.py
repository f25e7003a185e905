"""The section `[maintenance]` of `tautochrone.toml`: what is kept, and the limits of one maintenance."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MaintenanceRules"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRules:
    """The rules for expiring versions and compacting files. Times in milliseconds.

    The newest `keep_last` checkpoints stay readable, and those younger than `keep_ms` of which two are at
    least `spacing_ms` apart. Within `history_ms` every version of every table stays, for those who follow
    changes from outside. A run maintains its tables once in `every_ms`, and starts no further table after
    `budget_ms`; a table of which fewer than `min_versions` can expire is skipped. From `min_files` small
    files on they are rewritten as larger ones, about `max_files` of them at a time; 0 turns that off.
    Orphans are deleted when they are older than `orphans_ms`; a run looks for them once
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
