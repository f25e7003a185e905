"""Starting Spark's JVM, and how this process speaks with it by Py4J: with few messages and without pauses.

stderr: without a redirection the JVM writes directly to the terminal: into a live progress display, and into
the output that a program reads as one event per line. Here each line goes to `sys.stderr`, which the command
line may replace. Lines that the JVM writes at every start are left out.

Start: the JVM starts in a second or two, in which this process can import what it needs (`launch`).

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

Call sites: at each call of a DataFrame or a Column PySpark looks up the line of the caller, which its errors
show, and gives it to the JVM, in seven messages where the call itself takes one or two. That is worth its
price in definitions, whose authors read the errors. The lines of this package tell them nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from py4j.clientserver import ClientServer, JavaClient, JavaParameters, PythonParameters
from py4j.java_gateway import (
    GatewayParameters,
    JavaClass,
    JavaGateway,
    JavaMember,
    JavaPackage,
    JVMView,
    java_import,
)
from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID, Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError, utils
from pyspark.java_gateway import launch_gateway
from pyspark.serializers import UTF8Deserializer, read_int

from tautochrone.errors import EnvironmentProblemError
from tautochrone.redaction import redacted
from tautochrone.spark.jvm.driver_calls import COMPILED
from tautochrone.spark.jvm.errors import problem_of
from tautochrone.spark.session.jvm_liveness import jvm_error, reset_pyspark, set_stderr_tail
from tautochrone.spark.session.launch_command import LaunchCommand, prepared_command

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["call_sites", "finish_launch", "launch", "start_context"]

_log = logging.getLogger(__name__)

_NOISE = re.compile(
    r"WARNING: Using incubator modules: jdk\.incubator\.vector$|Setting default log level to |"
    r"To adjust logging level use sc\.setLogLevel|(NOTE: )?Picked up \w*JAVA_\w*OPTIONS: "
)
_STACK_FRAME = re.compile(r"\s+at |\s+\.\.\. \d+ more")
_MAIN_EXCEPTION = re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?')
_SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
_STDERR_TIMEOUT_S = 5.0
_START_POLL_S = 0.01
_TAIL_LINES, _LINE_CHARACTERS = 50, 500


def start_context(conf: Mapping[str, str], secret: Collection[str] = ()) -> None:
    """Start the JVM and its Spark context, if this process has none yet or its JVM has ended.

    Args:
        conf: all settings that Spark needs before it starts, with `spark.app.name` and `spark.master`.
        secret: names of settings that must not be on Java's command line, which every user of the machine
            can read; the context gets them over the Py4J socket.

    Raises:
        EnvironmentProblemError: `JVM_NOT_STARTED` or `SPARK_NOT_STARTED`, with Spark's own reason.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001
        if jvm_error() is None:
            return
        reset_pyspark()
    gateway, reader = _started_jvm(_public(conf, secret))
    reader.forward()
    set_stderr_tail(reader.last_lines)
    _enable_quickack(gateway)
    _forget_objects_together(gateway)
    _remember_names(gateway)
    try:
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        with _interrupts_left_alone():
            SparkContext(conf=settings, gateway=gateway)
    except (PySparkException, Py4JJavaError) as error:
        raise EnvironmentProblemError(
            "SPARK_NOT_STARTED",
            f"Spark does not start: {problem_of(error).message}",
            hint="check --master and Spark's settings (--conf, [spark] in tautochrone.toml)",
        ) from error


