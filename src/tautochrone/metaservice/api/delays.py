"""How long data takes: from the cut to each dataset, and over each edge of the topology."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tautochrone.meta import Store

__all__ = ["DatasetDelay", "add"]


class EdgeDelayed(BaseModel):
    """One edge: from when the input was ready at the checkpoint until the dataset was."""

    input: str
    delay_ms: int


class DatasetDelay(BaseModel):
    """The newest refresh that changed something."""

    dataset: str
    checkpoint: int
    end_to_end_ms: int = Field(description="from the cut until the dataset had its version for it")
    refresh_ms: int = Field(description="the part of it in which the dataset was computed")
    edges: list[EdgeDelayed]


def add(router: APIRouter, store: Store) -> None:
    @router.get("/delays", tags=["datasets"])
    def delays() -> list[DatasetDelay]:
        """Delays of all datasets that were ever refreshed. Time in the source before a cut is not in them."""
        return [
            DatasetDelay(
                dataset=str(delay.dataset),
                checkpoint=delay.checkpoint,
                end_to_end_ms=delay.end_to_end_ms,
                refresh_ms=delay.refresh_ms,
                edges=[EdgeDelayed(input=str(edge.input), delay_ms=edge.delay_ms) for edge in delay.edges],
            )
            for delay in store.history.delays()
        ]
