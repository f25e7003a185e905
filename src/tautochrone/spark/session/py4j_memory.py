"""Py4J's memory management, many objects in one message.

Java keeps each object that it returned until Python drops it. Py4J says so by a message for each object, in a
thread of its own: nearly as many messages as there are calls, and each takes time in both processes. Here the
numbers of dropped objects are gathered for a moment and sent together.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from py4j.clientserver import JavaClient
from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID, Py4JError

from tautochrone.spark.session.jvm_liveness import jvm_failure

__all__ = ["forget_objects_together"]

_log = logging.getLogger(__name__)

_SEPARATOR = ","
_PAUSE_S = 0.05
_MAX_OBJECTS = 2_000
_KEPT = (ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID)


def forget_objects_together(gateway: Any) -> None:
    """Let a Py4J gateway tell Java of dropped objects in groups.

    Does nothing for a gateway whose memory management is another one.
    """
    client = gateway._gateway_client  # noqa: SLF001
    if not isinstance(client, JavaClient):
        return
    # Its `put` may be called while the garbage collector runs, unlike methods that take a lock.
    dropped: SimpleQueue[str] = SimpleQueue()
    thread = _ForgettingThread(client, dropped, _Forget(gateway))

    def drop(target_id: str, enqueue: bool = True) -> None:  # noqa: ARG001
        if target_id in _KEPT:
            return
        if threading.get_ident() == thread.ident:
            # What the thread itself drops waits for others, or it would never rest.
            thread.left.append(target_id)
        else:
            dropped.put(target_id)

    client.garbage_collect_object = drop
    thread.start()


class _ForgettingThread(threading.Thread):
    """Sends the numbers of dropped objects until the JVM is gone."""

    def __init__(self, client: Any, dropped: SimpleQueue[str], forget: _Forget) -> None:
        super().__init__(name="py4j-memory", daemon=True)
        self.left: list[str] = []
        self._client, self._dropped, self._forget = client, dropped, forget

    def run(self) -> None:
        while True:
            targets = [self._dropped.get()]
            time.sleep(_PAUSE_S)
            targets += self.left
            self.left.clear()
            with contextlib.suppress(Empty):
                while len(targets) < _MAX_OBJECTS:
                    targets.append(self._dropped.get_nowait())
            if not self._client.is_connected:
                return
            try:
                self._forget(targets)
            except (Py4JError, OSError) as error:
                if not self._client.is_connected or jvm_failure(ask=True) is not None:
                    # What the JVM kept has ended with it.
                    return
                _log.warning("%d dropped objects stay in Java's memory: %s", len(targets), error)


class _Forget:
    """Makes Java's side of a gateway forget objects, in two messages."""

    def __init__(self, gateway: Any) -> None:
        java = gateway.jvm.java
        invoke = java.lang.invoke
        method_type, nothing = invoke.MethodType, java.lang.Void.TYPE
        text, anything = java.lang.String._java_lang_class, java.lang.Object._java_lang_class  # noqa: SLF001
        delete = invoke.MethodHandles.publicLookup().bind(
            gateway.java_gateway_server.getGateway(), "deleteObject", method_type.methodType(nothing, text)
        )
        self._separator = java.util.regex.Pattern.compile(_SEPARATOR)
        self._delete = invoke.MethodHandleProxies.asInterfaceInstance(
            java.util.function.Consumer._java_lang_class,  # noqa: SLF001
            delete.asType(method_type.methodType(nothing, anything)),
        )

    def __call__(self, targets: list[str]) -> None:
        self._separator.splitAsStream(_SEPARATOR.join(targets)).forEach(self._delete)
