"""The caller of a request, and how long its pins may last.

A lease ends by itself, so that the pin of a reader that died does not keep versions forever. Its length is
bounded here; readers renew it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from tautochrone.errors import QueryError
from tautochrone.metaservice.http.request_names import checked_text

__all__ = ["CALLER", "LONGEST_LEASE_MS", "OWNER_LENGTH", "Caller", "Role", "caller_of", "checked_owner"]

CALLER = "tautochrone_caller"
"""The key of the caller in a request's scope. `AccessMiddleware` sets it."""
OWNER_LENGTH = 255


class Role(StrEnum):
    """`READ` may read and hold short pins of its own, `OPERATE` may also change."""

    READ = "read"
    OPERATE = "operate"


LONGEST_LEASE_MS = MappingProxyType({Role.READ: 3_600_000, Role.OPERATE: 24 * 3_600_000})
"""An hour for readers, a day for operators, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The client that sent a request.

    Attributes:
        role: what it may do.
        identity: the same for all requests with one token, and for all requests without a token.
    """

    role: Role
    identity: str

    @property
    def pin_principal(self) -> str | None:
        """Whose pins the caller may renew and release; None: those of all callers."""
        return None if self.role is Role.OPERATE else self.identity

    def require_lease(self, lease_ms: int, *, least: int = 1) -> None:
        """Check the length of a lease.

        Raises:
            QueryError: `LEASE_INVALID`: shorter than `least`, or longer than the role allows.
        """
        longest = LONGEST_LEASE_MS[self.role]
        if not least <= lease_ms <= longest:
            raise QueryError(
                "LEASE_INVALID",
                f"A pin of the role {self.role} lasts {least} to {longest} milliseconds from now",
                hint="renew it while you read",
            )


def caller_of(scope: object) -> Caller:
    """The caller of a request; with the role operate in an application without `AccessMiddleware`."""
    caller = scope.get(CALLER) if isinstance(scope, dict) else None
    return caller if isinstance(caller, Caller) else Caller(Role.OPERATE, "operate")


def checked_owner(owner: str) -> str:
    """The name of a pin's owner, as the store accepts it.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    return checked_text(owner, "An owner", OWNER_LENGTH)
