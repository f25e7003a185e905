"""Iceberg's Java API over Py4J: the calls that the adapter makes, with comments on their pitfalls.

Knows Java objects; knows nothing of checkpoints or commit metadata.

A commit survives a power cut, because files reach the disk before anything refers to them:

    1. data files, deletes, manifests, folder entries      2. the catalog's own commit
    3. the metadata file that the catalog now names        4. only then the store learns of the version

Iceberg and Hadoop close files without `fsync`. Linux can sync a whole file system in one call, which is
cheaper than one call for each of about ten files, and misses none. A power cut in the milliseconds between 2
and 3 can leave a table with an incomplete metadata file. Its version was not reported yet, so the metadata
file that the catalog named before is the valid one.
"""

from __future__ import annotations

import array
import ctypes
import os
import re
import sys
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tautochrone.errors import (
    CommitOutcomeUnknownError,
    EnvironmentProblemError,
    LakeError,
    TableMissingError,
    TautochroneError,
)
from tautochrone.iceberg.java.calls import iceberg_calls
from tautochrone.model.effects import Durability
from tautochrone.model.folders import is_within
from tautochrone.model.lake import local_folder
from tautochrone.model.names import TableName
from tautochrone.spark.analysis.session_context import dataframe_of_plan, set_active_session
from tautochrone.spark.jvm.catalyst import cached_packages
from tautochrone.spark.jvm.driver_calls import java_object, joined_texts, split_texts
from tautochrone.spark.jvm.errors import problem_of

__all__ = [
    "FILE_PATHS",
    "Functions",
    "Iceberg",
    "MetadataMovedError",
    "TaskSets",
    "first_line",
    "items",
    "java_error_class",
    "sync_file_systems",
    "translate",
]


def sync_file_systems(folders: Iterable[Path]) -> None:
    """Sync the file systems that contain these folders to disk, each once.

    Raises:
        EnvironmentProblemError: `NOT_SYNCED`, the disk did not take what was written, or this system has no
            such call.
    """
    synced_devices: set[int] = set()
    for folder in folders:
        # A folder that the first commit creates is in the file system of its nearest existing parent.
        existing_folder = next(path for path in (folder, *folder.parents) if path.exists())
        device = existing_folder.stat().st_dev
        if device not in synced_devices:
            synced_devices.add(device)
            _sync(existing_folder)


def _sync(folder: Path) -> None:
    call = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if call is None:
        raise EnvironmentProblemError(
            "NOT_SYNCED",
            f"This system ({sys.platform}) cannot take a file system to the disk",
            hint='durability = "power_loss" needs Linux; "process" does not',
        )
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if call(descriptor) != 0:
            number = ctypes.get_errno()
            raise EnvironmentProblemError(
                "NOT_SYNCED",
                f"The disk did not take what was written below {folder}: {os.strerror(number)}",
                hint="look at the kernel's log and the disk; nothing was published from it",
            )
    finally:
        os.close(descriptor)


class TaskSets:
    """DataFrames over chosen data files. Safe to use from several threads of the process.

    Iceberg's compaction reads chosen files through a scan whose tasks are registered under an id in the JVM
    (`ScanTaskSetManager`). The registry never forgets a set, and a DataFrame can be planned again as long as
    a plan made from it is referenced. So each set is removed after the Java object that represents it in
    those plans has been garbage collected.
    """

    def __init__(self, jvm: Any) -> None:
        spark = jvm.org.apache.iceberg.spark
        none = getattr(getattr(jvm.scala, "None$"), "MODULE$")
        self._weak_map, self._string = jvm.java.util.WeakHashMap, jvm.java.lang.String
        self._manager = spark.ScanTaskSetManager.get()
        self._staged_table = spark.source.SparkRewriteTable
        self._whole_table = spark.source.SparkTable
        self._relation = jvm.org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation
        self._none = none
        self._lock = threading.Lock()
        self._task_set_keys: dict[TableName, tuple[set[str], Any]] = {}

    def frame(self, session: SparkSession, name: TableName, table: Any, tasks: Any) -> DataFrame:
        """The rows of `tasks` with the columns of the Java `table` and its metadata columns.

        `session` must be the active one of this thread's JVM thread.
        """
        key = str(uuid.uuid4())
        # The columns come from the plain relation, because a staged table has no metadata columns.
        plain = self._relation.create(self._whole_table(table), self._none, self._none).withMetadataColumns()
        staged = self._staged_table(table, key)
        with self._lock:
            keys, alive = self._task_set_keys.setdefault(name, (set(), self._weak_map()))
            self._sweep(table, keys, alive)
            alive.put(staged, key)
            keys.add(key)
        self._manager.stageTasks(table, key, tasks)
        relation = self._relation(staged, plain.output(), self._none, self._none, plain.options(), self._none)
        return dataframe_of_plan(session, relation)

    def _sweep(self, table: Any, keys: set[str], alive: Any) -> None:
        if int(alive.size()) == len(keys):
            return
        keys_in_use = set(str(self._string.join(",", alive.values())).split(","))
        for key in keys - keys_in_use:
            self._manager.removeTasks(table, key)
        keys &= keys_in_use


