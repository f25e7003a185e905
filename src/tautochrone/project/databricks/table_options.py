"""Options with which definition files read tables: those of Delta that Iceberg's reader does not know.

Spark hands unknown options to the reader, which leaves them unread. What would give other rows on Databricks
is refused; what only keeps a stream from stopping there has no effect, with a warning.
"""

from __future__ import annotations

from typing import Any

from tautochrone.errors import DefinitionError
from tautochrone.project.databricks.files import note_ignored, options_of

__all__ = ["require_known_options"]

_CHANGES = (
    "A stream takes appended rows: read the rows that were merged into the table, or define a view over the "
    "table, which follows its changes."
)
_BEGINNING = "A stream begins with the oldest rows: leave out with a filter what it should not take."
_REFUSED = {
    "readchangefeed": _CHANGES,
    "readchangedata": _CHANGES,
    "startingversion": _BEGINNING,
    "startingtimestamp": _BEGINNING,
    "endingversion": _BEGINNING,
    "endingtimestamp": _BEGINNING,
}
_WITHOUT_EFFECT = frozenset({"skipchangecommits", "ignorechanges", "ignoredeletes"})
"""With them a stream goes on over changed rows; here it stops at them with `STREAM_INPUT_CHANGED`."""


def require_known_options(reader: Any, table: str) -> None:
    """Refuse options by which Delta's reader would give other rows of a table.

    Args:
        reader: a reader of batches or streams.
        table: the name that it reads, as it is written.

    Raises:
        DefinitionError: `TABLE_OPTION_UNSUPPORTED`.
    """
    options = options_of(reader)
    for key, value in options.items():
        hint = _REFUSED.get(key.lower())
        if hint is not None and value.lower() != "false":
            raise DefinitionError(
                "TABLE_OPTION_UNSUPPORTED",
                f"The table {table} is read with {key}, an option that only Delta's reader has",
                sqlstate="0A000",
                hint=hint,
            )
        if key.lower() in _WITHOUT_EFFECT and value.lower() != "false":
            note_ignored(f"{key} of a stream over {table}")
