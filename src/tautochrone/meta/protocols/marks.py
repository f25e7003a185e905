"""Marks on the methods of the store's protocols: what each does to the store.

Every method of a protocol has one. The service derives from them which calls it takes, and which of them a
caller with the role `read` may make (see `calls`). A write in the name of a job also says which durable step
it is, for `runtime.job.journal`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar, overload

from tautochrone.model.effects import Step

__all__ = ["DurableStepMark", "MethodEffect", "durable_step_of", "effect_of", "reads", "writes"]

_MARK, _DURABLE_WRITE = "__tautochrone_mark__", "__tautochrone_durable_write__"
_Method = TypeVar("_Method", bound=Callable[..., Any])


class MethodEffect(StrEnum):
    """What a method does to the store."""

    READS = "reads"
    WRITES = "writes"
    WRITES_FOR_READERS = "writes for readers"
    """It writes only what belongs to the caller, a reader included: its own pins."""


@dataclass(frozen=True, slots=True)
class DurableStepMark:
    """The durable step that a method is when the owner of a job calls it.

    Attributes:
        subject: the argument that names what the step changes, or an attribute of it: `sink`,
            `declaration.name`. Of a mapping by table the first table counts.
    """

    step: Step
    subject: str

    def subject_of(self, arguments: Mapping[str, Any]) -> str:
        """The subject of a call with these arguments."""
        value = attrgetter(self.subject)(SimpleNamespace(**arguments))
        return str(next(iter(value)) if isinstance(value, Mapping) else value)


def reads(method: _Method) -> _Method:
    """Mark a method that changes nothing."""
    return _marked(method, MethodEffect.READS)


@overload
def writes(method: _Method, /) -> _Method: ...
@overload
def writes(*, for_readers: bool) -> Callable[[_Method], _Method]: ...
@overload
def writes(*, step: Step, subject: str) -> Callable[[_Method], _Method]: ...
def writes(
    method: Any = None, /, *, for_readers: bool = False, step: Step | None = None, subject: str = ""
) -> Any:
    """Mark a method that changes the store. With `for_readers` a caller with the role `read` may call it.

    Args:
        step, subject: see `DurableStepMark`.
    """
    effect = MethodEffect.WRITES_FOR_READERS if for_readers else MethodEffect.WRITES

    def mark(method: _Method) -> _Method:
        if step is not None:
            setattr(method, _DURABLE_WRITE, DurableStepMark(step, subject))
        return _marked(method, effect)

    return mark if method is None else mark(method)


def effect_of(method: Any) -> MethodEffect | None:
    """What a mark says of the method; None when it has none."""
    return getattr(method, _MARK, None)


def durable_step_of(method: Any) -> DurableStepMark | None:
    """Which durable step a mark says that the method is; None when it says none."""
    return getattr(method, _DURABLE_WRITE, None)


def _marked(method: _Method, effect: MethodEffect) -> _Method:
    setattr(method, _MARK, effect)
    return method
