"""How this process speaks with Spark's JVM by Py4J: with few messages, and without pauses in answers.

Objects: Java keeps each object that it returned until Python drops it. Py4J says so by a message for each
object, in a thread of its own: nearly as many messages as there are calls, and each takes time in both
processes. Here the numbers of dropped objects are gathered for a moment and sent together.

Names: for each dot of `jvm.org.apache.spark.SparkConf` Py4J asks the JVM whether it is a class or a package.
To answer that `org` is no class the JVM searches all jars, once for each package that is imported. What a
name stands for is kept here as an attribute of the view, the package or the class, where Python looks before
it asks.

Answers: Py4J writes an answer in parts of 8 KB. On the JVM's side Nagle's algorithm delays the last part
until the earlier ones are acknowledged; on the Python side the kernel delays that acknowledgement by 40 ms
(RFC 1122, delayed ACK). So the acknowledgement is sent at once (TCP_QUICKACK), each time before more bytes
are read.
"""

from __future__ import annotations

import contextlib
import io
import logging
import socket
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from py4j.clientserver import JavaClient
from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView
from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID, Py4JError

from tautochrone.spark.session.jvm_liveness import jvm_failure

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["enable_quickack", "forget_objects_together", "remember_names"]


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
    """Makes Java's side of a gateway forget objects, in one message."""

    def __init__(self, gateway: Any) -> None:
        java = gateway.jvm.java
        invoke, stream = java.lang.invoke, java.util.stream.Stream
        handles, consumer = invoke.MethodHandles, java.util.function.Consumer
        text, anything, texts = (
            java_class._java_lang_class  # noqa: SLF001
            for java_class in (java.lang.String, java.lang.Object, java.lang.CharSequence)
        )
        nothing = java.lang.Void.TYPE
        type_of, lookup = invoke.MethodType.methodType, handles.publicLookup()
        delete = lookup.bind(
            gateway.java_gateway_server.getGateway(), "deleteObject", type_of(nothing, text)
        ).asType(type_of(nothing, anything))
        deleting = invoke.MethodHandleProxies.asInterfaceInstance(consumer._java_lang_class, delete)  # noqa: SLF001
        separator = java.util.regex.Pattern.compile(_SEPARATOR)
        split = lookup.bind(separator, "splitAsStream", type_of(stream._java_lang_class, texts))  # noqa: SLF001
        for_each = lookup.findVirtual(
            stream._java_lang_class,  # noqa: SLF001
            "forEach",
            type_of(nothing, consumer._java_lang_class),  # noqa: SLF001
        )
        bound = gateway.new_array(java.lang.Object, 1)
        bound[0] = deleting
        delete_all = handles.filterReturnValue(split, handles.insertArguments(for_each, 1, bound))
        self._delete_all = invoke.MethodHandleProxies.asInterfaceInstance(
            consumer._java_lang_class,  # noqa: SLF001
            delete_all.asType(type_of(nothing, anything)),
        )

    def __call__(self, targets: list[str]) -> None:
        self._delete_all.accept(_SEPARATOR.join(targets))


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


_BUFFER_BYTES = 1 << 16


class _QuickAckReader(io.RawIOBase):
    """Reads a socket and acknowledges received bytes before it waits for more."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        # The kernel resets the option by itself, so it is set before every read.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return self._socket.recv_into(buffer)


def enable_quickack(gateway: Any) -> None:
    """Set TCP_QUICKACK on a Py4J gateway's connections: this thread's and all later ones.

    Does nothing where the operating system has no TCP_QUICKACK.
    """
    client = gateway._gateway_client  # noqa: SLF001
    if not isinstance(client, JavaClient) or not hasattr(socket, "TCP_QUICKACK"):
        return
    create_connection: Callable[[], Any] = client._create_new_connection  # noqa: SLF001

    def with_quickack(connection: Any) -> Any:
        connection.stream = io.BufferedReader(_QuickAckReader(connection.socket), _BUFFER_BYTES)
        return connection

    client._create_new_connection = lambda: with_quickack(create_connection())  # noqa: SLF001
    thread_connection = client.get_thread_connection()
    if thread_connection is not None:
        with_quickack(thread_connection)
