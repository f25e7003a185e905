"""The route that gives write tokens."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tautochrone.meta import Store
from tautochrone.metaservice.api.write_tokens import write_token

__all__ = ["WriteToken", "add"]


class WriteToken(BaseModel):
    """A time of the store's clock. A read with it shows everything that the sources held then."""

    token: str = Field(description="the value of `after` in reads")


def add(router: APIRouter, store: Store) -> None:
    # By POST, because a cached answer would be an older token.
    @router.post("/tokens", tags=["versions"])
    def token() -> WriteToken:
        """A write token for what the sources hold now; changes nothing."""
        return WriteToken(token=write_token(store))
