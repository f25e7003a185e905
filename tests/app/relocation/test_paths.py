"""Paths of a moved folder, and the lists of source files that contain them; without Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tautochrone.errors import LakeError
from tautochrone.iceberg.maintenance.relocation import with_other_paths, write_whole
from tautochrone.ingest.relocation import relocate_sources, sources_below
from tautochrone.model.relocated_paths import MovedFolder, spellings


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("/a/x/t/1.parquet", "/b/y/t/1.parquet"),
        ("file:/a/x/t", "file:/b/y/t"),
        ("file:///a/x", "file:///b/y"),
        ("/a/x//t", "/b/y/t"),
        ("/a/xy/t", None),
        ("/b/y/t", None),
        ("s3://a/x/t", None),
        ("a/x/t", None),
    ],
)
def test_only_paths_below_the_old_folder_have_a_new_one(path: str, new: str | None) -> None:
    assert MovedFolder(("/a/x",), "/b/y").path(path) == new


def test_copy_inside_of_its_original_keeps_its_paths() -> None:
    moved = MovedFolder(("/a",), "/a/backup")
    assert moved.path("/a/t") == "/a/backup/t"
    assert moved.path("/a/backup/t") is None


def test_original_inside_of_its_new_folder_is_moved() -> None:
    moved = MovedFolder(("/a/old",), "/a")
    assert moved.path("/a/old/t") == "/a/t"
    assert moved.path("/a/t") is None


def test_every_spelling_of_the_old_folder_counts() -> None:
    moved = MovedFolder(spellings("/tmp/x/", "/private/tmp/x", "/tmp/x"), "/b")
    assert (moved.path("/tmp/x/t"), moved.path("/private/tmp/x/t")) == ("/b/t", "/b/t")


def test_names_of_source_files_are_percent_encoded() -> None:
    moved = MovedFolder(("/a b/x",), "/c é/100%")
    assert moved.uri("file:///a%20b/x/n%20(1).json") == "file:///c%20é/100%25/n%20(1).json"
    assert moved.uri("/a b/x/n.json") is None


def _entry(path: str, at_ms: int) -> str:
    return json.dumps({"path": path, "timestamp": at_ms, "batchId": 0}, separators=(",", ":"))


def test_lists_of_files_get_new_names_once_and_the_time_of_the_copy(tmp_path: Path) -> None:
    storage, old, new = tmp_path / "storage", tmp_path / "old", tmp_path / "new"
    log = storage / "_checkpoints" / "lake" / "t" / "flow" / "0" / "7" / "sources" / "0" / "3"
    archive = storage / "_positions" / "lake" / "t" / "flow" / "0" / "000000000003.json"
    for folder in (log.parent, archive.parent, new):
        folder.mkdir(parents=True)
    (new / "1.json").write_text("{}")
    os.utime(new / "1.json", (2_000, 2_000))
    text = "\n".join(["v1", _entry(f"file://{old}/1.json", 1_000), _entry("file:///else/2.json", 1_000)])
    log.write_text(text)
    checksum = log.with_name(".3.crc")
    checksum.write_bytes(b"of before")
    archive.write_text(json.dumps({"0/3": text, "1/0": '{"logOffset":3}'}))
    moved = MovedFolder((str(old),), str(new))
    assert sources_below(storage, moved) == f"file://{old}/1.json"
    assert relocate_sources(storage, moved, write_whole) == 2
    expected = ["v1", _entry(f"file://{new}/1.json", 2_000_000), _entry("file:///else/2.json", 1_000)]
    assert log.read_text().splitlines() == expected
    assert json.loads(archive.read_text()) == {"0/3": "\n".join(expected), "1/0": '{"logOffset":3}'}
    assert not checksum.exists()
    assert sources_below(storage, moved) is None
    assert relocate_sources(storage, moved, write_whole) == 0


@pytest.mark.parametrize("data", [b"", b"PAR1" + b"x" * 30, b"PFA1" + b"x" * 30])
def test_file_that_is_no_puffin_file_is_refused(data: bytes) -> None:
    with pytest.raises(LakeError) as raised:
        with_other_paths(data, "/t/1.puffin", lambda _: None)
    assert raised.value.error_class == "METADATA_UNREADABLE"
