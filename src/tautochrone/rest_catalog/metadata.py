"""The metadata of tables: the newest file of each, read through the pipeline's catalog, and a copy in which
one of the table's versions is the current one.

This module must not know read points or Spark. Only the catalog's pointer is read each time: a metadata file
never changes, so its parsed content is cached by location.

Engines read the current state from four fields of the metadata: the current snapshot, the branch `main`,
the current schema and the last entry of the snapshot log. All four must agree.
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import unquote, urlparse

from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.engine import URL, Engine

from tautochrone.errors import EnvironmentProblemError, LakeError, TableMissingError, TautochroneError
from tautochrone.iceberg.sessions.catalog_settings import CatalogSettings
from tautochrone.iceberg.sessions.hadoop_files import is_table, newest_metadata_file, plain_path, subfolders
from tautochrone.model.catalog import FullSnapshotRead
from tautochrone.model.names import TableName, Version
from tautochrone.redaction import redacted

__all__ = [
    "MetadataSource",
    "SnapshotGoneError",
    "at_version",
    "for_stream",
    "metadata_source",
    "with_columns",
]

_CACHED_FILES = 64
_NO_SNAPSHOT = -1
"""How Iceberg writes that a table has no snapshot."""
_SNAPSHOT_FIELDS = ("current-snapshot-id", "statistics", "partition-statistics")

Metadata = Mapping[str, Any]


class MetadataSource(Protocol):
    """The tables of one catalog, as they are now."""

    @property
    def catalog(self) -> str:
        """The catalog's name in SQL, the first part of every `TableName`."""

    def load(self, table: TableName) -> tuple[str, Metadata]:
        """Location and content of the table's newest metadata file.

        Raises:
            TableMissingError: there is no such table.
            LakeError: `METADATA_UNREADABLE`, the catalog or the file cannot be read now.
        """

    def view(self, view: TableName, /) -> tuple[str, Metadata] | None:
        """Location and content of the view's newest metadata file; None when there is no such view."""

    def tables(self, namespace: tuple[str, ...] | None = None) -> Sequence[TableName]:
        """All tables, or those directly in `namespace`."""

    def namespaces(self) -> Sequence[tuple[str, ...]]:
        """All namespaces, each as a tuple of its levels."""


def metadata_source(settings: CatalogSettings) -> MetadataSource:
    """The source for a pipeline's catalog settings.

    JDBC catalogs are read by SQL, one row a table; hadoop catalogs by their folders; all others through
    PyIceberg.

    Raises:
        EnvironmentProblemError: `CATALOG_NOT_READABLE`: PyIceberg cannot open a catalog of this type.
    """
    options = {**settings.file_options, **settings.options}
    if settings.kind == "jdbc":
        return JdbcSource(settings.name, sqlalchemy_url(options), options)
    if settings.kind == "hadoop":
        return HadoopSource(settings.name, options)
    return PyIcebergSource(settings.name, options)


def sqlalchemy_url(options: Mapping[str, str]) -> URL:
    """The catalog's JDBC URL (SQLite, PostgreSQL or MySQL) as a SQLAlchemy URL."""
    uri = options["uri"].removeprefix("jdbc:")
    if uri.startswith("sqlite:"):
        path = uri.removeprefix("sqlite:").removeprefix("file:").split("?")[0]
        return URL.create("sqlite", database=path)
    if uri.startswith("postgresql:"):
        uri = uri.replace("postgresql:", "postgresql+psycopg:", 1)
    url = make_url(uri.split("?")[0])
    user, password = options.get("jdbc.user"), options.get("jdbc.password")
    return url.set(username=user or url.username, password=password or url.password)


