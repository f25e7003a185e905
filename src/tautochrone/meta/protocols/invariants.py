"""`store.invariants`. The invariants that jobs check, and the last check of each job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tautochrone.meta.protocols.marks import reads
from tautochrone.model.checkpoint import InvariantEntry
from tautochrone.model.names import CheckpointNumber

__all__ = ["InvariantCheck", "Invariants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantCheck:
    """The newest checkpoint for which a job checked invariants, and by name the definitions (fingerprints) of
    those that held."""

    checkpoint: CheckpointNumber
    definitions: Mapping[str, str]


class Invariants(Protocol):
    """The invariants that jobs check, and the last check of each job."""

    @reads
    def entries(self, job: str | None = None) -> tuple[InvariantEntry, ...]:
        """The invariants that one job checks, or all jobs, by name."""

    @reads
    def last_check(self, job: str) -> InvariantCheck | None:
        """The newest check of the job; None before the first one."""
