"""Marks on the methods of the store's protocols: what each does to the store.

Every method of a protocol has one. The service derives from them which calls it takes, and which of them a
caller with the role `read` may make (see `calls`).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar, overload

__all__ = ["MethodEffect", "effect_of", "reads", "writes"]

_MARK = "__tautochrone_mark__"
_Method = TypeVar("_Method", bound=Callable[..., Any])


class MethodEffect(StrEnum):
    """What a method does to the store."""

    READS = "reads"
    WRITES = "writes"
    WRITES_FOR_READERS = "writes for readers"
    """It writes only what belongs to the caller, a reader included: its own pins."""


def reads(method: _Method) -> _Method:
    """Mark a method that changes nothing."""
    return _marked(method, MethodEffect.READS)


@overload
def writes(method: _Method, /) -> _Method: ...
@overload
def writes(*, for_readers: bool) -> Callable[[_Method], _Method]: ...
def writes(method: Any = None, /, *, for_readers: bool = False) -> Any:
    """Mark a method that changes the store. With `for_readers` a caller with the role `read` may call it."""
    effect = MethodEffect.WRITES_FOR_READERS if for_readers else MethodEffect.WRITES
    return partial(_marked, effect=effect) if method is None else _marked(method, effect)


def effect_of(method: Any) -> MethodEffect | None:
    """What a mark says of the method; None when it has none."""
    return getattr(method, _MARK, None)


def _marked(method: _Method, effect: MethodEffect) -> _Method:
    setattr(method, _MARK, effect)
    return method
