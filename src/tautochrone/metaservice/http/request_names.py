"""Names in requests, checked."""

from __future__ import annotations

from tautochrone.errors import QueryError
from tautochrone.model.names import TableName

__all__ = ["checked_text", "parse_job_name", "parse_table_name", "table_of_path"]

_MAX_TABLE_NAME = 1_000
_MAX_JOB_NAME = 255


def checked_text(text: str, label: str, max_length: int) -> str:
    """A text that every database can store. `label` names it in errors.

    Raises:
        QueryError: `NAME_INVALID`: empty, too long, with control characters or surrogates.
    """
    if not text or len(text) > max_length:
        raise QueryError("NAME_INVALID", f"{label} has 1 to {max_length} characters, not {len(text)}")
    if any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in text):
        raise QueryError("NAME_INVALID", f"{label} must not hold control characters or halves of characters")
    return text


def parse_job_name(text: str) -> str:
    return checked_text(text, "A job's name", _MAX_JOB_NAME)


def table_of_path(catalog: str, database: str, table: str) -> TableName:
    """The table of a path's parts. `database` may have several levels, separated by dots.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    if "." in catalog or "." in table:
        raise QueryError("NAME_INVALID", "The names of catalogs and tables hold no dots")
    return parse_table_name(f"{catalog}.{database}.{table}")


def parse_table_name(text: str) -> TableName:
    """The table `catalog.database.table`.

    Raises:
        QueryError: `NAME_INVALID`.
    """
    checked_text(text, "A table's name", _MAX_TABLE_NAME)
    try:
        return TableName.parse(text)
    except ValueError:
        raise QueryError(
            "NAME_INVALID", "A table's name has a catalog, a database and a table, with dots between"
        ) from None
