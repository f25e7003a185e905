"""Names of Java packages, classes and static methods, resolved by the JVM once.

For each dot of `jvm.org.apache.spark.SparkConf` Py4J asks the JVM whether it is a class or a package. To
answer that `org` is no class the JVM searches all jars, once for each package that is imported. What a name
stands for is kept here as an attribute of the view, the package or the class, where Python looks before it
asks.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

__all__ = ["remember_names"]

_SCALA_OBJECT = "MODULE$"


def remember_names(gateway: Any) -> None:
    """Let a gateway's view of the JVM, `gateway.jvm`, keep what it resolved."""
    gateway.jvm.__class__ = _View


def _kept(owner: object, name: str, value: Any) -> Any:
    """The value, which is an attribute of its owner from now on if it cannot become another one."""
    if isinstance(value, JavaClass):
        value = _Class(value._fqn, value._gateway_client)  # noqa: SLF001
    elif isinstance(value, JavaPackage):
        value = _Package(value._fqn, value._gateway_client, value._jvm_id)  # noqa: SLF001
        # Py4J takes each unknown name for a package: a class may still come with a jar that is added.
        if not name.islower():
            return value
    elif not isinstance(value, JavaMember) and name != _SCALA_OBJECT:
        return value
    vars(owner)[name] = value
    return value


class _View(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _kept(self, name, super().__getattr__(name))
