"""What a commit says about itself: what the lake remembers for us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.model.names import CheckpointNumber, Fence
from tautochrone.model.source_position import SourcePosition

__all__ = ["CommitMetadata"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitMetadata:
    """What a commit says about itself. Carried in the commit, positions carried forward for ever.

    `inputs` maps each input table to its version (derived datasets only), `companions` maps
    companion tables to the snapshot ids that belong to this commit. `reset` forgets the positions of
    earlier commits (a full refresh) instead of carrying them forward. `violations` are of the table's
    expectations, by name, as `model.expectations.ExpectationCount` counts them.

    `run` and `runs` are of a view's state only: the sequence number of its newest run, which grows along the
    whole history of the table, and how many runs were added since they were last folded into one.
    `shortened` are the relations of which rows of a log table were dropped.
    `revoked` are the ranges of checkpoints that revisions took back, after the first number, to the second.
    """

    pipeline: str
    job: str
    fence: Fence
    store: str
    checkpoint: CheckpointNumber | None = None
    mode: str | None = None
    definition: str | None = None
    positions: Mapping[str, SourcePosition] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    companions: Mapping[str, str] = field(default_factory=dict)
    violations: Mapping[str, int] = field(default_factory=dict)
    reset: bool = False
    run: int | None = None
    runs: int | None = None
    shortened: tuple[str, ...] = ()
    revoked: tuple[tuple[int, int], ...] = ()
