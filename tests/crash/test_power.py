"""A power cut takes every file of the lake that nobody took to the disk before.

Databases are as they are at any moment: they take their own files to the disk in each commit. Of the lake's
files only those count that were there when their file system was last taken to the disk.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadataUtil

from tautochrone.errors import EnvironmentProblemError
from tautochrone.iceberg.java import api
from tautochrone.model.effects import Step
from tautochrone.model.lake import local_folder

from .checks import check_tables
from .faults import StrikingEffects
from .world import World

pytestmark = [pytest.mark.crash, pytest.mark.spark]

T = TypeVar("T")


@dataclass
class Disk:
    """Which files of a warehouse are on the disk, and what the catalog named when."""

    storage: Path
    lock: threading.RLock = field(default_factory=threading.RLock)
    synced: set[str] = field(default_factory=set)
    named: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """Each time that the store has learned of versions: their metadata files, and the files on the disk."""
    before: list[tuple[set[str], set[str]]] = field(default_factory=list)
    """Before each call that takes files to the disk: all metadata files that the catalog names, and the files
    on the disk."""

    def sync(self, _folder: Path) -> None:
        with self.lock:
            self.before.append((self.catalog(), set(self.synced)))
            self.synced |= self.files()

    def look(self, table: str | None) -> None:
        """The store learns of all tables, or of one."""
        with self.lock:
            named = {file for file in self.catalog() if table is None or f"/{table}/metadata/" in file}
            self.named.append((named, set(self.synced)))

    def files(self) -> set[str]:
        return {str(path) for path in (self.storage / "warehouse").rglob("*") if path.is_file()}

    def catalog(self) -> set[str]:
        file = self.storage / "catalog.db"
        if not file.exists():
            return set()
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as database:
            locations = database.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
        return {_path(location) for (location,) in locations if location is not None}

    def cut_power(self) -> None:
        """Remove what is not on the disk: folders of streams too, for nobody takes them there."""
        for path in self.files() - self.synced:
            Path(path).unlink()
        shutil.rmtree(self.storage / "_checkpoints")


class Watched(StrikingEffects):
    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def perform(self, step: Step, subject: str, action: Callable[[], T]) -> T:
        done = super().perform(step, subject, action)
        if step in (Step.META_REPORT, Step.META_VERSION):
            self._disk.look(subject.rpartition(".")[2])
        elif step is Step.META_PUBLISH:
            self._disk.look(None)
        return done


def _path(location: str) -> str:
    return location.removeprefix("file://").removeprefix("file:")


class Lake:
    """What tables consist of, read by PyIceberg."""

    def __init__(self) -> None:
        self._io = PyArrowFileIO()
        self._of_manifest: dict[str, set[str]] = {}
        self._of_table: dict[str, set[str]] = {}

    def needs(self, metadata_file: str) -> set[str]:
        """All files of the newest version of a table but its metadata file."""
        if metadata_file not in self._of_table:
            text = Path(metadata_file).read_text()
            snapshot = TableMetadataUtil.parse_obj(json.loads(text)).current_snapshot()
            referenced = set[str]()
            if snapshot is not None:
                referenced.add(_path(snapshot.manifest_list))
                for manifest in snapshot.manifests(self._io):
                    referenced |= self._files(manifest)
            self._of_table[metadata_file] = referenced
        return self._of_table[metadata_file]

    def _files(self, manifest: ManifestFile) -> set[str]:
        path = _path(manifest.manifest_path)
        if path not in self._of_manifest:
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            self._of_manifest[path] = {path, *(_path(entry.data_file.file_path) for entry in entries)}
        return self._of_manifest[path]


@pytest.mark.slow
def test_what_the_store_knows_survives_a_power_cut(world: World) -> None:
    settings = world.sources.folder / "tautochrone.toml"
    settings.write_text(settings.read_text() + '[lake]\ndurability = "power_loss"\n')
    disk, lake = Disk(world.sources.storage), Lake()
    world.sources.add()
    with patch.object(api, "_sync", disk.sync):
        world.run(effects=Watched(disk)).require_completed()
    assert len(disk.named) > len(disk.catalog())
    for named, synced in disk.before:
        for metadata in named:
            assert lake.needs(metadata) <= synced, f"{metadata} was named before its files were on the disk"
    for named, synced in disk.named:
        assert named <= synced, "the store knows versions whose metadata files are not on the disk"
    disk.cut_power()
    world.sources.add()
    with patch.object(api, "_sync", disk.sync):
        world.run().require_completed()
    check_tables(world.sources)


def test_every_local_file_system_is_taken_to_the_disk_once(tmp_path: Path) -> None:
    taken: list[Path] = []
    with patch.object(api, "_sync", taken.append):
        api.sync_file_systems([tmp_path / "not" / "yet", tmp_path])
    assert taken == [tmp_path]
    api.sync_file_systems([tmp_path])
    assert local_folder("file:///a%20b/c") == Path("/a%20b/c")
    assert local_folder("/a b/c") == Path("/a b/c")
    assert local_folder("s3://bucket/c") is None


def test_file_system_that_cannot_be_taken_to_the_disk_is_told(tmp_path: Path) -> None:
    with (
        patch.object(api.ctypes, "CDLL", lambda *_, **__: object()),
        pytest.raises(EnvironmentProblemError, match="NOT_SYNCED"),
    ):
        api.sync_file_systems([tmp_path])
