"""Which project a storage belongs to: an identity in a file, and the check that it was not copied or moved.

Everything in a storage names files by absolute paths. A storage that was copied or moved still names
the files at its old path, and a run would write there: that is refused before anything is opened
for writing. `taut relocate` (`app.relocation`) rewrites its paths.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from tautochrone.app.stores import is_service
from tautochrone.errors import LakeError
from tautochrone.ingest.relocation import sources_below
from tautochrone.meta.database import parsed_url
from tautochrone.model.effects import Effects, Step
from tautochrone.model.relocated_paths import MovedFolder, spellings
from tautochrone.project.settings import Settings
from tautochrone.project.spec import PipelineSpec

__all__ = [
    "Identity",
    "Row",
    "catalog_rows",
    "check_storage",
    "embedded_store",
    "identify",
    "lake_id",
    "local_catalog",
    "origin_of",
    "read_identity",
    "same_folder",
    "write_identity",
]

FILE_NAME = "storage.json"
_FORMAT = 1
_HINT = "`taut relocate` makes it this folder's own; what it was copied from is not touched"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity that a storage records in `storage.json`.

    Attributes:
        id: unique; a copy gets another.
        storage: its folder as the settings name it; `real_storage` is the same without symbolic links.
        projects: for each pipeline that ran in it, by name, the folder of its spec: as it was named and
            without symbolic links.
        targets: for each pipeline whose project has targets the one that this storage is of.
    """

    id: str
    storage: str
    real_storage: str
    projects: Mapping[str, Sequence[str]]
    targets: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, spec: PipelineSpec, settings: Settings, storage_id: str, known: Identity | None = None
    ) -> Identity:
        """The identity of the storage as it is now; the entries of other pipelines are kept."""
        own_project = {spec.name: list(spellings(str(spec.root), os.path.realpath(spec.root)))}
        own_target = {} if settings.target is None else {spec.name: settings.target.name}
        return cls(
            id=storage_id,
            storage=settings.storage.rstrip("/"),
            real_storage=os.path.realpath(settings.storage),
            projects={**({} if known is None else known.projects), **own_project},
            targets={**({} if known is None else known.targets), **own_target},
        )

    def project(self, pipeline: str) -> tuple[str, ...]:
        """The paths of the folder where a pipeline's spec was; empty when it is not known."""
        return tuple(self.projects.get(pipeline, ()))


@dataclass(frozen=True, slots=True)
class Row:
    """A table or view as a catalog in SQLite names it; `key` are its identifying columns."""

    key: tuple[str, str, str]
    location: str | None
    previous: str | None

    @property
    def name(self) -> str:
        return ".".join(self.key)


def same_folder(left: str, right: str) -> bool:
    """Whether two paths lead to one folder, also through links and mounts."""
    if os.path.realpath(left) == os.path.realpath(right):
        return True
    try:
        return os.path.samefile(left, right)
    except OSError:
        return False


def local_catalog(settings: Settings) -> Path | None:
    """The catalog's database when it is a file inside of the storage."""
    file = settings.catalog.sqlite_file
    if file is None:
        return None
    inside = Path(os.path.realpath(settings.storage)) in Path(os.path.realpath(file)).parents
    return Path(file) if inside else None


def embedded_store(settings: Settings) -> bool:
    """Whether the store is a file inside of the storage, and so is copied with it."""
    if is_service(settings.meta_url):
        return False
    url = parsed_url(settings.meta_url)
    if url.get_backend_name() != "sqlite" or not url.database:
        return False
    return Path(os.path.realpath(settings.storage)) in Path(os.path.realpath(url.database)).parents


def catalog_rows(file: Path) -> list[Row]:
    """All tables and views; none when there is no catalog yet.

    Raises:
        LakeError: `CATALOG_UNREADABLE`.
    """
    if not file.exists():
        return []
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=30)
        try:
            if not connection.execute(_HAS_TABLES).fetchone():
                return []
            return [Row((row[0], row[1], row[2]), row[3], row[4]) for row in connection.execute(_ROWS)]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise LakeError("CATALOG_UNREADABLE", f"The catalog {file} cannot be read: {error}") from error


_HAS_TABLES = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'iceberg_tables'"
_ROWS = (
    "SELECT catalog_name, table_namespace, table_name, metadata_location, previous_metadata_location "
    "FROM iceberg_tables ORDER BY 1, 2, 3"
)


def origin_of(settings: Settings, rows: list[Row]) -> str | None:
    """The storage that a catalog's rows belong to, if it is another one and its files are here:
    derived from the default paths of tables. None otherwise."""
    real_storage = os.path.realpath(settings.storage)
    for row in rows:
        if row.location is None:
            continue
        path = urlsplit(row.location).path if row.location.startswith("file:") else row.location
        below = f"/warehouse/{'/'.join(row.key[1].split('.'))}/{row.key[2]}/metadata/"
        candidate, separator, _ = path.partition(below)
        if not separator or os.path.realpath(candidate) == real_storage:
            continue
        if same_folder(candidate, settings.storage):
            continue
        if Path(f"{settings.storage}{path[len(candidate) :]}").exists():
            return candidate
    return None


def read_identity(settings: Settings) -> Identity | None:
    """The storage's identity; None before its first run, or if the file is gone.

    Raises:
        LakeError: `STORAGE_UNREADABLE`.
    """
    path = Path(settings.storage) / FILE_NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != _FORMAT:
            raise ValueError("it was written by another version")
        return Identity(**content)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise LakeError(
            "STORAGE_UNREADABLE",
            f"{path} does not say whose storage this is: {error}",
            hint="restore the file; without it a copy could not be told from its original",
        ) from error


