"""Who asks, and for how long they may hold versions.

A lease ends by itself, so that a reader that is gone stops nobody from expiring: how long that may take is
bounded here, and readers renew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tautochrone.errors import QueryError
from tautochrone.metaservice.http.request_names import text_of

__all__ = ["CALLER", "LONGEST_LEASE_MS", "OWNER_LENGTH", "Caller", "Role", "caller_of", "checked_owner"]

CALLER = "tautochrone_caller"
"""Where the guard leaves the caller in a request's scope."""
OWNER_LENGTH = 255


class Role(StrEnum):
    """`READ` asks and holds short pins of its own, `OPERATE` changes too."""

    READ = "read"
    OPERATE = "operate"


LONGEST_LEASE_MS = MappingProxyType({Role.READ: 3_600_000, Role.OPERATE: 24 * 3_600_000})
"""An hour for readers, a day for operators, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a role, and an identity that others cannot take.

    Attributes:
        role: what they may do.
        identity: the same for all requests with one token; all who show none are one.
    """

    role: Role
    identity: str

    @property
    def holder(self) -> str | None:
        """Whose pins they may renew and release; None: everybody's."""
        return None if self.role is Role.OPERATE else self.identity

    def require_lease(self, lease_ms: int, *, least: int = 1) -> None:
        """
        Raises:
            QueryError: `LEASE_INVALID`.
        """
        longest = LONGEST_LEASE_MS[self.role]
        if not least <= lease_ms <= longest:
            raise QueryError(
                "LEASE_INVALID",
                f"A pin of the role {self.role} lasts {least} to {longest} milliseconds from now",
                hint="renew it while you read",
            )


def caller_of(scope: object) -> Caller:
    """The caller of a request; without a guard before it, it is an operator's own application."""
    found = scope.get(CALLER) if isinstance(scope, dict) else None
    return found if isinstance(found, Caller) else Caller(Role.OPERATE, "operate")


def checked_owner(owner: str) -> str:
    """
    Raises:
        QueryError: `NAME_INVALID`.
    """
    return text_of(owner, "An owner", OWNER_LENGTH)
