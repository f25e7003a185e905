"""Java packages and classes by name, looked up once for each JVM.

Py4J asks the JVM at every dot of `jvm.org.apache.iceberg.…`, and again for every static method. Each lookup
is a round trip between two processes; without the cache a refresh would make thousands of them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaPackage

__all__ = ["CachedPackage", "cached_packages"]


class CachedPackage:
    """A Py4J package or class that caches every name below it.

    Static fields are cached too, so only constant ones may be read through it.
    """

    def __init__(self, target: Any) -> None:
        self.__dict__["_target"] = target

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._target, name)
        if isinstance(member, JavaPackage | JavaClass):
            member = CachedPackage(member)
        self.__dict__[name] = member
        return member

    def __call__(self, *arguments: Any) -> Any:
        return self._target(*arguments)


_BY_JVM: WeakKeyDictionary[Any, CachedPackage] = WeakKeyDictionary()


def cached_packages(jvm: Any) -> CachedPackage:
    """The caching form of a gateway's `jvm`."""
    if jvm not in _BY_JVM:
        _BY_JVM[jvm] = CachedPackage(jvm)
    return _BY_JVM[jvm]