def write_identity(settings: Settings, identity: Identity, *, first: bool = False) -> bool:
    """Write the identity into the storage, atomically.

    Args:
        first: only if the storage has none yet: jobs of a project may start at the same moment.

    Returns:
        Whether the storage has this identity now.
    """
    path = Path(settings.storage) / FILE_NAME
    draft = path.with_name(f".{FILE_NAME}.{uuid4().hex[:8]}")
    with draft.open("w", encoding="utf-8") as out:
        out.write(json.dumps({"format": _FORMAT, **asdict(identity)}, indent=1) + "\n")
        out.flush()
        os.fsync(out.fileno())
    if not first:
        draft.rename(path)
        return True
    try:
        # Unlike a rename, a hard link fails if the file exists.
        path.hardlink_to(draft)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def check_storage(spec: PipelineSpec, settings: Settings) -> Identity | None:
    """Refuse a storage that was copied, moved, or belongs to another project. Writes nothing.

    Raises:
        LakeError: `STORAGE_MOVED`, `PROJECT_MOVED`, `STORAGE_OF_ANOTHER_PROJECT`,
            `STORAGE_OF_ANOTHER_TARGET`, `STORAGE_UNREADABLE`, `CATALOG_UNREADABLE`.
    """
    if not Path(settings.storage).is_dir():
        return None
    identity = read_identity(settings)
    if identity is not None and settings.target is not None:
        _check_target(identity, spec, settings.target.name, settings.storage)
    file = local_catalog(settings)
    if identity is not None and not same_folder(identity.storage, settings.storage):
        if file is not None or embedded_store(settings) or _has_read(identity, spec, settings):
            raise _storage_moved_error(identity.storage, settings.storage)
        return identity
    old = None if file is None else origin_of(settings, catalog_rows(file))
    if old is not None:
        raise _storage_moved_error(old, settings.storage)
    if identity is not None:
        _check_project(identity, spec, settings)
    return identity


def _check_target(identity: Identity, spec: PipelineSpec, target: str, storage: str) -> None:
    owner = identity.targets.get(spec.name, target)
    if owner != target:
        raise LakeError(
            "STORAGE_OF_ANOTHER_TARGET",
            f"The storage {storage} is the one of target {owner}, not of {target}",
            hint=f"give [targets.{target}] another storage; a target that was renamed keeps its storage when "
            f"{FILE_NAME} there names the new one",
            location=spec.origin_of("storage"),
            sqlstate="55000",
        )


def _check_project(identity: Identity, spec: PipelineSpec, settings: Settings) -> None:
    old_project = identity.project(spec.name)
    if not old_project or same_folder(old_project[0], str(spec.root)):
        return
    inside = Path(old_project[-1]) in Path(identity.real_storage).parents
    if inside and (Path(old_project[-1]) / spec.path.name).exists():
        raise LakeError(
            "STORAGE_OF_ANOTHER_PROJECT",
            f"The storage {settings.storage} belongs to the project in {old_project[0]}, not to the one in "
            f"{spec.root}",
            hint="let `storage` in the spec name a folder of this project: a path without file: and without "
            "a slash at its beginning starts at the spec",
            location=str(spec.path),
            sqlstate="55000",
        )
    if _has_read(identity, spec, settings):
        raise LakeError(
            "PROJECT_MOVED",
            f"The project was in {old_project[0]} and is in {spec.root} now: its source files have other "
            "names, and would all be read again",
            hint="`taut relocate` gives them their new names",
            sqlstate="55000",
        )


def _has_read(identity: Identity, spec: PipelineSpec, settings: Settings) -> bool:
    """Whether the project was moved and some flow has read files below its old folder."""
    old_project = identity.project(spec.name)
    if not old_project or same_folder(old_project[0], str(spec.root)):
        return False
    moved = MovedFolder(old_project, str(spec.root))
    return sources_below(Path(settings.storage), moved) is not None


def _storage_moved_error(old: str, new: str) -> LakeError:
    return LakeError(
        "STORAGE_MOVED",
        f"The storage {new} was made in {old}, and its tables name the files there",
        hint=_HINT,
        sqlstate="55000",
        parameters={"old": old, "new": new},
    )


def identify(spec: PipelineSpec, settings: Settings, known: Identity | None, effects: Effects) -> Identity:
    """The storage's identity, written if it has none or if its project's path changed harmlessly."""
    identity = Identity.of(spec, settings, str(uuid4()) if known is None else known.id, known)
    if known is not None and known.real_storage == identity.real_storage:
        old_project = known.project(spec.name)
        if old_project and same_folder(old_project[0], str(spec.root)) and known.targets == identity.targets:
            return known
    written = effects.perform(
        Step.STORAGE_IDENTIFY,
        settings.storage,
        lambda: write_identity(settings, identity, first=known is None),
    )
    # Another job of the project was faster: its identity counts for all.
    return identity if written else identify(spec, settings, read_identity(settings), effects)


def lake_id(settings: Settings, identity: Identity) -> str:
    """The identity of the lake: for a catalog inside of the storage the storage's id, for any other
    catalog its URI, its warehouse and its name, the same from every machine."""
    if local_catalog(settings) is not None:
        return f"storage {identity.id}"
    options = settings.catalog.options
    uri = options.get("uri") or options.get("type") or options.get("catalog-impl", "")
    prefix = "jdbc:" if uri.startswith("jdbc:") else ""
    parts = urlsplit(uri.removeprefix("jdbc:"))
    redacted_uri = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return (
        f"catalog {settings.catalog.name} at {prefix}{redacted_uri}, warehouse {options.get('warehouse', '')}"
    )
