"""Brings the shadow table of a foreign table (`model.foreign`) to the foreign table's newest version.

A shadow table is an Iceberg table of ours. Its data files are those of the foreign table, where they are;
ours are the metadata and the deletion vectors, which say the same as the foreign ones. Values of partition
columns, which a foreign data file does not have, are values of an identity partition.

What happened since the last time becomes one snapshot, or several where files were only rearranged in
between: such a snapshot moves no rows. All of them are one catalog commit, which also says which version of
the foreign table it is.

Columns are looked for in data files by names, or by ids where the files have them. Both stand for a column of
the shadow table for ever, so that older versions stay readable. Where an id or a name comes to mean another
column, the shadow table begins anew, without its older versions.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tautochrone.errors import ForeignTableError
from tautochrone.iceberg.changes.changed_files import file_tasks
from tautochrone.iceberg.commits.compare_and_set import (
    Loaded,
    check_main,
    compare_and_set,
    staged_at_ms,
)
from tautochrone.iceberg.commits.metadata import COMMIT_METADATA_KEY, carry_forward, encode
from tautochrone.iceberg.java.api import Iceberg, items, translate
from tautochrone.iceberg.maintenance.orphans import check_seal
from tautochrone.model.effects import Effects, Step
from tautochrone.model.foreign import (
    FOREIGN_VERSION_KEY,
    Followed,
    ForeignField,
    ForeignFile,
    ForeignList,
    ForeignMap,
    ForeignStep,
    ForeignStruct,
    ForeignTable,
    ForeignType,
    ForeignVersion,
    ShownVersion,
)
from tautochrone.model.lake import NO_VERSION, CommitMetadata, Fork
from tautochrone.model.names import TableName, Version
from tautochrone.spark.jvm.catalyst import decimal_digits
from tautochrone.spark.jvm.driver_calls import java_object, joined_texts, singleton, split_texts
from tautochrone.spark.jvm.errors import problem_of

__all__ = ["FieldIds", "follow"]

_MAPPING = "schema.name-mapping.default"
_FOREIGN = "tautochrone.foreign"
"""The property that says which version of which table the newest snapshot shows."""
_NO_DELETES = "[]"
_PATH_SEPARATOR, _NO_ID = "\1", "-"
_PARTS = 6
"""What `ShadowTableCalls.dataFiles` says of each file."""


def follow(
    iceberg: Iceberg,
    name: TableName,
    effects: Effects,
    fork: Fork,
    foreign: ForeignTable,
    commit_metadata: CommitMetadata,
) -> Followed:
    """See `model.lake.LakeTable.follow`."""
    newest = foreign.newest()
    shown = _parsed(fork.handle.table.properties().get(_FOREIGN))
    if shown == ShownVersion.of(newest):
        return Followed(table=name, version=fork.version, number=newest.number)
    update = _Update(iceberg, name, foreign, newest, shown)
    if not update.plan(fork.handle):
        return Followed(table=name, version=fork.version, number=newest.number)
    target = json.dumps(asdict(ShownVersion.of(newest)))

    def build(loaded: Loaded) -> Any:
        check_main(name, loaded, fork.version, commit_metadata.fence)
        check_seal(name, loaded, update.at_ms)
        newest_metadata = carry_forward(loaded.commit_metadata, commit_metadata)
        properties = {_FOREIGN: target, COMMIT_METADATA_KEY: encode(newest_metadata)}
        try:
            return update.metadata(loaded, properties, encode(commit_metadata))
        except ForeignTableError:
            # Of files that came and went since, the owner may have removed some already.
            if not update.forget_steps():
                raise
            return update.metadata(loaded, properties, encode(commit_metadata))

    def done(loaded: Loaded) -> bool:
        is_shown = str(loaded.table.properties().get(_FOREIGN)) == target
        return is_shown and (not update.versions or loaded.main in update.versions)

    compare_and_set(iceberg, name, effects, Step.LAKE_FOLLOW, build=build, done=done)
    return Followed(
        table=name,
        version=update.versions[-1] if update.versions else fork.version,
        number=newest.number,
        before=None if shown is None else shown.number,
        files_added=update.files_added,
        files_removed=update.files_removed,
        files_with_deletes=update.files_with_deletes,
    )


def _parsed(text: str | None) -> ShownVersion | None:
    return None if text is None else ShownVersion(**json.loads(text))


# -- columns ---------------------------------------------------------------------------------------

_FIRST_OF_PARTS = 1_000_000
"""Ids of elements, keys and values begin here: a foreign table numbers its columns and fields from 1."""


class FieldIds:
    """Which id stands for which name in data files.

    >>> ids = FieldIds()
    >>> [each["id"] for each in ids.columns([ForeignField("a", "a", "int"), ForeignField("b", "b", "int")])]
    [1, 2]
    >>> [each["id"] for each in FieldIds(ids.mapping).columns([ForeignField("b", "b", "long")])]
    [2]
    """

    def __init__(self, mapping: Sequence[Mapping[str, Any]] = ()) -> None:
        self._by_path: dict[tuple[str, ...], int] = {}
        self._renamed: dict[tuple[str, ...], str] = {}
        """By path with another name of a column at its end: the name that `_by_path` has."""
        self._collect(mapping, ())
        self.is_redefined = False

    def _collect(self, mapping: Sequence[Mapping[str, Any]], above: tuple[str, ...]) -> None:
        for entry in mapping:
            first, *others = entry["names"]
            path = (*above, first)
            self._by_path[path] = entry["field-id"]
            self._renamed |= {(*above, other): first for other in others}
            self._collect(entry.get("fields", ()), path)

    @property
    def mapping(self) -> list[dict[str, Any]]:
        """As Iceberg's JSON of a name mapping: all columns that there ever were."""
        return self._below(())

    def _below(self, above: tuple[str, ...]) -> list[dict[str, Any]]:
        entries = []
        for path, field_id in self._by_path.items():
            if path[:-1] == above:
                others = [
                    other[-1]
                    for other, first in self._renamed.items()
                    if other[:-1] == above and first == path[-1]
                ]
                entry: dict[str, Any] = {"field-id": field_id, "names": [path[-1], *others]}
                fields = self._below(path)
                entries.append({**entry, "fields": fields} if fields else entry)
        return entries

    def columns(self, fields: Sequence[ForeignField]) -> list[dict[str, Any]]:
        """The fields as Iceberg's JSON of a schema has them."""
        return self._fields(fields, ())

    def id_at(self, path: tuple[str, ...]) -> int | None:
        """Of a column or a field, by its path in data files."""
        known: tuple[str, ...] = ()
        for name in path:
            known = (*known, self._renamed.get((*known, name), name))
        return self._by_path.get(known)

    def has(self, field_id: int) -> bool:
        return field_id in self._by_path.values()

    def name_of(self, field_id: int) -> str:
        """The path of a column or field in data files."""
        return next(".".join(path) for path, known in self._by_path.items() if known == field_id)

    def _fields(self, fields: Sequence[ForeignField], above: tuple[str, ...]) -> list[dict[str, Any]]:
        columns = []
        for each in fields:
            path = (*above, each.stored_name)
            field_id = self._id(path, each.field_id)
            others = {(*above, other): each.stored_name for other in each.other_names}
            # A name never stands for two columns in the mapping.
            self.is_redefined |= path in self._renamed or not self._by_path.keys().isdisjoint(others)
            self._renamed |= others
            kind = self._type(each.type, path)
            columns.append({"id": field_id, "name": each.name, "required": False, "type": kind})
        return columns

    def _type(self, kind: ForeignType, path: tuple[str, ...]) -> Any:
        if isinstance(kind, ForeignStruct):
            return {"type": "struct", "fields": self._fields(kind.fields, path)}
        if isinstance(kind, ForeignList):
            element = (*path, "element")
            return {
                "type": "list",
                "element-id": self._part_id(element, kind.element_id),
                "element-required": False,
                "element": self._type(kind.element, element),
            }
        if isinstance(kind, ForeignMap):
            key, value = (*path, "key"), (*path, "value")
            return {
                "type": "map",
                "key-id": self._part_id(key, kind.key_id),
                "key": self._type(kind.key, key),
                "value-id": self._part_id(value, kind.value_id),
                "value-required": False,
                "value": self._type(kind.value, value),
            }
        return kind

    def _id(self, path: tuple[str, ...], given: int | None) -> int:
        known = self._by_path.get(path)
        if given is None:
            own = (field_id for field_id in self._by_path.values() if field_id < _FIRST_OF_PARTS)
            given = known if known is not None else max(own, default=0) + 1
        elif known is None:
            self.is_redefined |= given in self._by_path.values()
        self.is_redefined |= known is not None and known != given
        self._by_path[path] = given
        return given

    def _part_id(self, path: tuple[str, ...], given: int | None) -> int:
        if given is not None:
            return self._id(path, given)
        if path not in self._by_path:
            self._by_path[path] = max(_FIRST_OF_PARTS, *self._by_path.values()) + 1
        return self._by_path[path]


