"""Spark's file source: what it lists, what a batch of it really reads, and the options that leave files out.

What Spark keeps private is reached by reflection, in one call for all files of a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tautochrone.spark.analysis.analyzed_plan import analyzed_plan, replace_leaves
from tautochrone.spark.analysis.session_context import dataframe_of_plan
from tautochrone.spark.jvm.cached_packages import cached_packages
from tautochrone.spark.jvm.catalyst import items, kind
from tautochrone.spark.sources.rate_limits import with_v1_options

__all__ = ["FileSource", "FileStream", "has_files", "skips_missing", "taking_all_ages"]

_AGE = "maxfileage"
_NO_AGE = "9223372036854775807ms"
"""The longest that the option takes: no file is older."""
_ENTRY = re.compile(r"NewFileEntry\((.*),\d+,(-?\d+)\)")
_MISSING = "ignoremissingfiles"


@dataclass(frozen=True, slots=True)
class FileSource:
    """A file source of a query that was started.

    Attributes:
        number: of the source in the offsets of the query.
        log: name of the folder below `sources/` where it remembers its files.
        by_name: whether it tells files apart by their names without the folder (`fileNameOnly`).
        oldest_ms: files with an older modification time are left out.
    """

    number: int
    log: int
    by_name: bool
    oldest_ms: int


class FileStream:
    """The file sources of a query that was started; it may have ended since.

    Raises:
        Py4JError: from every method, when this Spark's file source is made otherwise.
    """

    def __init__(self, session: SparkSession, query: StreamingQuery) -> None:
        jvm: Any = session._jvm  # noqa: SLF001
        gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        self._jvm = jvm
        self._none = gateway.new_array(jvm.java.lang.Object, 0)
        self._no_classes = gateway.new_array(jvm.java.lang.Class, 0)
        self._execution: Any = query._jsq.streamingQuery()  # noqa: SLF001

    def sources(self) -> list[FileSource]:
        """Those that the query has, in the order of its offsets."""
        known: list[JavaObject] = []
        found = []
        for number, source in enumerate(self._all()):
            if any(other.equals(source) for other in known):
                # The same source at another leaf of the plan.
                continue
            if kind(source) == "FileStreamSource":
                by_name = bool(_private(source, "fileNameOnly"))
                oldest_ms = int(_private(source.seenFiles(), "lastPurgeTimestamp"))
                found.append(FileSource(number, len(known), by_name, oldest_ms))
            known.append(source)
        return found

    def listed(self, source: FileSource) -> dict[str, int]:
        """All files that the source would look at now: URL-encoded path → modification time in ms."""
        files = self._all()[source.number]
        method = files.getClass().getDeclaredMethod("fetchAllFiles", self._no_classes)
        method.setAccessible(True)
        text = str(method.invoke(files, self._none).mkString("\n"))
        found = (_ENTRY.fullmatch(line) for line in text.splitlines())
        return {entry[1]: int(entry[2]) for entry in found if entry is not None}

    def read_by_batch(self) -> set[str]:
        """The files that the running batch reads, URL-encoded, static ones included."""
        execution = self._execution.lastExecution()
        found: set[str] = set()
        for leaf in [] if execution is None else items(execution.analyzed().collectLeaves()):
            if kind(leaf) == "LogicalRelation" and kind(leaf.relation()) == "HadoopFsRelation":
                paths = leaf.relation().location().inputFiles()
                # An array crosses element by element, a text in one call.
                found |= {*str(self._jvm.org.apache.hadoop.util.StringUtils.join("\n", paths)).splitlines()}
        return found

    def _all(self) -> list[JavaObject]:
        return list(items(self._execution.sources()))


def _private(instance: JavaObject, name: str) -> Any:
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(instance)


def has_files(frame: DataFrame) -> bool:
    """Whether a streaming query reads files."""
    return any(_is_files(leaf) for leaf in items(analyzed_plan(frame).collectLeaves()))


def skips_missing(session: SparkSession, frame: DataFrame) -> bool:
    """Whether the user lets a file source of the query go on without files that went away."""
    if str(session.conf.get("spark.sql.files.ignoreMissingFiles", "false")).lower() == "true":
        return True
    leaves = [leaf for leaf in items(analyzed_plan(frame).collectLeaves()) if _is_files(leaf)]
    return any(_options(session, leaf).get(_MISSING, "").lower() == "true" for leaf in leaves)


def taking_all_ages(session: SparkSession, frame: DataFrame) -> DataFrame:
    """A stream whose file sources take files of any age, except where the reader has a bound of its own."""
    if not has_files(frame):
        return frame

    def leaf(node: JavaObject) -> JavaObject:
        if not _is_files(node) or _AGE in _options(session, node):
            return node
        return with_v1_options(session, node, {_AGE: _NO_AGE}, {_AGE})

    return dataframe_of_plan(session, replace_leaves(session, analyzed_plan(frame), leaf))


def _is_files(node: JavaObject) -> bool:
    return kind(node) == "StreamingRelation" and str(node.sourceName()).startswith("FileSource[")


def _options(session: SparkSession, node: JavaObject) -> dict[str, str]:
    """The reader's options, their names in small letters: Spark does not tell them apart."""
    convert: Any = cached_packages(session._jvm).scala.jdk.javaapi.CollectionConverters  # noqa: SLF001
    options = convert.asJava(node.dataSource().options())
    return {str(key).lower(): str(options[key]) for key in options}
