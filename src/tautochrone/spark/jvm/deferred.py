"""Objects of the JVM that are made when something asks for one of them, all that wait in one message.

A plan is put together of a hundred small objects, each made of others. By Py4J each is a message, although
only the whole is used. Here `new` and `sequence` return at once. The JVM makes the objects, in their order,
when Python calls one of them or passes one to the JVM.

Only for objects that depend on nothing but what they are made of: expressions, plans, sequences.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any
from weakref import ref

from py4j.java_gateway import JavaObject
from py4j.protocol import JAVA_MAX_INT, JAVA_MIN_INT

from tautochrone.spark.jvm.driver_calls import KIND, driver_calls, joined_texts, split_texts

__all__ = ["can_wait", "new", "sequence"]

_MAX_WAITING = 500
"""Objects that wait are held by Python with all that they are made of."""


def can_wait(argument: Any) -> bool:
    """Whether a value may be passed to the JVM later."""
    if isinstance(argument, str):
        return "\0" not in argument
    return argument is None or isinstance(argument, JavaObject | int)


def new(class_name: str, *arguments: Any) -> JavaObject:
    """An object of a Java class. Each argument `can_wait`."""
    return _waiting().add(class_name, arguments)


def sequence(elements: Sequence[Any]) -> JavaObject:
    """A Scala `Seq` of elements that all `can_wait`."""
    return _waiting().add("", elements)


class _Deferred(JavaObject):  # type: ignore[misc]
    """An object that waits. Any use of it lets the JVM make it; from then on it is like others."""

    def __init__(self, waiting: _Waiting, number: int) -> None:
        self.__dict__.update(_waiting=waiting, _number=number, _failure=None)

    def __getattr__(self, name: str) -> Any:
        if "_target_id" not in self.__dict__:
            if name.startswith("__"):
                raise AttributeError(name)
            if self._failure is None:
                self._waiting.make()
            if self._failure is not None:
                raise self._failure
            return getattr(self, name)
        return super().__getattr__(name)

    def initialize(self, target_id: str, client: Any) -> None:
        JavaObject.__init__(self, target_id, client)


class _Waiting:
    """What one thread wants to be made: for each object its class, and what it is made of."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._texts: list[str] = []
        self._objects: list[ref[_Deferred]] = []
        self._arguments: list[Any] = []

    def add(self, class_name: str, arguments: Sequence[Any]) -> JavaObject:
        with self._lock:
            if len(self._objects) >= _MAX_WAITING:
                self.make()
            # First: to name an object of another thread may make all that waits there.
            texts = [self._text(argument) for argument in arguments]
            deferred = _Deferred(self, len(self._objects))
            deferred.__dict__[KIND] = class_name.rsplit(".", 1)[-1] or "Seq"
            self._texts += [class_name, str(len(texts)), *texts]
            self._objects.append(ref(deferred))
            self._arguments.append(arguments)
        return deferred

    def _text(self, argument: Any) -> str:
        match argument:
            case _Deferred() if "_target_id" not in vars(argument) and argument._waiting is self:  # noqa: SLF001
                return f"#{argument._number}"  # noqa: SLF001
            case JavaObject():
                return f"o{argument._get_object_id()}"  # noqa: SLF001
            case None:
                return "n"
            case bool():
                return f"b{argument}"
            case int():
                return f"{'i' if JAVA_MIN_INT <= argument <= JAVA_MAX_INT else 'l'}{argument}"
            case str():
                return f"s{argument}"
        raise TypeError(f"{type(argument).__name__} is not passed to the JVM later")

    def make(self) -> None:
        """Let the JVM make all that waits.

        Raises:
            Py4JJavaError: an object could not be made; nor is any other that waited.
        """
        with self._lock:
            if not self._objects:
                return
            waiting = [deferred() for deferred in self._objects]
            texts, arguments = self._texts, self._arguments
            self._texts, self._objects, self._arguments = [], [], []
            kept = "".join("-" if deferred is None else "+" for deferred in waiting)
            try:
                calls = driver_calls()
                parts = split_texts(str(calls.make(kept, joined_texts(texts))))
            except Exception as error:
                for deferred in waiting:
                    if deferred is not None:
                        deferred.__dict__["_failure"] = error
                raise
            del arguments
            client = calls._gateway_client  # noqa: SLF001
            alive = (deferred for deferred in waiting if deferred is not None)
            for deferred, target_id in zip(alive, parts, strict=True):
                deferred.initialize(target_id, client)


_of_thread = threading.local()


def _waiting() -> _Waiting:
    gateway = driver_calls()._gateway_client  # noqa: SLF001
    waiting: _Waiting | None = getattr(_of_thread, "waiting", None)
    if waiting is None or _of_thread.gateway is not gateway:
        waiting = _of_thread.waiting = _Waiting()
        _of_thread.gateway = gateway
    return waiting