@contextmanager
def _interrupts_left_alone() -> Iterator[None]:
    """PySpark's own handler asks the JVM to cancel jobs over the connection on which the interrupted thread
    waits for an answer: both then read what is not theirs."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def launch(conf: Mapping[str, str], secret: Collection[str] = ()) -> None:
    """Begin to start the JVM; `start_context` with the same settings waits for it.

    For the arguments see there. What goes wrong is raised there.
    """
    if SparkContext._gateway is None and not _launches:  # noqa: SLF001
        _launches.append(_Launch(_public(conf, secret)))
        _launches[0].start()


def finish_launch() -> None:
    """Wait until the JVM that `launch` starts is there: until then the environment has what it needs."""
    for each in _launches:
        each.join()


def _public(conf: Mapping[str, str], secret: Collection[str]) -> dict[str, str]:
    return {key: text for key, text in conf.items() if key not in secret}


def _started_jvm(conf: dict[str, str]) -> tuple[Any, _StderrReader]:
    """The gateway to a JVM with these settings, and the reader of its stderr."""
    finish_launch()
    while _launches:
        begun = _launches.pop()
        if begun.conf == conf:
            if begun.error is not None:
                raise begun.error
            assert begun.jvm is not None
            return begun.jvm
        _log.warning("Java is started again: %s", _difference(begun.conf, conf))
        if begun.jvm is not None:
            # The JVM ends when its stdin is closed.
            begun.jvm[0].shutdown()
            begun.jvm[0].proc.stdin.close()
    return _start_jvm(conf)


def _difference(launched: dict[str, str], conf: dict[str, str]) -> str:
    """The names of settings in which two sessions differ; their values may be secret."""
    names = {name for name, _ in launched.items() ^ conf.items()}
    return f"the settings of the first one differ in {', '.join(sorted(names))}"


def _start_jvm(conf: dict[str, str]) -> tuple[Any, _StderrReader]:
    read_end, write_end = os.pipe()
    reader = _StderrReader(read_end)
    reader.start()
    try:
        try:
            # A session without the setting has no such folder; the current one is nobody's.
            prepared = prepared_command(Path(conf[COMPILED]), conf) if conf.get(COMPILED) else None
            gateway = _by_script(conf, write_end) if prepared is None else _run(prepared, conf, write_end)
        finally:
            # Then only the JVM holds the write end, so the thread ends when the JVM does.
            os.close(write_end)
    except PySparkException as error:
        reader.join(_STDERR_TIMEOUT_S)
        raise EnvironmentProblemError(
            "JVM_NOT_STARTED",
            f"Spark's Java process ended before it could be used: {reader.start_failure()}",
            hint="check --master, spark.driver.memory, spark.driver.extraJavaOptions and the variables "
            "JAVA_TOOL_OPTIONS, _JAVA_OPTIONS and JDK_JAVA_OPTIONS; `taut doctor` checks Java itself",
        ) from error
    return gateway, reader


def _by_script(conf: Mapping[str, str], stderr: int) -> Any:
    """Let PySpark run Spark's script."""
    with _without_spark_defaults():
        settings = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        return launch_gateway(settings, {"stderr": stderr})  # type: ignore[no-untyped-call]


def _run(prepared: LaunchCommand, conf: Mapping[str, str], stderr: int) -> Any:
    """What PySpark does with Spark's script, with the command that the script would run.

    Raises:
        PySparkException: the JVM ended before it could be used.
    """
    with tempfile.TemporaryDirectory() as scratch:
        # Spark reads it instead of spark-defaults.conf.
        empty = Path(scratch) / "spark.conf"
        empty.touch()
        connection = Path(scratch) / "connection"
        environment = {
            **os.environ,
            **prepared.variables,
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
        }
        process = subprocess.Popen(
            prepared.filled(conf, str(empty)),
            stdin=subprocess.PIPE,
            stderr=stderr,
            env=environment,
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
        )
        # A JVM that cannot write the file below, since this process has ended meanwhile, would stay for ever.
        atexit.register(process.kill)
        while process.poll() is None and not connection.exists():
            time.sleep(_START_POLL_S)
        if not connection.exists():
            raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})
        with connection.open("rb") as answer:
            port, secret = read_int(answer), UTF8Deserializer().loads(answer)  # type: ignore[no-untyped-call]
    gateway = _connected(port, secret)
    atexit.unregister(process.kill)
    gateway.proc = process
    return gateway


_IMPORTS = (
    "org.apache.spark.SparkConf",
    "org.apache.spark.api.java.*",
    "org.apache.spark.api.python.*",
    "org.apache.spark.ml.python.*",
    "org.apache.spark.mllib.api.python.*",
    "org.apache.spark.resource.*",
    "org.apache.spark.sql.Encoders",
    "org.apache.spark.sql.OnSuccessCall",
    "org.apache.spark.sql.functions",
    "org.apache.spark.sql.classic.*",
    "org.apache.spark.sql.api.python.*",
    "org.apache.spark.sql.hive.*",
    "scala.Tuple2",
)
"""The names of Java that PySpark's `launch_gateway` imports."""


