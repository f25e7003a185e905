"""Java classes by name, looked up once for a JVM.

Py4J asks the JVM at every dot of `jvm.org.apache.iceberg.…`, and again for every static method. Each question
is a round trip between two processes, and a refresh would ask very many of them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass, JavaPackage

__all__ = ["CachedPackage", "cached_packages"]


class CachedPackage:
    """Behaves as the package or class that it stands for, and remembers every name below it.

    Static fields are remembered too: what is read through here must be constant.
    """

    def __init__(self, target: Any) -> None:
        self.__dict__["_target"] = target

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if isinstance(found, JavaPackage | JavaClass):
            found = CachedPackage(found)
        self.__dict__[name] = found
        return found

    def __call__(self, *arguments: Any) -> Any:
        return self._target(*arguments)


_KNOWN: WeakKeyDictionary[Any, CachedPackage] = WeakKeyDictionary()


def cached_packages(jvm: Any) -> CachedPackage:
    """The remembering form of a gateway's `jvm`."""
    if jvm not in _KNOWN:
        _KNOWN[jvm] = CachedPackage(jvm)
    return _KNOWN[jvm]