# A location never contains a line end: Iceberg's paths are URI-like.
_SEPARATOR = "\n"


def items(collection: Any) -> list[Any]:
    """The elements of a Java collection, in one message. A loop in Python would be ended by a Java exception,
    which PySpark inspects for 20 ms."""
    return [java_object(part) for part in split_texts(str(iceberg_calls().elements(collection)))]


def _class(java_class: Any) -> Any:
    return java_class._java_lang_class  # noqa: SLF001


class Functions:
    """Java functions made without Java code, so that lists of files are searched inside the JVM.

    A table has thousands of files and every call over Py4J costs 0.2 ms, so no method here makes one call per
    file: method handles of Iceberg's public getters are turned into `Predicate`s and `Function`s that run in
    Java streams, and one list or one text is returned. Created once for a JVM, because each function costs
    tens of calls.
    """

    def __init__(self, jvm: Any, gateway: Any) -> None:
        api = jvm.org.apache.iceberg
        executors = api.relocated.com.google.common.util.concurrent.MoreExecutors
        self.this_thread = executors.newDirectExecutorService()
        """A Java executor that runs tasks in the calling thread. With a thread pool Iceberg polls every 10 ms
        for its end, about five times in a commit and twice in a scan."""
        self._gateway = gateway
        self._handles = jvm.java.lang.invoke.MethodHandles
        self._proxies = jvm.java.lang.invoke.MethodHandleProxies
        self._type = jvm.java.lang.invoke.MethodType.methodType
        self._lookup = self._handles.publicLookup()
        self._streams = jvm.java.util.stream.StreamSupport
        self._spliterators = jvm.java.util.Spliterators
        self._collectors = jvm.java.util.stream.Collectors
        self._separator = jvm.java.util.regex.Pattern.compile(_SEPARATOR)
        self._object = _class(jvm.java.lang.Object)
        self._long = jvm.java.lang.Long.TYPE
        self._function = _class(jvm.java.util.function.Function)
        text, content = _class(jvm.java.lang.String), _class(api.ContentFile)
        deletes = _class(api.DeleteFile)
        file = self._method(_class(api.ContentScanTask), "file", content)
        location = self._method(content, "location", text)
        count = self._method(content, "recordCount", self._long)
        self._task_path = self._then(file, location)
        self._path_of_file = self._as(self._function, location)
        self._path_of_task = self._as(self._function, self._task_path)
        to_long = _class(jvm.java.util.function.ToLongFunction)
        self._rows_of_task = self._as(to_long, self._then(file, count))
        size = self._method(content, "fileSizeInBytes", self._long)
        self._bytes_of_task = self._as(to_long, self._then(file, size))
        first_id = self._method(content, "firstRowId", _class(jvm.java.lang.Long))
        not_null = self._lookup.findStatic(
            _class(jvm.java.util.Objects), "nonNull", self._type(jvm.java.lang.Boolean.TYPE, self._object)
        ).asType(self._type(jvm.java.lang.Boolean.TYPE, _class(jvm.java.lang.Long)))
        with_ids = self._then(self._then(file, first_id), not_null)
        self._has_row_ids = self._as(_class(jvm.java.util.function.Predicate), with_ids)
        referenced = self._lookup.findStatic(
            _class(api.util.ContentFileUtil), "referencedDataFileLocation", self._type(text, deletes)
        )
        self._referenced = self._as(self._function, referenced)
        self._rows_of_file = self._as(to_long, count)
        is_vector = self._lookup.findStatic(
            _class(api.util.ContentFileUtil), "isDV", self._type(jvm.java.lang.Boolean.TYPE, deletes)
        )
        self._is_vector = self._as(_class(jvm.java.util.function.Predicate), is_vector)
        java_list = _class(jvm.java.util.List)
        task_deletes = self._method(_class(api.FileScanTask), "deletes", java_list)
        stream = self._method(
            _class(jvm.java.util.Collection), "stream", _class(jvm.java.util.stream.Stream)
        ).asType(self._type(_class(jvm.java.util.stream.Stream), java_list))
        self._stream_of_deletes = self._as(self._function, self._then(task_deletes, stream))
        described = self._lookup.findStatic(text, "valueOf", self._type(text, self._object))
        # The types of chained handles must match: valueOf takes any object, the handle before returns a list.
        described = described.asType(self._type(text, java_list))
        # Each dot in a Java name is a Py4J call, so names that every commit uses are looked up once.
        util, boolean = jvm.java.util, jvm.java.lang.Boolean.TYPE
        self._content, self._manifest, self._boolean = content, _class(api.ManifestFile), boolean
        self._integer = jvm.java.lang.Integer.TYPE
        self._predicate = _class(util.function.Predicate)
        input_file = _class(api.io.InputFile)
        self._input_file = self._method(_class(api.io.FileIO), "newInputFile", input_file, deletes)
        self._contains = self._method(_class(util.Set), "contains", boolean, self._object)
        self._text_to_boolean = self._type(boolean, text)
        self._util, self._text, self._file_info = util, jvm.java.lang.String, api.io.FileInfo
        self._array_list, self._arrays = util.ArrayList, util.Arrays
        self._long_stream, self._bytes = util.stream.LongStream, jvm.java.nio.ByteBuffer
        self._long_array_of = jvm.long
        self._queue = util.concurrent.ConcurrentLinkedQueue
        self._consumer = _class(util.function.Consumer)
        self._add = self._method(_class(util.Collection), "add", boolean, self._object)
        self._described_deletes = self._as(self._function, self._then(task_deletes, described))

    # -- lists of files ---------------------------------------------------------------------------

    def tasks(self, planned: Any, paths: Collection[str] | None = None) -> Any:
        """The file tasks of an iterable as a Java list; only those of `paths` when given."""
        stream = self._stream(planned)
        if paths is None:
            return stream.toList()
        return stream.filter(self._among(paths)).toList()

    def no_tasks(self) -> Any:
        """An empty Java list."""
        return self._array_list()

    def task_paths(self, tasks: Any) -> list[str]:
        """Paths of the data files of a Java list of tasks, in its order."""
        return self._texts(tasks.stream().map(self._path_of_task))

    def described_delete_files(self, tasks: Any) -> list[str]:
        """A text for each task's delete files; two texts are equal only if the delete files are."""
        return self._texts(tasks.stream().map(self._described_deletes))

    def task_rows(self, tasks: Any) -> int:
        """Rows in the data files of the tasks, deleted ones included."""
        return int(tasks.stream().mapToLong(self._rows_of_task).sum())

    def task_bytes(self, tasks: Any) -> int:
        """Bytes of the data files of the tasks."""
        return int(tasks.stream().mapToLong(self._bytes_of_task).sum())

    def rows_have_ids(self, tasks: Any) -> bool:
        """Whether every row of the data files of the tasks got a row id when it was written."""
        return bool(tasks.stream().allMatch(self._has_row_ids))

    def only_vectors(self, tasks: Any) -> bool:
        """Whether all delete files of these tasks are deletion vectors."""
        return bool(self._deletes(tasks).allMatch(self._is_vector))

    def deleted_rows(self, tasks: Any) -> int:
        """The sum of the record counts of the tasks' delete files."""
        return int(self._deletes(tasks).mapToLong(self._rows_of_file).sum())

    def paths(self, files: Any) -> list[str]:
        """Locations of an iterable of data or delete files."""
        return self._texts(self._stream(files).map(self._path_of_file))

    def referenced(self, delete_files: Any) -> list[str | None]:
        """The data file that each delete file refers to; None if it can refer to several."""
        locations = self._texts(self._stream(delete_files).map(self._referenced))
        return [None if path == "null" else path for path in locations]

    # -- values for Iceberg's own code ------------------------------------------------------------

    def by_spec(self) -> Any:
        """A `Function` from a data file to the number of its partition spec."""
        return self._as(self._function, self._method(self._content, "specId", self._integer))

    def remembers_deleted(self) -> Any:
        """A `Predicate` of manifests that name deleted files."""
        return self._as(self._predicate, self._method(self._manifest, "hasDeletedFiles", self._boolean))

    def input_files(self, io: Any) -> Any:
        """A `Function` from a delete file to the file to read."""
        return self._as(self._function, self._input_file.bindTo(io))

    def positions(self, index: Any) -> list[int]:
        """The positions of a `PositionDeleteIndex`, ascending."""
        collected = self._long_stream.builder()
        index.forEach(collected)
        text = str(self._arrays.toString(collected.build().toArray()))[1:-1]
        return [int(position) for position in text.split(",")] if text else []

    def strings(self, texts: Collection[str]) -> Any:
        """A Java list of texts without line ends, in one call."""
        return self._split(texts).toList()

    def longs(self, numbers: Collection[int]) -> Any:
        """A Java set of `Long`; Py4J alone would make an `Integer` of a small one."""
        return self._boxed(numbers).collect(self._collectors.toSet())

    def texts(self, iterable: Any) -> list[str]:
        """The elements of a Java iterable of texts without line ends, in one call."""
        return self._texts(self._stream(iterable))

    def read_file_infos(self, infos: Any) -> list[tuple[str, int, int]]:
        """Location, bytes and time of the last write (epoch ms) of an iterable of `FileInfo`."""
        kind = _class(self._file_info)
        to_long = _class(self._util.function.ToLongFunction)
        files = self._stream(infos).toList()
        location = self._as(self._function, self._method(kind, "location", _class(self._text)))
        locations = self._texts(files.stream().map(location))
        numbers = []
        for name in ("size", "createdAtMillis"):
            get = self._as(to_long, self._method(kind, name, self._long))
            numbers_text = str(self._arrays.toString(files.stream().mapToLong(get).toArray()))[1:-1]
            numbers.append([int(number) for number in numbers_text.split(",")] if numbers_text else [])
        return list(zip(locations, *numbers, strict=True))

    def collector(self) -> tuple[Any, Any]:
        """A `Consumer` for many threads and the Java collection that it adds to."""
        collected = self._queue()
        return self._as(self._consumer, self._add.bindTo(collected)), collected

    # -- inside -----------------------------------------------------------------------------------

    def _boxed(self, numbers: Collection[int]) -> Any:
        sent = array.array("q", numbers)
        sent.byteswap()
        longs = self._gateway.new_array(self._long_array_of, len(numbers))
        self._bytes.wrap(sent.tobytes()).asLongBuffer().get(longs)
        return self._long_stream.of(longs).boxed()

    def _deletes(self, tasks: Any) -> Any:
        return tasks.stream().flatMap(self._stream_of_deletes)

    def _among(self, paths: Collection[str]) -> Any:
        path_set = self._split(paths).collect(self._collectors.toSet())
        test = self._contains.bindTo(path_set).asType(self._text_to_boolean)
        return self._as(self._predicate, self._then(self._task_path, test))

    def _split(self, texts: Collection[str]) -> Any:
        # Splitting an empty text gives one empty text, which equals no path.
        return self._separator.splitAsStream(_SEPARATOR.join(texts))

    def _texts(self, stream: Any) -> list[str]:
        text = str(stream.collect(self._collectors.joining(_SEPARATOR)))
        return text.split(_SEPARATOR) if text else []

    def _stream(self, iterable: Any) -> Any:
        # Py4J cannot call the default method `Iterable.spliterator`.
        return self._streams.stream(self._spliterators.spliteratorUnknownSize(iterable.iterator(), 0), False)

    def _method(self, owner: Any, name: str, returned: Any, *argument: Any) -> Any:
        return self._lookup.findVirtual(owner, name, self._type(returned, *argument))

    def _then(self, first: Any, second: Any) -> Any:
        return self._handles.filterReturnValue(first, second)

    def _as(self, interface: Any, handle: Any) -> Any:
        return self._proxies.asInterfaceInstance(interface, handle)


