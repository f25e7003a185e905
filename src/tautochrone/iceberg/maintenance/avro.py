"""Rewrites values in Iceberg's Avro files, with the same schema, header and number of records.

PyIceberg reads and writes the records. It would write a new header from its own model of the schema, so the
old header is copied instead and fields that PyIceberg does not know are not lost. The written file is read
again and compared before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFile, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record

from tautochrone.errors import LakeError

__all__ = ["AvroContent", "read_avro", "write_avro"]

_BLOCK = 1_000
_io = PyArrowFileIO()


class AvroContent:
    """A complete file: the header's entries, the schema, and the records with fields by position."""

    def __init__(self, header: dict[str, str], schema: Schema, records: Sequence[Record]) -> None:
        self.header, self.schema, self.records = header, schema, records

    def position(self, *field_ids: int) -> tuple[int, ...] | None:
        """The path to a field, as positions of nested fields. None if the schema has no such field."""
        fields: Any = self.schema.fields
        positions: list[int] = []
        for field_id in field_ids:
            index = next((n for n, field in enumerate(fields) if field.field_id == field_id), None)
            if index is None:
                return None
            positions.append(index)
            fields = getattr(fields[index].field_type, "fields", ())
        return tuple(positions)


class _SameHeader(AvroOutputFile[Record]):
    """Writes all entries of the header unchanged, `avro.schema` included."""

    def _write_header(self) -> None:
        construct_writer(META_SCHEMA).write(
            self.encoder, AvroFileHeader(MAGIC, self.metadata, self.sync_bytes)
        )


def read_avro(path: Path) -> AvroContent:
    """Read a manifest list or a manifest completely.

    Raises:
        LakeError: `METADATA_UNREADABLE`.
    """
    try:
        with AvroFile[Record](_io.new_input(str(path))) as file:
            return AvroContent(dict(file.header.meta), file.schema, list(file))
    except (ValueError, TypeError, KeyError, EOFError, OSError) as error:
        raise LakeError("METADATA_UNREADABLE", f"{path} cannot be read: {error}") from error


def write_avro(path: Path, content: AvroContent, write: Callable[[Path, bytes], None]) -> int:
    """Write `content` through `write`. Returns the number of bytes written.

    Raises:
        LakeError: `METADATA_UNREADABLE`, the written file differs from `content` when read again.
    """
    draft = path.with_name(f".{path.name}.draft")
    with _SameHeader(_io.new_output(str(draft)), content.schema, "", metadata=content.header) as out:
        for start in range(0, len(content.records), _BLOCK):
            out.write_block(list(content.records[start : start + _BLOCK]))
    data = draft.read_bytes()
    again = read_avro(draft)
    draft.unlink()
    if again.header != content.header or list(again.records) != list(content.records):
        raise LakeError("METADATA_UNREADABLE", f"{path} has a form that cannot be written again")
    write(path, data)
    return len(data)
