"""Delays from the cut to each dataset, and over each edge of the topology."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tautochrone.meta import Store

__all__ = ["DatasetDelay", "add"]


class EdgeDelay(BaseModel):
    """The time from when the input had its version for the checkpoint until the dataset had its own."""

    input: str
    delay_ms: int


class DatasetDelay(BaseModel):
    """The delay of a dataset's newest refresh that changed something."""

    dataset: str
    checkpoint: int
    end_to_end_ms: int = Field(description="from the cut until the dataset had its version for it")
    refresh_ms: int = Field(description="the part of it in which the dataset was refreshed")
    edges: list[EdgeDelay]


def add(router: APIRouter, store: Store) -> None:
    @router.get("/delays", tags=["datasets"])
    def delays() -> list[DatasetDelay]:
        """Delays of all datasets that were ever refreshed. They do not include the time before the cut."""
        return [
            DatasetDelay(
                dataset=str(delay.dataset),
                checkpoint=delay.checkpoint,
                end_to_end_ms=delay.end_to_end_ms,
                refresh_ms=delay.refresh_ms,
                edges=[EdgeDelay(input=str(edge.input), delay_ms=edge.delay_ms) for edge in delay.edges],
            )
            for delay in store.history.delays()
        ]