def _connected(port: int, secret: str) -> Any:
    """What `launch_gateway` makes for a JVM that runs already. That takes the secret from the environment,
    where processes that another thread starts meanwhile would get it."""
    parameters = {"port": port, "auth_token": secret, "auto_convert": True}
    if os.environ.get("PYSPARK_PIN_THREAD", "true").lower() == "true":
        gateway = ClientServer(
            java_parameters=JavaParameters(**parameters),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
    else:
        gateway = JavaGateway(gateway_parameters=GatewayParameters(**parameters))
    for name in _IMPORTS:
        java_import(gateway.jvm, name)
    return gateway


class _Launch(threading.Thread):
    """Starts a JVM while this process goes on."""

    def __init__(self, conf: dict[str, str]) -> None:
        super().__init__(name="jvm-launch", daemon=True)
        self.conf = conf
        self.jvm: tuple[Any, _StderrReader] | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.jvm = _start_jvm(self.conf)
        except Exception as error:
            self.error = error


_launches: list[_Launch] = []
"""The JVM that was begun and that no context uses yet, if there is one."""


@contextmanager
def _without_spark_defaults() -> Iterator[None]:
    """Let spark-submit read an empty file instead of spark-defaults.conf.

    A project's settings hold what counts of it, without what was left out on purpose. So each command has the
    same settings as a run. The other files of that folder stay in force.
    """
    given = os.environ.get(_SUBMIT_ARGS)
    with tempfile.NamedTemporaryFile(prefix="spark-", suffix=".conf") as empty:
        # An option that the user gives comes later and wins.
        own = shlex.join(["--properties-file", empty.name])
        os.environ[_SUBMIT_ARGS] = f"{own} {given or 'pyspark-shell'}"
        try:
            yield
        finally:
            if given is None:
                del os.environ[_SUBMIT_ARGS]
            else:
                os.environ[_SUBMIT_ARGS] = given


class _StderrReader(threading.Thread):
    """Reads the JVM's stderr: buffers it while the JVM starts, then forwards it line by line."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(name="jvm-stderr", daemon=True)
        self._descriptor = descriptor
        self._buffered: list[str] = []
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._buffering = True
        self._lock = threading.Lock()

    def run(self) -> None:
        with open(self._descriptor, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if _NOISE.match(line):
                    continue
                with self._lock:
                    self._tail.append(line.rstrip()[:_LINE_CHARACTERS])
                    if self._buffering:
                        self._buffered.append(line)
                        continue
                _write_stderr(line)

    def forward(self) -> None:
        """Write the buffered lines to stderr, and every later line as it comes."""
        with self._lock:
            for line in self._buffered:
                _write_stderr(line)
            self._buffering = False

    def last_lines(self) -> list[str]:
        """The last lines of an ended JVM, redacted. Waits for the end of its stream."""
        self.join(_STDERR_TIMEOUT_S)
        with self._lock:
            return [redacted(line) for line in self._tail]

    def start_failure(self) -> str:
        """The JVM's own message on why it did not start, without the stack trace."""
        with self._lock:
            message = [line.strip() for line in self._buffered if not _STACK_FRAME.match(line)]
        return " ".join(_MAIN_EXCEPTION.sub("", line) for line in message[:3]) or "it gave no reason"


def _write_stderr(line: str) -> None:
    try:
        sys.stderr.write(redacted(line))
        sys.stderr.flush()
    except (ValueError, OSError):
        # This process's stderr is closed. Reading goes on: otherwise the pipe fills up and the JVM blocks.
        return


# -- objects ---------------------------------------------------------------------------------------


_SEPARATOR = ","
_PAUSE_S = 0.05
_MAX_OBJECTS = 2_000
_KEPT = (ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID)


def _forget_objects_together(gateway: Any) -> None:
    """Let a Py4J gateway tell Java of dropped objects in groups.

    Does nothing for a gateway whose memory management is another one.
    """
    client = gateway._gateway_client  # noqa: SLF001
    if not isinstance(client, JavaClient):
        return
    # Its `put` may be called while the garbage collector runs, unlike methods that take a lock.
    dropped: SimpleQueue[str] = SimpleQueue()
    thread = _DroppedObjectsSender(client, dropped, _Forget(gateway))

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


class _DroppedObjectsSender(threading.Thread):
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
                if not self._client.is_connected or jvm_error(ask=True) is not None:
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


# -- names -----------------------------------------------------------------------------------------


_SCALA_OBJECT = "MODULE$"


def _remember_names(gateway: Any) -> None:
    """Let a gateway's view of the JVM, `gateway.jvm`, keep what it resolved."""
    gateway.jvm.__class__ = _View


def _cached_attribute(owner: object, name: str, value: Any) -> Any:
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
        return _cached_attribute(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _cached_attribute(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _cached_attribute(self, name, super().__getattr__(name))


# -- answers ---------------------------------------------------------------------------------------


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


def _enable_quickack(gateway: Any) -> None:
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


# -- call sites ------------------------------------------------------------------------------------


_is_enabled_in_pyspark = utils.is_debugging_enabled
_of_thread = threading.local()


def _is_enabled() -> bool:
    return getattr(_of_thread, "noted", True) and _is_enabled_in_pyspark()


utils.is_debugging_enabled = _is_enabled


@contextmanager
def call_sites(*, noted: bool) -> Iterator[None]:
    """Whether PySpark notes the lines that call it, inside the block and in this thread."""
    before = getattr(_of_thread, "noted", True)
    _of_thread.noted = noted
    try:
        yield
    finally:
        _of_thread.noted = before
