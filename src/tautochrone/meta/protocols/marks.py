"""Marks on the methods of the store's protocols: what each does, and its name on the wire.

Every method of a protocol has one. The service derives from them which calls it takes, and which of them a
caller with the role `read` may make (see `calls`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar, overload

__all__ = ["Mark", "MethodEffect", "mark_of", "reads", "writes"]

_MARK = "__tautochrone_mark__"
_Method = TypeVar("_Method", bound=Callable[..., Any])


class MethodEffect(StrEnum):
    """What a method does to the store."""

    READS = "reads"
    WRITES = "writes"
    WRITES_FOR_READERS = "writes for readers"
    """It writes only what belongs to the caller, a reader included: its own pins."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a mark says.

    Attributes:
        effect: what the method does to the store.
        wire: the method's name in `POST /rpc/{method}`; None: its own name. It never changes, so that a
            job and a service of different versions understand each other.
        wire_arguments: for arguments that were renamed the name of each on the wire.
    """

    effect: MethodEffect
    wire: str | None = None
    wire_arguments: Mapping[str, str] = field(default_factory=dict)


@overload
def reads(method: _Method, /) -> _Method: ...
@overload
def reads(
    *, wire: str | None = None, wire_arguments: Mapping[str, str] | None = None
) -> Callable[[_Method], _Method]: ...
def reads(
    method: Any = None, /, *, wire: str | None = None, wire_arguments: Mapping[str, str] | None = None
) -> Any:
    """Mark a method that changes nothing."""
    mark = _marker(Mark(MethodEffect.READS, wire, wire_arguments or {}))
    return mark if method is None else mark(method)


@overload
def writes(method: _Method, /) -> _Method: ...
@overload
def writes(
    *, wire: str | None = None, wire_arguments: Mapping[str, str] | None = None, for_readers: bool = False
) -> Callable[[_Method], _Method]: ...
def writes(
    method: Any = None,
    /,
    *,
    wire: str | None = None,
    wire_arguments: Mapping[str, str] | None = None,
    for_readers: bool = False,
) -> Any:
    """Mark a method that changes the store. With `for_readers` a caller with the role `read` may call it."""
    effect = MethodEffect.WRITES_FOR_READERS if for_readers else MethodEffect.WRITES
    mark = _marker(Mark(effect, wire, wire_arguments or {}))
    return mark if method is None else mark(method)


def mark_of(method: Any) -> Mark | None:
    """The mark of a method; None when it has none."""
    mark = getattr(method, _MARK, None)
    return mark if isinstance(mark, Mark) else None


def _marker(mark: Mark) -> Callable[[_Method], _Method]:
    def apply(method: _Method) -> _Method:
        setattr(method, _MARK, mark)
        return method

    return apply
