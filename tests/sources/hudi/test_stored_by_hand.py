"""Tables of Hudi whose files a test writes itself: what Hudi's client hardly ever leaves behind."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from tests.support.foreign import LocalStorage, hudi_table

from tautochrone.errors import ForeignTableError
from tautochrone.model.foreign import ForeignSource
from tautochrone.sources.hudi import HudiTable
from tautochrone.sources.storage import StoredFile

AT = "20260101000000000"
COLUMNS = [{"name": name, "type": kind} for name, kind in (("id", "long"), ("a", "string"), ("b", "string"))]
SCHEMA = json.dumps({"type": "record", "name": "t", "fields": COLUMNS})


def write(folder: Path, *partitions: str, version: int = 6, **properties: str) -> Path:
    """A table with a file in each partition. Returns the file of its only instant."""
    timeline = folder / (".hoodie" if version == 6 else ".hoodie/timeline")
    timeline.mkdir(parents=True)
    named = {"table.version": str(version), "table.name": "t", **properties}
    lines = [f"hoodie.{name}={value}\n" for name, value in named.items()]
    (folder / ".hoodie/hoodie.properties").write_text("".join(lines))
    for partition in partitions:
        (folder / partition).mkdir(parents=True)
        (folder / partition / f"f_0_{AT}.parquet").write_bytes(b"")
    instant = timeline / (f"{AT}.commit" if version == 6 else f"{AT}_{AT}.commit")
    instant.write_text(json.dumps({"extraMetadata": {"schema": SCHEMA}}))
    return instant


def test_folders_have_the_order_of_the_partition_fields(tmp_path: Path) -> None:
    properties = {"table.partition.fields": "b,a", "datasource.write.drop.partition.columns": "true"}
    write(tmp_path, "b 1/a 1", **properties)
    version = hudi_table(tmp_path).newest()
    assert version.partition_columns == ("b", "a")
    assert [dict(file.partition) for file in version.files.values()] == [{"b": "b 1", "a": "a 1"}]


@pytest.mark.parametrize("name", [f"x.parquet_{AT}_hudiext", "x.parquet"])
def test_files_of_another_format_are_refused(tmp_path: Path, name: str) -> None:
    """As XTable and Delta's UniForm write them."""
    instant = write(tmp_path, "k")
    commit = json.loads(instant.read_text())
    stat = {"fileId": "x", "path": f"k/{name}", "partitionPath": "k"}
    instant.write_text(json.dumps({**commit, "partitionToWriteStats": {"k": [stat]}}))
    with pytest.raises(ForeignTableError, match=f"HUDI_FEATURE_UNSUPPORTED.*such as k/{name}"):
        hudi_table(tmp_path).newest()


class Changing(LocalStorage):
    """A folder goes while it is listed for the first time."""

    is_first = True

    def files(self, folder: str, *, below: bool = False, without: str = "") -> list[StoredFile]:
        if below and self.is_first:
            self.is_first = False
            raise FileNotFoundError(folder)
        return super().files(folder, below=below, without=without)


def test_a_folder_that_goes_meanwhile_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, "k")
    assert len(HudiTable(ForeignSource("hudi", str(tmp_path)), Changing()).newest().files) == 1


def avro(codec: str, **fields: Any) -> bytes:
    schema = {"type": "record", "name": "m", "fields": [{"name": name, "type": "string"} for name in fields]}
    file = io.BytesIO()
    fastavro.writer(file, schema, [fields], codec=codec)
    return file.getvalue()


def damaged(codec: str) -> bytes:
    content = avro(codec, schema="x" * 99)
    return content[:-40] + bytes(24) + content[-16:]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "HUDI_TIMELINE_UNREADABLE.*it is no record"),
        (b'{"extraMetadata": 1}', "HUDI_TIMELINE_UNREADABLE.*AttributeError"),
        (b'{"extraMetadata": {"schema": "{"}}', "HUDI_TIMELINE_UNREADABLE"),
        (b'{"extraMetadata": {"schema": "{}"}}', "HUDI_TIMELINE_UNREADABLE.*KeyError: 'fields'"),
        (damaged("deflate"), "HUDI_TIMELINE_UNREADABLE.*is damaged"),
        (damaged("zstandard"), "HUDI_TIMELINE_UNREADABLE.*is damaged"),
        (avro("null", a="x").replace(b"null", b"lzma"), "HUDI_FEATURE_UNSUPPORTED.*compressed by lzma"),
    ],
)
def test_whatever_is_wrong_is_an_error_of_a_class(tmp_path: Path, content: bytes, said: str) -> None:
    write(tmp_path, "k", version=9).write_bytes(content)
    with pytest.raises(ForeignTableError, match=said):
        hudi_table(tmp_path).newest()
