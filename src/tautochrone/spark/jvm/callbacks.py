"""Python functions as Scala partial functions, for Catalyst's `transform…` methods."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

__all__ = ["TransformRule", "start_callback_server"]


_starting = Lock()


def start_callback_server(session: SparkSession) -> None:
    """Start the server by which the JVM calls Python. Needed before a `TransformRule` is passed to the JVM,
    and before `foreachBatch`.

    PySpark's own function is not for several threads: a second one may go on before the JVM knows the port.
    And the server's thread begins to listen a moment after the function returns; until then the JVM's
    connections are refused.
    """
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    with _starting:
        ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
        # The backlog takes connections until the server's thread accepts them. A second call changes nothing.
        gateway._callback_server.server_socket.listen()  # noqa: SLF001


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
