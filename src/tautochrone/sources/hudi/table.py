"""A Hudi table as a foreign table: see `model.foreign`.

A base file belongs to a file group, and its name has the instant that wrote it: the newest file of each group
that a completed instant wrote has the group's rows. So the table's files are known from a listing of its
folders; instants say which groups were replaced, and which files must be there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import (
    ForeignField,
    ForeignFile,
    ForeignSource,
    ForeignStep,
    ForeignVersion,
    ShownVersion,
)
from tautochrone.sources.damage import DAMAGED, CodecError, DamagedFileError, text_of
from tautochrone.sources.hudi.schema import columns_of
from tautochrone.sources.hudi.timeline import (
    HudiTimeline,
    TimelineError,
    TimelineState,
    properties_of,
    replaced_groups,
)
from tautochrone.sources.storage import Storage, StoredFile

__all__ = ["HudiTable"]

_FOLDER = ".hoodie"
_PROPERTIES = ("hoodie.properties", "hoodie.properties.backup")
"""The second one is there while the first one is written anew."""
_VERSIONS = {"6": False, "8": True, "9": True}
"""Table versions that are known, and whether names of completed instants have the time of completion."""
_ATTEMPTS = 5
_BASE_FILE = re.compile(r"(.+)_[^_]*_(\d{14,17})\.parquet")
_LOG_FILE = re.compile(r"\.(.+)_(\d{14,17})\.log\.\d+(?:_.*)?")
_OWN_FILE = re.compile(f"{_BASE_FILE.pattern}|{_LOG_FILE.pattern}")
"""Other names are of another format's files, such as `x.parquet_20260101000000000_hudiext` for x.parquet."""
_NO_ROWS = (".cdc", ".crc")
"""The ends of files beside log files: changes for those who read them, and check sums of the file system."""
_NULLS = ("__HIVE_DEFAULT_PARTITION__", "default")


@dataclass(frozen=True, slots=True)
class _Listed:
    """The files of the table and its timeline, at one moment."""

    state: TimelineState
    metadata: Mapping[str, Mapping[str, Any]]
    files: Sequence[StoredFile]