_WIDENED = frozenset({("int", "long"), ("float", "double")})


def _types_by_id(columns: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Of columns and fields, as Iceberg's JSON of a schema has them; and of elements, keys and values.

    >>> _types_by_id([{"id": 1, "type": {"type": "struct", "fields": [{"id": 2, "type": "int"}]}}])
    {1: 'struct', 2: 'int'}
    """
    types: dict[int, str] = {}

    def take(field_id: int, kind: Any) -> None:
        types[field_id] = kind if isinstance(kind, str) else kind["type"]
        if isinstance(kind, str):
            return
        for each in kind.get("fields", ()):
            take(each["id"], each["type"])
        for part in ("element", "key", "value"):
            if part in kind:
                take(kind[f"{part}-id"], kind[part])

    for column in columns:
        take(column["id"], column["type"])
    return types


def _is_widened(former: str, kind: str) -> bool:
    """Whether Iceberg's readers make the type of the former one.

    >>> _is_widened("decimal(5, 2)", "decimal(9, 2)"), _is_widened("string", "int")
    (True, False)
    """
    digits = decimal_digits(former), decimal_digits(kind)
    if digits[0] is not None and digits[1] is not None:
        return digits[0][1] == digits[1][1] and digits[0][0] <= digits[1][0]
    return former == kind or (former, kind) in _WIDENED


# -- files -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Present:
    """A data file of the shadow table.

    Attributes:
        java: the Java DataFile.
        vector: the Java DeleteFile of its deletion vector.
        deletes: see `ForeignFile`; None: an earlier commit wrote the vector.
    """

    java: Any
    rows: int
    vector: Any = None
    deleted: int = 0
    deletes: str | None = None


@dataclass(slots=True)
class _Change:
    """The files of one snapshot."""

    removed: list[_Present] = field(default_factory=list)
    added: list[ForeignFile] = field(default_factory=list)
    marked: list[ForeignFile] = field(default_factory=list)
    """Those in the snapshot before too, of which other rows are deleted."""

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.marked)


class _Update:
    """What is needed for one commit, and its metadata."""

    def __init__(
        self,
        iceberg: Iceberg,
        name: TableName,
        foreign: ForeignTable,
        newest: ForeignVersion,
        shown: ShownVersion | None,
    ) -> None:
        self._iceberg = iceberg
        self._name = name
        self._foreign = foreign
        self._newest = newest
        self._shown = shown
        self._calls: Any = singleton(Path(__file__).parents[1] / "java" / "ShadowTableCalls.java")
        self._ids = FieldIds()
        self._columns: list[dict[str, Any]] = []
        self._begins_anew = False
        self._steps: Sequence[ForeignStep] | None = None
        self.at_ms = 0
        self.versions: list[Version] = []
        self.files_added = self.files_removed = self.files_with_deletes = 0

    def plan(self, loaded: Loaded) -> bool:
        """Whether the shadow table differs from the foreign table, in files or columns."""
        mapping = json.loads(loaded.table.properties().get(_MAPPING) or "[]")
        self._ids = FieldIds(mapping)
        self._columns = self._ids.columns(self._newest.fields)
        if self._ids.is_redefined or self._has_other_types(loaded):
            self._begins_anew = True
            self._ids = FieldIds()
            self._columns = self._ids.columns(self._newest.fields)
        self.at_ms = staged_at_ms(loaded.table)
        is_other = self._shown is None or self._shown.identity != self._newest.identity
        if is_other or self._begins_anew or self._is_partitioned_otherwise(loaded):
            return True
        assert self._shown is not None
        has_same_columns = self._columns == self._columns_of(loaded)
        self._steps = self._foreign.steps_since(self._shown, has_same_columns=has_same_columns)
        return self._steps is None or bool(self._steps) or not has_same_columns

    def forget_steps(self) -> bool:
        """Compare the lists of files from now on; false: that is what was done."""
        were_known = self._steps is not None
        self._steps = None
        return were_known

    def _has_other_types(self, loaded: Loaded) -> bool:
        """Whether a column has another type than in a version that is kept, which Iceberg does not widen to
        it."""
        if self._columns == self._columns_of(loaded):
            return False
        types = _types_by_id(self._columns)
        schemas = {int(each.schemaId()) for each in items(loaded.metadata.snapshots())}
        for schema in schemas:
            text = str(self._iceberg.api.SchemaParser.toJson(loaded.metadata.schemasById().get(schema)))
            for field_id, former in _types_by_id(json.loads(text)["fields"]).items():
                if not _is_widened(former, types.get(field_id, former)):
                    return True
        return False

    def _columns_of(self, loaded: Loaded) -> list[dict[str, Any]]:
        schema = json.loads(str(self._iceberg.api.SchemaParser.toJson(loaded.table.schema())))
        columns: list[dict[str, Any]] = schema["fields"]
        return columns

    def _partition_ids(self) -> list[int]:
        by_name = {column["name"]: column["id"] for column in self._columns}
        return [by_name[name] for name in self._newest.partition_columns]

    def _is_partitioned_otherwise(self, loaded: Loaded) -> bool:
        spec = json.loads(str(self._iceberg.api.PartitionSpecParser.toJson(loaded.table.spec())))
        return [each["source-id"] for each in spec["fields"]] != self._partition_ids()

    def metadata(self, loaded: Loaded, properties: Mapping[str, str], note: str) -> Any:
        """The Java TableMetadata of the shadow table at the newest version. Its manifests and vectors
        are written."""
        self.versions.clear()
        self.files_added = self.files_removed = self.files_with_deletes = 0
        is_respecified = self._is_partitioned_otherwise(loaded)
        start = self._start(loaded, properties, is_respecified=is_respecified)
        transactions = self._iceberg.api.Transactions
        # Never committed, because it retries without checks: its metadata is committed by compare-and-set.
        transaction = transactions.replaceTableTransaction(str(self._name), loaded.operations, start)
        is_first = loaded.main == NO_VERSION or self._begins_anew
        base = NO_VERSION if is_first else loaded.main
        steps = [self._whole()] if self._steps is None else self._steps
        touched = {path for step in steps for path in step.files}
        is_complete = any(step.is_complete for step in steps)
        present = {} if self._begins_anew else self._present(loaded, None if is_complete else touched)
        parent = "" if base == NO_VERSION else str(base)
        for step in steps:
            if step.is_complete:
                step = replace(step, files={**dict.fromkeys(present), **step.files})
            change = self._change(loaded.table, present, step, is_respecified=is_respecified)
            if change:
                parent = self._commit(transaction, parent, present, change, step, note)
        if not self.versions and (self._steps is None or self._columns != self._columns_of(loaded)):
            # Readers move on to a version that has the new columns, or is of the other table.
            self._commit(transaction, parent, present, _Change(), ForeignStep({}, moves_rows=True), note)
        return self._iceberg.api.TableMetadata.buildFrom(transaction.currentMetadata()).build()

    def _start(self, loaded: Loaded, properties: Mapping[str, str], *, is_respecified: bool) -> Any:
        api = self._iceberg.api
        builder = api.TableMetadata.buildFrom(loaded.metadata)
        schema = loaded.table.schema()
        if self._begins_anew and loaded.main != NO_VERSION:
            numbers = [int(each.snapshotId()) for each in loaded.metadata.snapshots()]
            builder.removeSnapshots(self._iceberg.functions.longs(numbers))
            self._forget_partitions(builder, loaded)
        if self._columns != self._columns_of(loaded):
            text = json.dumps({"type": "struct", "schema-id": 0, "fields": self._columns})
            schema = api.SchemaParser.fromJson(text)
            highest = max(int(schema.highestFieldId()), int(loaded.metadata.lastColumnId()))
            builder.setCurrentSchema(schema, highest)
        if is_respecified or self._begins_anew:
            spec = api.PartitionSpec.builderFor(schema)
            for column in self._newest.partition_columns:
                spec.identity(column)
            builder.setDefaultPartitionSpec(spec.build())
        mapping = json.dumps(self._ids.mapping)
        return builder.setProperties(self._iceberg.map({_MAPPING: mapping, **properties})).build()

    def _forget_partitions(self, builder: Any, loaded: Loaded) -> None:
        """Drop all specifications of partitions: their columns may be gone, or have other ids."""
        unpartitioned = self._iceberg.api.PartitionSpec.unpartitioned()
        builder.setDefaultPartitionSpec(unpartitioned)
        kept = int(builder.build().defaultSpecId())
        dropped = self._iceberg.jvm.java.util.ArrayList()
        for number in loaded.table.specs().keySet():
            if int(number) != kept:
                dropped.add(int(number))
        # Iceberg drops specifications so itself, in a commit of its own; the method is not public.
        java = self._iceberg.jvm.java.lang
        kinds = self._iceberg.array(java.Class, [java.Class.forName("java.lang.Iterable")])
        method = builder.getClass().getDeclaredMethod("removeSpecs", kinds)
        method.setAccessible(True)
        method.invoke(builder, self._iceberg.array(java.Object, [dropped]))

    def _whole(self) -> ForeignStep:
        """From whatever files are there to those of the newest version."""
        return ForeignStep(self._newest.files, moves_rows=True, is_complete=True)

    def _present(self, loaded: Loaded, paths: set[str] | None) -> dict[str, _Present]:
        functions = self._iceberg.functions
        tasks = file_tasks(functions, loaded.table, loaded.main, paths)
        files: dict[str, _Present] = {}
        described = zip(functions.task_paths(tasks), functions.described_delete_files(tasks), strict=True)
        for number, (path, deletes) in enumerate(described):
            task = tasks.get(number)
            file = task.file()
            files[path] = _Present(file, int(file.recordCount()))
            if deletes == _NO_DELETES:
                files[path].deletes = ""
            else:
                files[path].vector = task.deletes().get(0)
                files[path].deleted = int(files[path].vector.recordCount())
        return files

    def _change(
        self, table: Any, present: Mapping[str, _Present], step: ForeignStep, *, is_respecified: bool
    ) -> _Change:
        """What a step does to the files that are present."""
        change = _Change()
        for location, file in step.files.items():
            before = present.get(location)
            if file is None or (before is not None and is_respecified):
                if before is not None:
                    change.removed.append(before)
                if file is None:
                    continue
                before = None
            if before is None:
                change.added.append(file)
            elif not self._deletes_the_same(table, location, before, file):
                change.marked.append(file)
        return change

    def _deletes_the_same(self, table: Any, location: str, before: _Present, file: ForeignFile) -> bool:
        if before.deletes is not None:
            return before.deletes == file.deletes
        if not file.deletes:
            return False
        functions = self._iceberg.functions
        loader = self._iceberg.api.data.BaseDeleteLoader(functions.input_files(table.io()))
        vectors = self._iceberg.jvm.java.util.ArrayList()
        vectors.add(before.vector)
        stored = functions.positions(loader.loadPositionDeletes(vectors, location))
        return stored == list(self._foreign.deleted_positions(file))

    def _commit(
        self,
        transaction: Any,
        parent: str,
        present: dict[str, _Present],
        change: _Change,
        step: ForeignStep,
        note: str,
    ) -> str:
        """Add a snapshot. Returns its id."""
        described = self._described(transaction, change.added)
        removed_vectors = [each.vector for each in change.removed if each.vector is not None]
        rows_before = sum(each.rows - each.deleted for each in change.removed)
        for file in change.added:
            present[file.location] = described[file.location]
        marked = [file for file in (*change.added, *change.marked) if file.deletes]
        for file in change.marked:
            entry = present[file.location]
            rows_before += entry.rows - entry.deleted
            if entry.vector is not None:
                removed_vectors.append(entry.vector)
            entry.vector, entry.deleted, entry.deletes = None, 0, file.deletes
        vectors = self._vectors(transaction, present, marked)
        rows_after = sum(
            present[file.location].rows - present[file.location].deleted
            for file in (*change.added, *change.marked)
        )
        rearranges = not step.moves_rows and bool(change.removed) and rows_before == rows_after
        for location, file_after in step.files.items():
            if file_after is None:
                present.pop(location, None)
        properties = {COMMIT_METADATA_KEY: note, FOREIGN_VERSION_KEY: str(self._newest.number)}
        try:
            self._calls.change(
                transaction,
                parent,
                rearranges,
                _names(each.java for each in change.removed),
                _names(removed_vectors),
                _names(described[file.location].java for file in change.added),
                _names(vectors),
                self._iceberg.map(properties),
            )
        except Py4JError as error:
            raise translate(error, self._name) from error
        self.files_added += len(change.added)
        self.files_removed += len(change.removed)
        self.files_with_deletes += len(vectors)
        version = str(transaction.currentMetadata().currentSnapshot().snapshotId())
        self.versions.append(Version(version))
        return version

    def _described(self, transaction: Any, files: Sequence[ForeignFile]) -> dict[str, _Present]:
        """Data files with the statistics of their footers.

        Raises:
            ForeignTableError: a footer cannot be read, or the file's ids of columns are not the table's.
        """
        if not files:
            return {}
        spec, mapping = transaction.table().spec(), json.dumps(self._ids.mapping)
        names = {column["id"]: column["name"] for column in self._columns}
        # The specification has the names of the time when it was made.
        fields = [(str(each.fieldId()), names[int(each.sourceId())]) for each in items(spec.fields())]
        texts = []
        for file in files:
            partition = {number: file.partition[name] for number, name in fields}
            texts += [file.location, str(file.bytes), json.dumps(partition)]
        session = self._iceberg.session._jsparkSession  # noqa: SLF001
        conf = session.sessionState().newHadoopConf()
        try:
            answer = split_texts(str(self._calls.dataFiles(conf, spec, mapping, joined_texts(texts))))
        except (Py4JError, PySparkException) as error:
            raise ForeignTableError(
                "FOREIGN_FILE_UNREADABLE",
                f"A data file of {self._foreign.source} cannot be read: {problem_of(error).message}",
                hint="if the table's own program removed it (VACUUM, a clean, an expired snapshot), the next "
                "run reads the newest version; a damaged one its own readers cannot read either",
                retryable=True,
            ) from error
        parts = zip(*(answer[part::_PARTS] for part in range(_PARTS)), strict=True)
        described = {}
        for file, (part, rows, ids, schema, milliseconds, lists) in zip(files, parts, strict=True):
            self._require_ids(file, ids)
            if schema:
                self._require_types(file, json.loads(schema)["fields"])
            self._require_microseconds(file, milliseconds)
            self._require_groups_of_elements(file, lists)
            described[file.location] = _Present(java_object(part), int(rows), deletes=file.deletes)
        return described

    def _require_ids(self, file: ForeignFile, text: str) -> None:
        """Iceberg's readers go by the ids in a file, if it has some: they must be those of the table."""
        for line in filter(None, text.split("\n")):
            *path, stored = line.split(_PATH_SEPARATOR)
            expected = self._ids.id_at(tuple(path))
            is_wrong = self._ids.has(int(stored)) if expected is None and stored != _NO_ID else False
            if is_wrong or (expected is not None and stored != str(expected)):
                raise ForeignTableError(
                    "FOREIGN_FILE_HAS_OTHER_IDS",
                    f"{file.location} of {self._foreign.source} has ids of columns, and the one of "
                    f"{'.'.join(path)} is not the table's: Iceberg's readers would read another column",
                    hint="let the table's own program write the columns that the view needs into a table "
                    "of their own, in Delta one without column mapping: files with ids of columns are read "
                    "only if these are the table's, and elements, keys and values have theirs",
                    sqlstate="0A000",
                )

    def _require_types(self, file: ForeignFile, stored: Sequence[Mapping[str, Any]]) -> None:
        """Iceberg's readers take the values in a file for those of the table's type.

        Args:
            stored: the file's columns, as Iceberg's JSON of a schema has them.
        """
        types = _types_by_id(self._columns)
        for field_id, kind in _types_by_id(stored).items():
            expected = types.get(field_id, kind)
            if not _is_widened(kind, expected):
                raise self._types_error(file, field_id, kind, expected)

    def _require_microseconds(self, file: ForeignFile, text: str) -> None:
        """Iceberg takes statistics in milliseconds for microseconds: its filters would skip rows."""
        types = _types_by_id(self._columns)
        for field_id in map(int, filter(None, text.split(_PATH_SEPARATOR))):
            if field_id in types:
                kind = f"{types[field_id]} in milliseconds"
                raise self._types_error(file, field_id, kind, f"{types[field_id]} in microseconds")

    def _require_groups_of_elements(self, file: ForeignFile, text: str) -> None:
        """Iceberg's readers fail at lists without them, as Parquet's older writers make them."""
        for field_id in map(int, filter(None, text.split(_PATH_SEPARATOR))):
            if self._ids.has(field_id):
                column = self._ids.name_of(field_id)
                raise ForeignTableError(
                    "FOREIGN_FILE_HAS_OLD_LISTS",
                    f"{file.location} of {self._foreign.source} has the list {column} in two levels, "
                    "without a group around each element: Iceberg's readers fail at it",
                    hint="let the table's own program write its files anew with lists of three levels, in "
                    "Hudi with spark.hadoop.parquet.avro.write-old-list-structure = false, or write the "
                    "columns that the view needs into a table of their own",
                    sqlstate="0A000",
                )

    def _types_error(self, file: ForeignFile, field_id: int, kind: str, expected: str) -> ForeignTableError:
        column = self._ids.name_of(field_id)
        return ForeignTableError(
            "FOREIGN_FILE_HAS_OTHER_TYPES",
            f"{file.location} of {self._foreign.source} has the column {column} "
            f"as {kind}, and the table as {expected}: Iceberg's readers do not convert it",
            hint="let the table's own program write its files anew with the type that the table has "
            "now, or write the columns that the view needs into a table of their own",
            sqlstate="0A000",
        )

    def _vectors(
        self, transaction: Any, present: Mapping[str, _Present], marked: Sequence[ForeignFile]
    ) -> list[Any]:
        """Deletion vectors of ours for files of which rows are deleted."""
        if not marked:
            return []
        texts = []
        for file in marked:
            positions = self._foreign.deleted_positions(file)
            present[file.location].deleted = len(positions)
            java = present[file.location].java
            texts += [java._get_object_id(), ",".join(map(str, positions))]  # noqa: SLF001
        try:
            answer = str(self._calls.vectors(transaction.table(), joined_texts(texts), str(uuid.uuid4())))
        except Py4JError as error:
            raise translate(error, self._name) from error
        vectors = [java_object(part) for part in split_texts(answer)]
        for file, vector in zip(marked, vectors, strict=True):
            present[file.location].vector = vector
        return vectors


def _names(objects: Iterable[Any]) -> str:
    """Py4J's names of Java objects."""
    return joined_texts(each._get_object_id() for each in objects)  # noqa: SLF001
