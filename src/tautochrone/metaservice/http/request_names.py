"""Names as requests give them. Whatever comes in is a name of ours, or a clear error."""

from __future__ import annotations

from tautochrone.errors import QueryError
from tautochrone.model.names import TableName

__all__ = ["job_name", "parsed_name", "table_name", "text_of"]

_LONGEST = 1_000
_LONGEST_JOB = 255


def text_of(text: str, what: str, longest: int) -> str:
    """A text that every database can keep.

    Raises:
        QueryError: `NAME_INVALID`: empty, too long, control characters, half characters.
    """
    if not text or len(text) > longest:
        raise QueryError("NAME_INVALID", f"{what} has 1 to {longest} characters, not {len(text)}")
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in text):
        raise QueryError("NAME_INVALID", f"{what} must not hold control characters or halves of characters")
    return text


def job_name(text: str) -> str:
    return text_of(text, "A job's name", _LONGEST_JOB)


def table_name(catalog: str, database: str, table: str) -> TableName:
    """The parts of a path. A database may have several levels, with dots between.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    if "." in catalog or "." in table:
        raise QueryError("NAME_INVALID", "The names of catalogs and tables hold no dots")
    return parsed_name(f"{catalog}.{database}.{table}")


def parsed_name(text: str) -> TableName:
    """`catalog.database.table`.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    text_of(text, "A table's name", _LONGEST)
    try:
        return TableName.parse(text)
    except ValueError:
        raise QueryError(
            "NAME_INVALID", "A table's name has a catalog, a database and a table, with dots between"
        ) from None