class HudiTable:
    """See `model.foreign.ForeignTable`."""

    def __init__(self, source: ForeignSource, storage: Storage) -> None:
        self._source = source
        self._storage = storage
        self._folder = ""
        self._properties: dict[str, str] = {}
        self._stamp: tuple[int, ...] | None = None
        self._timeline: HudiTimeline | None = None
        self._state: TimelineState | None = None
        self._version: ForeignVersion | None = None

    @property
    def source(self) -> ForeignSource:
        return self._source

    def newest(self) -> ForeignVersion:
        with self._timeline_errors():
            timeline = self._open()
            state, known = timeline.state(), self._state
            is_known = known is not None and known.instants == state.instants and known.stamp == state.stamp
            if self._version is not None and is_known:
                return self._version
            listed = self._list(timeline)
            fields = self._fields(listed)
            partitions = self._partition_columns()
            by_name = {field.name: field for field in fields}
            self._version = ForeignVersion(
                identity=self._properties.get("hoodie.table.name", ""),
                number=int(listed.state.instants[-1].time) if listed.state.instants else 0,
                stamp=listed.state.stamp,
                fields=fields,
                partition_columns=partitions,
                # In the order of the folders, which need not be the schema's.
                files=self._files(listed, [by_name[name] for name in partitions]),
            )
            self._state = listed.state
            return self._version

    def steps_since(self, shown: ShownVersion, *, has_same_columns: bool) -> Sequence[ForeignStep] | None:
        newest, state, timeline = self._version, self._state, self._timeline
        assert newest is not None
        assert state is not None
        assert timeline is not None
        is_same_table = shown.identity == newest.identity
        if is_same_table and has_same_columns and shown.stamp == newest.stamp:
            # Such as after a write that failed.
            return []
        later = state.later_than(shown.stamp) if is_same_table else None
        with self._timeline_errors():
            has_meta_columns = self._has_meta_columns()
            only_clusters = bool(later) and all(
                timeline.is_clustering(each, has_meta_columns=has_meta_columns) for each in later or ()
            )
        moves_rows = not only_clusters or not has_same_columns
        return [ForeignStep(newest.files, moves_rows=moves_rows, is_complete=True)]

    def deleted_positions(self, file: ForeignFile) -> Sequence[int]:
        raise AssertionError(f"{file.location} has no deleted rows")

    # -- properties ---------------------------------------------------------------------------------

    def _open(self) -> HudiTimeline:
        if not self._folder:
            self._folder = self._storage.qualified(self._source.path)
        stamps = ((path, self._storage.stamp(f"{self._folder}/{_FOLDER}/{path}")) for path in _PROPERTIES)
        path, stamp = next((known for known in stamps if known[1] is not None), ("", None))
        if stamp is None:
            raise ForeignTableError(
                "HUDI_TABLE_MISSING",
                f"There is no Hudi table in {self._source.path}",
                hint="a Hudi table is a folder with a file .hoodie/hoodie.properties; its path is absolute, "
                "and its storage is one that Spark has the settings of",
                sqlstate="42P01",
            )
        if self._timeline is None or stamp != self._stamp:
            self._timeline = self._version = None
            content = self._storage.read(f"{self._folder}/{_FOLDER}/{path}")
            self._properties, self._stamp = properties_of(content.decode()), stamp
            self._require_known_features()
            has_completion_times = _VERSIONS[self._properties["hoodie.table.version"]]
            folder = f"{self._folder}/{_FOLDER}"
            if has_completion_times:
                folder += f"/{self._properties.get('hoodie.timeline.path') or 'timeline'}"
            self._timeline = HudiTimeline(self._storage, folder, has_completion_times=has_completion_times)
        return self._timeline

    def _require_known_features(self) -> None:
        properties = self._properties
        unknown = []
        version = properties.get("hoodie.table.version", "")
        if version not in _VERSIONS:
            unknown.append(f"the table version {version or 'of no number'}")
        base_format = properties.get("hoodie.table.base.file.format", "PARQUET")
        if base_format.upper() != "PARQUET" or self._is_set("hoodie.table.multiple.base.file.formats.enable"):
            unknown.append(f"base files of the format {base_format}")
        if properties.get("hoodie.bootstrap.base.path"):
            unknown.append("a bootstrap over files of another table")
        if unknown:
            raise self._feature_error(", ".join(unknown))

    def _feature_error(self, what: str) -> ForeignTableError:
        return ForeignTableError(
            "HUDI_FEATURE_UNSUPPORTED",
            f"Readers of {self._source} must know {what}, and this one does not",
            hint="tables of the versions 6, 8 and 9 with base files in Parquet are followed: let Hudi's own "
            "program upgrade the table, or write a copy of that kind",
            sqlstate="0A000",
        )

    def _is_set(self, name: str, *, default: bool = False) -> bool:
        return self._properties.get(name, str(default)).lower() == "true"

    def _has_meta_columns(self) -> bool:
        return self._is_set("hoodie.populate.meta.fields", default=True)

    # -- columns ------------------------------------------------------------------------------------

    def _fields(self, listed: _Listed) -> tuple[ForeignField, ...]:
        schema = self._properties.get("hoodie.table.create.schema", "")
        for instant in listed.state.instants:
            extra = listed.metadata[instant.name].get("extraMetadata") or {}
            if extra.get("latest_schema"):
                raise self._feature_error("columns by ids (hoodie.schema.on.read.enable)")
            schema = extra.get("schema") or schema
        if not schema:
            raise TimelineError("no instant has a schema")
        fields = columns_of(self._source, schema, has_meta_columns=self._has_meta_columns())
        names = {field.name for field in fields}
        # Files do not have them, and commits need not name them.
        dropped = (name for name in self._partition_columns() if name not in names)
        return (*fields, *(ForeignField(name, name, "string") for name in dropped))

    def _partition_columns(self) -> tuple[str, ...]:
        """Those whose values are in names of folders alone. By default files have them."""
        if not self._is_set("hoodie.datasource.write.drop.partition.columns"):
            return ()
        fields = self._properties.get("hoodie.table.partition.fields") or ""
        # A field may have the kind of its key generator behind it.
        return tuple(name.strip().partition(":")[0] for name in fields.split(",") if name.strip())

    def _partition(self, folder: str, columns: Sequence[ForeignField]) -> dict[str, Any]:
        """By name of the column its value, from the name of a folder."""
        parts = folder.split("/") if folder and columns else []
        values: dict[str, Any] = {}
        if len(parts) != len(columns):
            raise self._partition_error(folder)
        for column, part in zip(columns, parts, strict=True):
            text = part
            if self._is_set("hoodie.datasource.write.hive_style_partitioning"):
                name, _, text = part.partition("=")
                if name != column.name:
                    raise self._partition_error(folder)
            if self._is_set("hoodie.datasource.write.partitionpath.urlencode"):
                text = unquote(text)
            values[column.name] = None if text in _NULLS else self._value(folder, column, text)
        return values

    def _value(self, folder: str, column: ForeignField, text: str) -> Any:
        try:
            if column.type in ("int", "long"):
                return int(text)
        except ValueError as error:
            raise self._partition_error(folder) from error
        is_date = column.type == "date" and re.fullmatch(r"\d{4}-\d\d-\d\d", text)
        if column.type == "string" or is_date:
            return text
        raise self._partition_error(folder)

    def _partition_error(self, folder: str) -> ForeignTableError:
        return ForeignTableError(
            "HUDI_PARTITION_UNREADABLE",
            f"The values of the partition {folder} of {self._source} cannot be read from its name, and its "
            "files do not have them",
            hint="let its files have the partition columns (hoodie.datasource.write.drop.partition.columns "
            "= false), or partition by texts, whole numbers and dates",
            sqlstate="0A000",
        )

    # -- files --------------------------------------------------------------------------------------

    def _list(self, timeline: HudiTimeline) -> _Listed:
        """The timeline and the files of one moment: nobody removed files in between."""
        state = timeline.state()
        for _ in range(_ATTEMPTS):
            before = state
            try:
                metadata = timeline.metadata(before.instants)
                files = self._storage.files(self._folder, below=True, without=_FOLDER)
            except FileNotFoundError:
                # The instant was archived or taken back, or a folder went while it was listed.
                state = timeline.state()
                continue
            state = timeline.state()
            if (state.instants, state.removing) == (before.instants, before.removing):
                return _Listed(before, metadata, files)
        raise TimelineError("instants came and went while it was read")

    def _files(self, listed: _Listed, partition_columns: Sequence[ForeignField]) -> dict[str, ForeignFile]:
        replaced = replaced_groups([listed.metadata[each.name] for each in listed.state.instants])
        newest: dict[tuple[str, str], tuple[str, StoredFile]] = {}
        logs: list[tuple[tuple[str, str], str, str]] = []
        for file in listed.files:
            folder, _, name = file.path.rpartition("/")
            base, log = _BASE_FILE.fullmatch(name), _LOG_FILE.fullmatch(name)
            if log and not name.endswith(_NO_ROWS):
                logs.append(((folder, log[1]), log[2], file.path))
            if base is None or name.startswith("."):
                continue
            group, instant = (folder, base[1]), base[2]
            is_committed = listed.state.is_committed(instant) and group not in replaced
            if is_committed and (group not in newest or newest[group][0] < instant):
                newest[group] = instant, file
        self._require_written(listed, replaced, newest)
        for group, instant, path in logs:
            if group not in replaced and self._has_rows(listed.state, instant, newest.get(group)):
                raise self._log_file_error(path)
        partitions = {folder: self._partition(folder, partition_columns) for folder, _ in newest}
        files = {}
        for (folder, _), (_, file) in newest.items():
            location = f"{self._folder}/{file.path}"
            files[location] = ForeignFile(location, file.bytes, partitions[folder])
        return files

    def _has_rows(self, state: TimelineState, instant: str, base: tuple[str, StoredFile] | None) -> bool:
        """Whether a log file belongs to the newest base file of its group, or to none.

        Args:
            instant: in the log's name: of the base file in version 6, later of the log's own commit.
        """
        if base is None:
            return True
        if not _VERSIONS[self._properties["hoodie.table.version"]]:
            return instant >= base[0]
        if not state.is_committed(instant):
            return False
        # When an archived one was completed is not known.
        return all(each.completed > base[0] for each in state.instants if each.time == instant)

    def _require_written(
        self,
        listed: _Listed,
        replaced: set[tuple[str, str]],
        newest: Mapping[tuple[str, str], tuple[str, StoredFile]],
    ) -> None:
        """That the files are there of which instants say that they wrote them, under names of Hudi's own."""
        written: dict[tuple[str, str], tuple[str, str]] = {}
        for instant in listed.state.instants:
            stats = listed.metadata[instant.name].get("partitionToWriteStats") or {}
            for partition, each in ((p, stat) for p, group in stats.items() for stat in group or ()):
                path = str(each.get("path") or "")
                if path and not _OWN_FILE.fullmatch(path.rpartition("/")[2]):
                    raise self._feature_error(f"files that are not named as Hudi's, such as {path},")
                if path.endswith(".parquet") and (partition, each["fileId"]) not in replaced:
                    written[partition, each["fileId"]] = instant.time, path
        for group, (time, path) in written.items():
            if group not in newest or newest[group][0] < time:
                raise TimelineError(f"{path} of the instant {time} is not there")

    def _log_file_error(self, path: str) -> ForeignTableError:
        return ForeignTableError(
            "HUDI_LOG_FILES_UNSUPPORTED",
            f"{self._source} is merge-on-read and has changes in the log file {path}, which Iceberg's "
            "readers do not merge",
            hint="let Hudi compact the table, each time before it shall be followed, or write it as "
            "copy-on-write; a table without log files in force is followed",
            sqlstate="0A000",
        )

    @contextmanager
    def _timeline_errors(self) -> Iterator[None]:
        """Raise what is wrong with the timeline as an error of a class. What was read is forgotten."""
        try:
            yield
        except CodecError as error:
            self._timeline = self._version = None
            raise self._feature_error(f"a timeline compressed by {error}") from error
        except (TimelineError, DamagedFileError, *DAMAGED) as error:
            self._timeline = self._version = None
            raise ForeignTableError(
                "HUDI_TIMELINE_UNREADABLE",
                f"The timeline of {self._source} cannot be read: {text_of(error)}",
                hint="it is read again at the next cut; if Hudi's own readers fail too, it is damaged",
                retryable=True,
            ) from error
