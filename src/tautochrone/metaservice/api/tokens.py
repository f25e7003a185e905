"""Write tokens: what a writer gets, and a reader hands in to see that write."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tautochrone.meta import Store
from tautochrone.metaservice.api.write_tokens import write_token

__all__ = ["WriteToken", "add"]


class WriteToken(BaseModel):
    """Stands for everything that was written to sources before it was asked for."""

    token: str = Field(description="hand it to reads as `after`")


def add(router: APIRouter, store: Store) -> None:
    # By POST: an answer that somebody kept would be too early a token.
    @router.post("/tokens", tags=["versions"])
    def token() -> WriteToken:
        """A token for what is written by now; changes nothing."""
        return WriteToken(token=write_token(store))
