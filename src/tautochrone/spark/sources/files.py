"""Files as a streaming source: limits of its batches, the files that it lists, the files that a batch reads,
and the options by which it ignores files.

Private fields of Spark's file source are read by reflection, in one call for all files of a folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tautochrone.model.source import RateLimitOptions, Unsupported
from tautochrone.spark.jvm.catalyst import cached_packages, items, kind
from tautochrone.spark.sources.spark_source import FileListing, QueryFileSource, SparkSource, with_field

__all__ = ["FileSource", "StartedFileListing"]

_NAME = "FileSource["
"""The prefix of a leaf's name; the folder follows."""
_DESCRIPTION = "FileStreamSource["
"""The prefix of the same source's description in a query's progress."""
_AGE = "maxfileage"
_NO_AGE = "9223372036854775807ms"
"""The largest value of the option: no file is older."""
_ENTRY = re.compile(r"NewFileEntry\((.*),\d+,(-?\d+)\)")
_MISSING = "ignoremissingfiles"
_LEAVING_OUT = {
    "ignorecorruptfiles": "true",
    _MISSING: "true",
    "mode": "dropmalformed",
    "ignoreextension": "false",
}
"""Options with a value by which a reader leaves out rows or files without an error."""
_FILTERS = ("pathglobfilter", "modifiedbefore", "modifiedafter")
_SETTINGS = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
"""Settings that count where the reader has no option of the name."""


class StartedFileListing:
    """The file sources of a query that was started and may have ended since.

    Every method raises `Py4JError` if the file source of this Spark version has other private fields.
    """

    def __init__(self, session: SparkSession, query: StreamingQuery, *, may_miss_files: bool) -> None:
        jvm: Any = session._jvm  # noqa: SLF001
        gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        self._jvm = jvm
        self.may_miss_files = may_miss_files
        self._none = gateway.new_array(jvm.java.lang.Object, 0)
        self._no_classes = gateway.new_array(jvm.java.lang.Class, 0)
        self._execution: Any = query._jsq.streamingQuery()  # noqa: SLF001

    def sources(self) -> list[QueryFileSource]:
        """The query's file sources, in the order of its offsets."""
        distinct: list[JavaObject] = []
        file_sources = []
        for number, source in enumerate(self._all()):
            if any(seen.equals(source) for seen in distinct):
                # Several leaves of the plan can have the same source.
                continue
            if kind(source) == "FileStreamSource":
                by_name = bool(_private(source, "fileNameOnly"))
                oldest_ms = int(_private(source.seenFiles(), "lastPurgeTimestamp"))
                file_sources.append(QueryFileSource(number, len(distinct), by_name, oldest_ms))
            distinct.append(source)
        return file_sources

    def listed(self, source: QueryFileSource) -> dict[str, int]:
        """All files that the source lists now: URL-encoded path → modification time in ms."""
        files = self._all()[source.number]
        method = files.getClass().getDeclaredMethod("fetchAllFiles", self._no_classes)
        method.setAccessible(True)
        text = str(method.invoke(files, self._none).mkString("\n"))
        entries = (_ENTRY.fullmatch(line) for line in text.splitlines())
        return {entry[1]: int(entry[2]) for entry in entries if entry is not None}

    def read_by_batch(self) -> set[str]:
        """The files that the running batch reads, URL-encoded, static ones included."""
        execution = self._execution.lastExecution()
        paths_read: set[str] = set()
        for leaf in [] if execution is None else items(execution.analyzed().collectLeaves()):
            if kind(leaf) == "LogicalRelation" and kind(leaf.relation()) == "HadoopFsRelation":
                paths = leaf.relation().location().inputFiles()
                # Py4J fetches an array element by element, but a text in one call.
                paths_read |= {
                    *str(self._jvm.org.apache.hadoop.util.StringUtils.join("\n", paths)).splitlines()
                }
        return paths_read

    def _all(self) -> list[JavaObject]:
        return list(items(self._execution.sources()))


def _leaves_out(option: str, value: str) -> bool:
    return option.lower() in _FILTERS or _LEAVING_OUT.get(option.lower()) == value.strip().lower()


def _private(instance: JavaObject, name: str) -> Any:
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(instance)


class FileSource(SparkSource):
    """Files of a folder, in any of Spark's file formats."""

    label = "files"
    limits = RateLimitOptions(("maxFilesPerTrigger", "maxBytesPerTrigger"))

    @classmethod
    def reads(cls, leaf: JavaObject) -> bool:
        return kind(leaf) == "StreamingRelation" and str(leaf.sourceName()).startswith(_NAME)

    def input_ids(self) -> frozenset[str]:
        folder = self.name.removeprefix(_NAME).removesuffix("]").removeprefix("file:").rstrip("/")
        return frozenset({f"files in {folder}"})

    def takes_all_listed(self, description: str) -> bool | None:
        if not description.startswith(_DESCRIPTION):
            return None
        options = {option.lower() for option in self.options()}
        return not any(option.lower() in options for option in self.limits.options)

    def file_listing(self, session: SparkSession, query: StreamingQuery) -> FileListing | Unsupported:
        return StartedFileListing(session, query, may_miss_files=self._may_miss_files(session))

    def prepared(self, session: SparkSession) -> JavaObject:
        """The leaf without an age limit, unless the reader's options set one."""
        if any(option.lower() == _AGE for option in self.options()):
            return self.leaf
        return self.with_options(session, {_AGE: _NO_AGE}, {_AGE})

    def leaving_out(self, session: SparkSession) -> Mapping[str, str]:
        given = {name: value for name, value in self.options().items() if _leaves_out(name, value)}
        names = {name.lower() for name in self.options()}
        for setting in _SETTINGS:
            value = str(session.conf.get(setting, "false"))
            if value.lower() == "true" and setting.rpartition(".")[2].lower() not in names:
                given[setting] = value
        return given

    def with_schema(self, session: SparkSession, schema: StructType, added: Mapping[str, str]) -> JavaObject:
        """A leaf that reads the same files with other columns, and with the options `added`."""
        jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        data_source = self.with_options(session, added, added).dataSource()
        java_schema: Any = session._jsparkSession.parseDataType(schema.json())  # noqa: SLF001
        given = jvm.scala.Option.apply(java_schema)
        data_source = data_source.copy(*with_field(data_source, "userSpecifiedSchema", given))
        companion = getattr(jvm.org.apache.spark.sql.execution.streaming.runtime, "StreamingRelation$")
        leaf: JavaObject = getattr(companion, "MODULE$").apply(data_source)
        has_metadata = any(str(column.name()) == "_metadata" for column in items(self.leaf.output()))
        return leaf.withMetadataColumns() if has_metadata else leaf

    def _may_miss_files(self, session: SparkSession) -> bool:
        if str(session.conf.get("spark.sql.files.ignoreMissingFiles", "false")).lower() == "true":
            return True
        options = {option.lower(): value for option, value in self.options().items()}
        return options.get(_MISSING, "").lower() == "true"