_PATHS = ("write.data.path", "write.metadata.path")
_OF_THE_FUTURE = re.compile(
    r"Invalid update timestamp[^\n]*|Expected sorted (snapshot|previous metadata) log entries"
)
_PREFIX = "org.apache.iceberg.exceptions."
_MISSING = {_PREFIX + "NoSuchTableException", _PREFIX + "NoSuchNamespaceException"}
# The catalog did not refuse the commit, so it may have succeeded. (Iceberg reports SQLite's lock time-out
# as an unchecked error, neither as a refusal nor as an unknown state.)
_UNKNOWN = {
    _PREFIX + "CommitStateUnknownException",
    _PREFIX + "ServiceUnavailableException",
    _PREFIX + "ServiceFailureException",
    _PREFIX + "RESTException",
    "org.apache.iceberg.jdbc.UncheckedSQLException",
    "org.apache.iceberg.jdbc.UncheckedInterruptedException",
    _PREFIX + "RuntimeIOException",
    "java.io.UncheckedIOException",
}


class MetadataMovedError(LakeError):
    """The table's metadata changed since it was read; reload, check again, retry. Internal."""


def java_error_class(error: Py4JJavaError) -> str:
    """The Java class of an error, in full."""
    return str(error.java_exception.getClass().getName())


def first_line(error: Exception) -> str:
    """What an error says, without Java's trace."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def translate(error: Py4JError | PySparkException, table: TableName) -> TautochroneError:
    """Convert an error of the Java API, or of a Spark job that it started, to a TautochroneError."""
    if refused := _OF_THE_FUTURE.search(str(error)):
        return LakeError(
            "LAKE_CLOCK_BEHIND",
            f"{table} has commits that are newer than a clock says, this host's or the catalog's: "
            f"{refused.group()}",
            hint="set the clocks right; where they are, it is over when they have caught up with the time in "
            "the message (epoch milliseconds)",
            retryable=True,
        )
    if isinstance(error, PySparkException):
        return LakeError("LAKE_OPERATION_FAILED", f"{table}: {problem_of(error).message}")
    if not isinstance(error, Py4JJavaError):
        return CommitOutcomeUnknownError("LAKE_UNREACHABLE", f"The JVM did not answer for {table}: {error}")
    name = java_error_class(error)
    text = str(error.java_exception.getMessage())
    if name == _PREFIX + "CommitFailedException":
        return MetadataMovedError("METADATA_MOVED", f"{table}: {text}", retryable=True)
    if name in _MISSING:
        return TableMissingError("TABLE_OR_VIEW_NOT_FOUND", f"The table {table} cannot be found: {text}")
    if name in _UNKNOWN:
        return CommitOutcomeUnknownError(
            "COMMIT_OUTCOME_UNKNOWN", f"The catalog gave no clear answer for {table}: {text}"
        )
    return LakeError("LAKE_OPERATION_FAILED", f"{table}: {name.rsplit('.', 1)[-1]}: {text}")


FILE_PATHS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""The properties by which a table has files elsewhere than in its folder."""