class _MetadataFiles:
    """Reads metadata files and caches those that were read last."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._parsed: OrderedDict[str, Metadata] = OrderedDict()
        self._lock = Lock()

    def parsed(self, location: str) -> Metadata:
        with self._lock:
            if location in self._parsed:
                self._parsed.move_to_end(location)
                return self._parsed[location]
        raw = self._bytes(location)
        content: Metadata = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        with self._lock:
            self._parsed[location] = content
            while len(self._parsed) > _CACHED_FILES:
                self._parsed.popitem(last=False)
        return content

    def _bytes(self, location: str) -> bytes:
        parsed = urlparse(location)
        if parsed.scheme in ("", "file"):
            return Path(unquote(parsed.path) if parsed.scheme else location).read_bytes()
        from pyiceberg.io import load_file_io

        with load_file_io(self._options, location).new_input(location).open() as stream:
            return stream.read()


class JdbcSource:
    """Iceberg's JDBC catalog, read by its two tables."""

    def __init__(self, catalog: str, url: URL, options: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._engine: Engine = create_engine(url)
        self._files = _MetadataFiles(options)
        self._only_tables: str | None = None

    @property
    def catalog(self) -> str:
        return self._catalog

    def load(self, table: TableName) -> tuple[str, Metadata]:
        with _reading(table):
            rows = self._rows(_TABLE_LOCATION, namespace=".".join(table.namespace), table=table.table)
            if not rows:
                raise _table_missing_error(table)
            location: str = rows[0][0]
            return location, self._files.parsed(location)

    def view(self, view: TableName) -> tuple[str, Metadata] | None:
        if self._rows(_TABLE_LOCATION, namespace=".".join(view.namespace), table=view.table):
            return None  # a table
        rows = self._rows(_TABLE_LOCATION, views=True, namespace=".".join(view.namespace), table=view.table)
        return (rows[0][0], self._files.parsed(rows[0][0])) if rows else None

    def tables(self, namespace: tuple[str, ...] | None = None) -> Sequence[TableName]:
        condition = "" if namespace is None else " AND table_namespace = :namespace"
        rows = self._rows(
            "SELECT table_namespace, table_name FROM iceberg_tables "
            f"WHERE catalog_name = :catalog{condition}",
            namespace=".".join(namespace or ()),
        )
        return sorted(TableName(self._catalog, tuple(row[0].split(".")), row[1]) for row in rows)

    def namespaces(self) -> Sequence[tuple[str, ...]]:
        namespaces = {name.namespace for name in self.tables()}
        rows = self._rows(
            "SELECT DISTINCT namespace FROM iceberg_namespace_properties WHERE catalog_name = :catalog",
            views=True,
        )
        namespaces |= {tuple(row[0].split(".")) for row in rows}
        return sorted(namespaces)

    def _rows(self, statement: str, *, views: bool = False, **values: str) -> Sequence[Any]:
        url = self._engine.url
        if url.get_backend_name() == "sqlite" and not Path(url.database or "").exists():
            return ()  # no table was created yet, and connecting would create an empty file
        with self._engine.connect() as connection:
            if self._only_tables is None:
                inspector = inspect(connection)
                if not inspector.has_table("iceberg_tables"):
                    return ()
                columns = {column["name"] for column in inspector.get_columns("iceberg_tables")}
                # Catalogs of older versions have no views and no such column.
                has_type = "iceberg_type" in columns
                self._only_tables = _TYPE_IS_TABLE if has_type else ""
            values["catalog"] = self._catalog
            sql = statement if views else statement + self._only_tables
            return connection.execute(text(sql), values).all()


_TYPE_IS_TABLE = " AND (iceberg_type IS NULL OR iceberg_type = 'TABLE')"
_TABLE_LOCATION = (
    "SELECT metadata_location FROM iceberg_tables WHERE catalog_name = :catalog "
    "AND table_namespace = :namespace AND table_name = :table"
)


class HadoopSource:
    """Iceberg's hadoop catalog in a local folder, read by its folders."""

    def __init__(self, catalog: str, options: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._warehouse = plain_path(options["warehouse"])
        self._files = _MetadataFiles(options)

    @property
    def catalog(self) -> str:
        return self._catalog

    def load(self, table: TableName) -> tuple[str, Metadata]:
        with _reading(table):
            file = newest_metadata_file(self._warehouse.joinpath(*table.namespace, table.table))
            if file is None:
                raise _table_missing_error(table)
            return str(file), self._files.parsed(str(file))

    def view(self, _view: TableName, /) -> tuple[str, Metadata] | None:
        """The catalog has no views."""
        return None

    def tables(self, namespace: tuple[str, ...] | None = None) -> Sequence[TableName]:
        namespaces = self.namespaces() if namespace is None else [namespace]
        return sorted(
            TableName(self._catalog, levels, folder.name)
            for levels in namespaces
            for folder in subfolders(self._warehouse.joinpath(*levels))
            if is_table(folder)
        )

    def namespaces(self) -> Sequence[tuple[str, ...]]:
        namespaces: list[tuple[str, ...]] = []
        to_list: list[tuple[str, ...]] = [()]
        while to_list:
            namespace = to_list.pop()
            folders = subfolders(self._warehouse.joinpath(*namespace))
            inner = [(*namespace, folder.name) for folder in folders if not is_table(folder)]
            to_list += inner
            namespaces += inner
        return sorted(namespaces)


class PyIcebergSource:
    """A catalog that PyIceberg opens with the same properties."""

    def __init__(self, catalog: str, options: Mapping[str, str]) -> None:
        self._catalog = catalog
        self._files = _MetadataFiles(options)
        kind = options.get("type") or _KINDS.get(options.get("catalog-impl", "").split(".")[-1])
        if kind not in _KINDS.values():
            raise EnvironmentProblemError(
                "CATALOG_NOT_READABLE",
                f"Catalog {catalog} ({kind or options.get('catalog-impl', 'of unknown type')}) "
                "cannot be read from Python",
                hint="Use an Iceberg catalog of type jdbc, rest, hive, glue or hadoop.",
            )
        from pyiceberg.catalog import load_catalog

        properties = {key: value for key, value in options.items() if key not in ("type", "catalog-impl")}
        self._iceberg = load_catalog(catalog, type=kind, **properties)

    @property
    def catalog(self) -> str:
        return self._catalog

    def load(self, table: TableName) -> tuple[str, Metadata]:
        from pyiceberg.exceptions import NoSuchTableError

        with _reading(table):
            try:
                loaded = self._iceberg.load_table((*table.namespace, table.table))
            except NoSuchTableError as error:
                raise _table_missing_error(table) from error
            return loaded.metadata_location, self._files.parsed(loaded.metadata_location)

    def view(self, _view: TableName, /) -> tuple[str, Metadata] | None:
        """PyIceberg cannot read views."""
        return None

    def tables(self, namespace: tuple[str, ...] | None = None) -> Sequence[TableName]:
        namespaces = self.namespaces() if namespace is None else [namespace]
        return sorted(
            TableName(self._catalog, levels, name[-1])
            for levels in namespaces
            for name in self._iceberg.list_tables(levels)
        )

    def namespaces(self) -> Sequence[tuple[str, ...]]:
        namespaces: list[tuple[str, ...]] = []
        todo = [tuple(name) for name in self._iceberg.list_namespaces()]
        while todo:
            name = todo.pop()
            namespaces.append(name)
            todo += [tuple(inner) for inner in self._iceberg.list_namespaces(name)]
        return sorted(namespaces)


_KINDS = {
    "RESTCatalog": "rest",
    "HiveCatalog": "hive",
    "GlueCatalog": "glue",
    "DynamoDbCatalog": "dynamodb",
}


@contextmanager
def _reading(table: TableName) -> Iterator[None]:
    """Each catalog and file system has errors of its own: they become one."""
    try:
        yield
    except TautochroneError:
        raise
    except Exception as error:
        cause = getattr(error, "orig", None) or error
        raise LakeError(
            "METADATA_UNREADABLE",
            f"The metadata of {table} cannot be read: {type(cause).__name__}: {redacted(str(cause))}",
            hint="check that the catalog answers, and that the table's newest metadata file is there",
        ) from error


def _table_missing_error(table: TableName) -> TableMissingError:
    return TableMissingError("TABLE_OR_VIEW_NOT_FOUND", f"Table {table} does not exist")


# -- one version as the current one ----------------------------------------------------------------------


class SnapshotGoneError(Exception):
    """The metadata does not list the version: it was expired, or the table was replaced."""


def at_version(metadata: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """A copy of `metadata` whose current state is `version`, without anything later.

    Only the version's ancestors stay, so no engine reads later rows or batches that are prepared on other
    branches. Tags stay when they point to one of these ancestors.

    Raises:
        SnapshotGoneError: the metadata does not list the version.
    """
    current = int(version)
    if current == _NO_SNAPSHOT:
        return _empty(metadata)
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots") or ()}
    if current not in snapshots:
        raise SnapshotGoneError(version)
    ancestors: set[int] = set()
    ancestor: int | None = current
    while ancestor is not None and ancestor in snapshots and ancestor not in ancestors:
        ancestors.add(ancestor)
        ancestor = snapshots[ancestor].get("parent-snapshot-id")
    refs = {
        name: ref
        for name, ref in (metadata.get("refs") or {}).items()
        if ref.get("type") == "tag" and ref["snapshot-id"] in ancestors
    }
    changed: dict[str, Any] = {
        "current-snapshot-id": current,
        "snapshots": [s for s in metadata["snapshots"] if s["snapshot-id"] in ancestors],
        "refs": refs | {"main": {"snapshot-id": current, "type": "branch"}},
        "snapshot-log": _snapshot_log(metadata.get("snapshot-log") or (), snapshots[current], ancestors),
    }
    for entry in ("statistics", "partition-statistics"):
        if entry in metadata:
            changed[entry] = [s for s in metadata[entry] if s["snapshot-id"] in ancestors]
    result = dict(metadata) | changed
    schema_id = snapshots[current].get("schema-id")
    if schema_id is not None:
        _use_schema(result, metadata, schema_id)
    return result


def with_columns(metadata: Mapping[str, Any], columns: str) -> dict[str, Any]:
    """A copy of `metadata` whose current schema is another one. See `model.catalog.Widened`.

    Args:
        columns: the schema as Iceberg writes it; columns that the table has have their ids.
    """
    schema_id = 1 + max(schema["schema-id"] for schema in metadata["schemas"])
    schema = {**json.loads(columns), "schema-id": schema_id}
    result = {
        **metadata,
        "schemas": [*metadata["schemas"], schema],
        "current-schema-id": schema_id,
        "last-column-id": max(metadata["last-column-id"], *_field_ids(schema)),
    }
    return result | {"schema": schema} if "schema" in metadata else result


def for_stream(
    metadata: Mapping[str, Any], full_reads: Iterable[FullSnapshotRead], folder: str
) -> dict[str, Any]:
    """A copy of `metadata` for one stream: the snapshots of `full_reads` are appends of all their files.

    See `model.catalog.Streamed`.
    """
    by_snapshot = {int(read.version): read for read in full_reads}
    snapshots = [
        _append_of_all_files(snapshot, by_snapshot[snapshot["snapshot-id"]])
        if snapshot["snapshot-id"] in by_snapshot
        else snapshot
        for snapshot in metadata.get("snapshots") or ()
    ]
    properties = {**(metadata.get("properties") or {}), "write.metadata.path": folder}
    return {**metadata, "snapshots": snapshots, "properties": properties}


def _append_of_all_files(snapshot: Mapping[str, Any], full_read: FullSnapshotRead) -> dict[str, Any]:
    summary = {"operation": "append", "added-data-files": str(full_read.files)}
    append = {**snapshot, "summary": {**(snapshot.get("summary") or {}), **summary}}
    return append if full_read.manifests is None else append | {"manifest-list": full_read.manifests}


def _empty(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of the table before its first snapshot."""
    result = {key: value for key, value in metadata.items() if key not in _SNAPSHOT_FIELDS}
    return result | {"snapshots": [], "refs": {}, "snapshot-log": []}


def _snapshot_log(
    log: Sequence[Mapping[str, Any]], snapshot: Mapping[str, Any], ancestors: set[int]
) -> list[Mapping[str, Any]]:
    """The log up to the snapshot.

    The log has no entry for a snapshot that reached main within a fast-forward: one is added for it.
    """
    snapshot_id = snapshot["snapshot-id"]
    indexes = [index for index, entry in enumerate(log) if entry["snapshot-id"] == snapshot_id]
    if indexes:
        return [entry for entry in log[: indexes[-1] + 1] if entry["snapshot-id"] in ancestors]
    committed_ms = snapshot["timestamp-ms"]
    before = [e for e in log if e["snapshot-id"] in ancestors and e["timestamp-ms"] <= committed_ms]
    return [*before, {"snapshot-id": snapshot_id, "timestamp-ms": committed_ms}]


def _use_schema(result: dict[str, Any], metadata: Mapping[str, Any], schema_id: int) -> None:
    """Make an older schema the current one, without partition specs and sort orders over later columns.

    Iceberg binds every partition spec and the default sort order to the current schema when it parses
    metadata: a spec over a column that was added later would make the table unreadable.
    """
    result["current-schema-id"] = schema_id
    schemas = {schema["schema-id"]: schema for schema in metadata["schemas"]}
    if schema_id not in schemas:
        return
    if "schema" in result:  # format version 1 repeats the current schema
        result["schema"] = schemas[schema_id]
    later_columns = _field_ids(schemas[metadata["current-schema-id"]]) - _field_ids(schemas[schema_id])
    if not later_columns:
        return
    specs = [spec for spec in metadata["partition-specs"] if not _source_ids(spec) & later_columns]
    if specs and len(specs) < len(metadata["partition-specs"]):
        result["partition-specs"] = specs
        spec_ids = {spec["spec-id"] for spec in specs}
        if result["default-spec-id"] not in spec_ids:
            result["default-spec-id"] = max(spec_ids)
        if "partition-spec" in result:
            result["partition-spec"] = next(
                spec["fields"] for spec in specs if spec["spec-id"] == result["default-spec-id"]
            )
    orders = [order for order in metadata["sort-orders"] if not _source_ids(order) & later_columns]
    result["sort-orders"] = orders
    if result["default-sort-order-id"] not in {order["order-id"] for order in orders}:
        if not any(order["order-id"] == 0 for order in orders):
            orders.append({"order-id": 0, "fields": []})
        result["default-sort-order-id"] = 0


def _source_ids(spec_or_order: Mapping[str, Any]) -> set[int]:
    """The ids of the columns that a partition spec or a sort order uses (v3: several a field)."""
    ids: set[int] = set()
    for field in spec_or_order["fields"]:
        ids.update(field.get("source-ids") or [field["source-id"]])
    return ids


def _field_ids(schema: Any) -> set[int]:
    """All field ids in a schema or in a piece of one, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(_field_ids, schema)) if schema else set()
    if not isinstance(schema, Mapping):
        return set()
    ids = {schema[key] for key in ("id", "element-id", "key-id", "value-id") if key in schema}
    return ids.union(*(_field_ids(value) for value in schema.values()))
