"""What Python asks of the driver's JVM often, in one message instead of one for each object, setting or name.

`DriverCalls.java` and other sources are compiled by the compiler that Spark has for its own generated code:
at set-up or by the first session that needs them, into a folder that a session knows by a setting.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Any
from zipfile import ZipFile

from py4j.java_gateway import JavaObject
from py4j.protocol import SUCCESS, get_return_value
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "COMPILED",
    "KIND",
    "active_in_jvm",
    "compiled_class",
    "driver_calls",
    "java_object",
    "joined_texts",
    "new_session",
    "objects_of",
    "output_and_size",
    "read_table",
    "select_expressions",
    "settings_of",
    "singleton",
    "split_texts",
    "types_differ",
    "with_names",
    "write_compiled",
]

_SEPARATOR = "\0"
KIND = "_tautochrone_kind"
"""The attribute in which an object of the JVM keeps the name of its class."""

COMPILED = "spark.tautochrone.compiled"
"""The setting of a session that names the folder of compiled classes."""

_classes: dict[Path, tuple[Any, JavaObject]] = {}
"""By source file: the gateway, and the class in its JVM."""
_compilers: dict[str, JavaObject] = {}
"""Of the sources that this process compiled: the compiler, by the name of the jar for its classes."""
_singletons: dict[Path, tuple[Any, Any]] = {}
_compiling = RLock()
"""A class is compiled once: Py4J takes methods of classes with the same name for each other's."""
_PACKAGE = Path(__file__).parents[2]
_DRIVER_CALLS = Path(__file__).with_name("DriverCalls.java")


def compiled_class(source: Path, uses: Path | None = None) -> Any:
    """The `java.lang.Class` of a source file of Java in the package `tautochrone`, named like its class.

    Args:
        source: of the class.
        uses: of another class whose public members it uses.
    """
    gateway = _gateway()
    with _compiling:
        if source not in _classes or _classes[source][0] is not gateway:
            if uses is None:
                parent = gateway.jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
            else:
                parent = compiled_class(uses).getClassLoader()
            _classes[source] = gateway, _load(source, uses, parent).loadClass(f"tautochrone.{source.stem}")
        return _classes[source][1]


def _load(source: Path, uses: Path | None, parent: JavaObject) -> Any:
    """A class loader that has the classes of a source file."""
    gateway = _gateway()
    texts = [path.read_bytes() for path in (source, uses) if path is not None]
    name = f"{source.stem}-{hashlib.sha256(b''.join(texts)).hexdigest()[:16]}.jar"
    folder = SparkContext._active_spark_context.getConf().get(COMPILED)  # type: ignore[union-attr]  # noqa: SLF001
    # A session that this package did not start has no such folder; the current one is nobody's.
    if folder and (jar := Path(folder) / name).is_file():
        urls = gateway.new_array(gateway.jvm.java.net.URL, 1)
        urls[0] = gateway.jvm.java.net.URL(jar.as_uri())
        return gateway.jvm.java.net.URLClassLoader(urls, parent)
    compiler = gateway.jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(parent)
    compiler.cook(texts[0].decode())
    _compilers[name] = compiler
    if folder and Path(folder).is_dir() and source.is_relative_to(_PACKAGE):
        # Another release prepared the folder; a user without rights to it compiles in each session.
        with suppress(OSError):
            _write_jar(Path(folder) / name, compiler)
    return compiler.getClassLoader()


def write_compiled(folder: Path) -> None:
    """Write the classes that this process compiled into `folder`, for sessions whose `COMPILED` it is."""
    for name, compiler in _compilers.items():
        _write_jar(folder / name, compiler)


def _write_jar(file: Path, compiler: JavaObject) -> None:
    """In one step: other sessions may read it."""
    new = file.with_suffix(f".{os.getpid()}")
    with ZipFile(new, "w") as jar:
        for class_name, code in compiler.getBytecodes().items():
            jar.writestr(f"{class_name.replace('.', '/')}.class", bytes(code))
    new.replace(file)


def singleton(source: Path, uses: Path | None = None) -> Any:
    """The one object of a class whose constructor takes Py4J's gateway, such as `DriverCalls`.

    For the arguments see `compiled_class`.
    """
    gateway = _gateway()
    with _compiling:
        if source not in _singletons or _singletons[source][0] is not gateway:
            constructor = compiled_class(source, uses).getDeclaredConstructors()[0]
            arguments = gateway.new_array(gateway.jvm.java.lang.Object, 1)
            arguments[0] = gateway.java_gateway_server.getGateway()
            _singletons[source] = gateway, constructor.newInstance(arguments)
        return _singletons[source][1]


def driver_calls() -> Any:
    """The object `DriverCalls` of Spark's JVM."""
    return singleton(_DRIVER_CALLS)


def _gateway() -> Any:
    context = SparkContext._active_spark_context  # noqa: SLF001
    assert context is not None, "Spark is not started"
    return context._gateway  # noqa: SLF001


