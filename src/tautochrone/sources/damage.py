"""What reading the metadata of a foreign table raises where it is damaged, whatever reads it."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import fastavro

__all__ = ["DAMAGED", "CodecError", "DamagedFileError", "avro_records", "text_of"]

DAMAGED = (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, struct.error, zlib.error)
"""Next to the errors of the readers themselves: a file is cut off, has other bytes, or a field is missing."""

_CODECS = ("null", "deflate", "bzip2", "xz", "zstandard")


class DamagedFileError(Exception):
    """A file is no Avro."""


class CodecError(Exception):
    """A file of Avro is compressed in a way that is not known here. Its text is the name of that way."""


def avro_records(path: str, content: bytes) -> list[Any]:
    """The records of a file of Avro.

    Args:
        path: for the sentence of an error.

    Raises:
        DamagedFileError, CodecError: see there.
    """
    codec = _CODECS[0]
    try:
        reader = fastavro.reader(io.BytesIO(content))
        codec = reader.codec
        return list(reader)
    except Exception as error:
        # The libraries that decompress have errors of their own.
        if codec not in _CODECS:
            raise CodecError(codec) from error
        raise DamagedFileError(f"{path} is damaged: {text_of(error)}") from error


def text_of(error: Exception) -> str:
    """The text of an error; with its kind where the text alone says little.

    >>> text_of(KeyError("fields")), text_of(FileNotFoundError("a is not there"))
    ("KeyError: 'fields'", 'a is not there')
    """
    says_little = isinstance(error, (LookupError, TypeError, AttributeError)) or not str(error)
    return f"{type(error).__name__}: {error}" if says_little else str(error)