class Iceberg:
    """The Java API behind one Spark session (the base session: its catalog is the real one)."""

    def __init__(
        self,
        session: SparkSession,
        catalog: str,
        durability: Durability = Durability.PROCESS,
        foreign_folders: Sequence[str] = (),
    ) -> None:
        self.session = session
        self.durability = durability
        self.catalog_name = catalog
        jvm: Any = cached_packages(session._jvm)  # noqa: SLF001
        self.jvm = jvm
        self.jsession: Any = session._jsparkSession  # noqa: SLF001
        self.api: Any = jvm.org.apache.iceberg
        self._gateway: Any = session.sparkContext._gateway  # noqa: SLF001
        self._identifiers: dict[TableName, Any] = {}
        self._foreign_folders = foreign_folders
        self._own_locations: set[str] = set()

    @cached_property
    def functions(self) -> Functions:
        """Java functions over lists of files."""
        return Functions(self.jvm, self._gateway)

    @cached_property
    def task_sets(self) -> TaskSets:
        """DataFrames over chosen data files."""
        return TaskSets(self.jvm)

    def catalog(self) -> Any:
        """The Java catalog. Iceberg's Spark code uses the thread's active session, which only the thread
        that created the session has, so it is set here."""
        self.activate(self.session)
        return self._catalog

    @cached_property
    def _catalog(self) -> Any:
        # Spark configures a catalog permanently from the session that is active when it is first used.
        self.activate(self.session)
        return self.api.spark.Spark3Util.loadIcebergCatalog(self.jsession, self.catalog_name)

    def activate(self, session: SparkSession) -> None:
        """Make `session` the active one of this thread's JVM thread."""
        set_active_session(session)

    def identifier(self, name: TableName) -> Any:
        if name not in self._identifiers:
            namespace = self.api.catalog.Namespace.of(self.strings([*name.namespace]))
            self._identifiers[name] = self.api.catalog.TableIdentifier.of(namespace, name.table)
        return self._identifiers[name]

    def load(self, name: TableName) -> Any:
        """The table, fresh from the catalog.

        Raises:
            TableMissingError: it is not there.
        """
        try:
            table = self.catalog().loadTable(self.identifier(name))
        except Py4JError as error:
            raise translate(error, name) from error
        if self._foreign_folders:
            properties = table.properties()
            self.require_own(name, str(table.location()), *map(properties.get, FILE_PATHS))
        return table

    def require_own(self, name: TableName, *locations: str | None) -> None:
        """Refuse a table that keeps files where another target of the project has its own.

        Args:
            locations: where the table's files are; None: nowhere.

        Raises:
            LakeError: `TABLE_OF_ANOTHER_TARGET`.
        """
        for location in locations:
            if location is None or location in self._own_locations:
                continue
            for folder in self._foreign_folders:
                if is_within(location, folder):
                    raise LakeError(
                        "TABLE_OF_ANOTHER_TARGET",
                        f"{name} keeps its files in {location}, and {folder} belongs to another target",
                        hint="a target reads another one's tables by roots_from, and never opens them itself",
                        sqlstate="42501",
                    )
            self._own_locations.add(location)

    def load_with(self, name: TableName, properties: Iterable[str]) -> str:
        """The table, fresh from the catalog, with properties: the text that `LoadedTable.of` takes.

        Raises:
            TableMissingError: it is not there.
        """
        try:
            identifier, names = self.identifier(name), joined_texts(properties)
            return str(iceberg_calls().load(self.jsession, self._catalog, identifier, names))
        except Py4JError as error:
            raise translate(error, name) from error

    def array(self, kind: Any, values: Sequence[Any]) -> Any:
        """A Java array of the Java class `kind`."""
        java_array = self._gateway.new_array(kind, len(values))
        for index, value in enumerate(values):
            java_array[index] = value
        return java_array

    def strings(self, values: list[str]) -> Any:
        return self.array(self.jvm.java.lang.String, values)

    def map(self, values: Mapping[str, str]) -> Any:
        result = self.jvm.java.util.HashMap()
        for key, value in values.items():
            result.put(key, value)
        return result

    def set(self, values: Iterable[str]) -> Any:
        result = self.jvm.java.util.HashSet()
        for value in values:
            result.add(value)
        return result

    def synced_folders(self, metadata: Any) -> list[Path]:
        """The local folders of a table whose files must be synced to disk before and after a commit."""
        if self.durability is Durability.PROCESS:
            return []
        properties = metadata.properties()
        locations = [metadata.location(), *(properties.get(key) for key in _PATHS)]
        folders = [local_folder(str(location)) for location in locations if location is not None]
        return [folder for folder in folders if folder is not None]

    def table_cache(self) -> Any:
        """Iceberg's registry of tables that a write can name by a key.

        `SparkTableCache.get()` is static and `get(String)` is not. Py4J then treats both as instance
        methods, so the static one is called by reflection.
        """
        loader = self.jvm.java.lang.Thread.currentThread().getContextClassLoader()
        cls = loader.loadClass("org.apache.iceberg.spark.SparkTableCache")
        method = cls.getMethod("get", self._gateway.new_array(self.jvm.java.lang.Class, 0))
        return method.invoke(None, self._gateway.new_array(self.jvm.java.lang.Object, 0))

    def java_schema(self, schema: Any) -> Any:
        """A pyspark StructType as the Java one."""
        return self.jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