# -- texts ------------------------------------------------------------------------------------------


def joined_texts(texts: Iterable[str]) -> str:
    """How a list of texts is given to `DriverCalls`.

    Raises:
        ValueError: a text contains NUL.
    """
    parts = list(texts)
    if any(_SEPARATOR in part for part in parts):
        raise ValueError("A text for Java contains NUL")  # without the text: it may be a secret
    return "".join(f"{part}{_SEPARATOR}" for part in parts)


def split_texts(texts: str) -> list[str]:
    """A list of texts that `DriverCalls` returned."""
    return texts.split(_SEPARATOR)[:-1]


def types_differ(columns: Iterable[tuple[JavaObject, JavaObject]]) -> list[bool]:
    """For each pair of columns whether their types differ in more than in what is never NULL."""
    names = [each._get_object_id() for pair in columns for each in pair]  # noqa: SLF001
    return [answer == "+" for answer in str(driver_calls().typesDiffer(joined_texts(names)))]


# -- objects ----------------------------------------------------------------------------------------


def objects_of(answer: str) -> Iterator[Any]:
    """The objects that `DriverCalls.appendObject` wrote, each with the name of its class."""
    texts = split_texts(answer)
    # All at once: the JVM keeps an object until Python drops it, so each must come to exist here.
    return iter([_named(part, name) for part, name in zip(texts[::2], texts[1::2], strict=True)])


def output_and_size(relation: JavaObject) -> tuple[Iterator[Any], int]:
    """The columns of a local relation, and the number of its rows."""
    size, _, columns = str(driver_calls().outputAndSize(relation)).partition(_SEPARATOR)
    return objects_of(columns), int(size)


def _named(part: str, name: str) -> Any:
    value = java_object(part)
    if isinstance(value, JavaObject):
        vars(value)[KIND] = name.removesuffix("$")
    return value


def java_object(part: str) -> Any:
    """What `Gateway.getReturnObject` answered in the JVM: an object, or a value that Py4J converts."""
    return get_return_value(f"{SUCCESS}{part}", _gateway()._gateway_client)  # noqa: SLF001


# -- DataFrames -------------------------------------------------------------------------------------


def read_table(session: SparkSession, name: str, options: Mapping[str, str]) -> DataFrame:
    """`session.read.options(**options).table(name)`, for which PySpark sends a message for each option.

    Args:
        name: as SQL writes it.
    """
    texts = joined_texts(text for option in options.items() for text in option)
    return DataFrame(driver_calls().table(session._jsparkSession, name, texts), session)  # noqa: SLF001


def with_names(frame: DataFrame, names: Iterable[str]) -> DataFrame:
    """`frame.toDF(*names)`, for which PySpark sends a message for each name."""
    return DataFrame(driver_calls().named(frame._jdf, joined_texts(names)), frame.sparkSession)  # noqa: SLF001


def select_expressions(frame: DataFrame, expressions: Iterable[str]) -> DataFrame:
    """`frame.selectExpr(*expressions)` likewise."""
    return DataFrame(driver_calls().selected(frame._jdf, joined_texts(expressions)), frame.sparkSession)  # noqa: SLF001


# -- sessions ---------------------------------------------------------------------------------------


def settings_of(session: SparkSession) -> dict[str, str]:
    """All settings of a session, as `session.conf.getAll` has them."""
    texts = split_texts(str(driver_calls().settings(session._jsparkSession)))  # noqa: SLF001
    return dict(zip(texts[::2], texts[1::2], strict=True))


def new_session(
    base: SparkSession, *, without: Iterable[str] = (), settings: Mapping[str, str] | None = None
) -> SparkSession:
    """A new session on the same context.

    Args:
        without: beginnings of names of settings that it does not get.
        settings: that it has.
    """
    java_session = base._jsparkSession  # noqa: SLF001
    session = driver_calls().newSession(java_session, joined_texts(without), _joined_pairs(settings or {}))
    return SparkSession(base.sparkContext, session)


@contextmanager
def active_in_jvm(
    session: SparkSession, settings: Mapping[str, str], database: tuple[str, tuple[str, ...]] | None = None
) -> Iterator[None]:
    """Inside the block the session is the active one of this thread's JVM thread, with these settings.

    Args:
        database: catalog and namespace that are its current database inside the block; None: it stays.

    Raises:
        pyspark.errors.AnalysisException: a setting is static (CANNOT_MODIFY_STATIC_CONFIG).
    """
    catalog, namespace = (None, ()) if database is None else database
    java_session = session._jsparkSession  # noqa: SLF001
    replaced = driver_calls().enter(java_session, _joined_pairs(settings), catalog, joined_texts(namespace))
    try:
        yield
    finally:
        driver_calls().leave(replaced)


def _joined_pairs(settings: Mapping[str, str]) -> str:
    return joined_texts(text for pair in settings.items() for text in pair)
