"""What Python asks of the driver's JVM often, in one message instead of one for each setting or name.

`DriverCalls.java` is compiled by the compiler that Spark has for its own generated code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from tautochrone.spark.jvm.catalyst import cached_packages

__all__ = ["compiled_class", "driver_calls", "joined", "new_session", "settings_of", "split"]

_SEPARATOR = "\0"
_compiled: dict[Path, tuple[Any, JavaObject]] = {}
"""By source file: the gateway, and the class that was compiled in its JVM."""
_calls: list[tuple[Any, JavaObject]] = []


def compiled_class(session: SparkSession, source: Path) -> JavaObject:
    """The `java.lang.Class` of a source file of Java in the package `tautochrone`, named like its class."""
    gateway = session.sparkContext._gateway  # noqa: SLF001
    if source not in _compiled or _compiled[source][0] is not gateway:
        jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
        compiler.cook(source.read_text())
        _compiled[source] = gateway, compiler.getClassLoader().loadClass(f"tautochrone.{source.stem}")
    return _compiled[source][1]


def driver_calls(session: SparkSession) -> Any:
    """The object `DriverCalls` of the session's JVM."""
    gateway: Any = session.sparkContext._gateway  # noqa: SLF001
    if not _calls or _calls[0][0] is not gateway:
        compiled: Any = compiled_class(session, Path(__file__).with_name("DriverCalls.java"))
        nothing = gateway.new_array(gateway.jvm.java.lang.Object, 0)
        _calls[:] = [(gateway, compiled.getDeclaredConstructors()[0].newInstance(nothing))]
    return _calls[0][1]


def joined(texts: Iterable[str]) -> str:
    """How a list of texts is given to `DriverCalls`."""
    return "".join(f"{text}{_SEPARATOR}" for text in texts)


def split(texts: str) -> list[str]:
    """A list of texts that `DriverCalls` returned."""
    return texts.split(_SEPARATOR)[:-1]


def settings_of(session: SparkSession) -> dict[str, str]:
    """All settings of a session, as `session.conf.getAll` has them."""
    texts = split(str(driver_calls(session).settings(session._jsparkSession)))  # noqa: SLF001
    return dict(zip(texts[::2], texts[1::2], strict=True))


def new_session(
    base: SparkSession, *, without: Iterable[str] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A new session on the same context.

    Args:
        without: beginnings of names of settings that it does not get.
        settings: that it has.
    """
    pairs = joined(text for pair in (settings or {}).items() for text in pair)
    session = driver_calls(base).newSession(base._jsparkSession, joined(without), pairs)  # noqa: SLF001
    return SparkSession(base.sparkContext, session)
