"""Python functions as Scala partial functions, for Catalyst's `transform…` methods."""

from __future__ import annotations

from collections.abc import Callable

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["TransformRule", "start_callback_server"]


def start_callback_server(session: SparkSession) -> None:
    """Start the server by which the JVM calls Python. Needed before a `TransformRule` is passed to the
    JVM."""
    gateway = session.sparkContext._gateway  # noqa: SLF001
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]


class TransformRule:
    """A rule for Catalyst's `transform…`: gets each node of a tree, returns it or its replacement."""

    def __init__(self, rule: Callable[[JavaObject], JavaObject]) -> None:
        self._rule = rule

    def isDefinedAt(self, _node: JavaObject) -> bool:  # noqa: N802
        return True

    def apply(self, node: JavaObject) -> JavaObject:
        return self._rule(node)

    def applyOrElse(self, node: JavaObject, _default: object) -> JavaObject:  # noqa: N802
        return self._rule(node)

    class Java:
        implements = ("scala.PartialFunction",)
