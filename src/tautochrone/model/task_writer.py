"""How Spark's tasks write files of a lake table themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

__all__ = ["TaskWriter"]


class TaskWriter(Protocol):
    """Writes rows within a task of Spark, to which it is sent.

    Attributes:
        schema: of the rows, as a pyarrow Schema.
        files_schema: of the batches that it gives, as Spark's DDL: `location` of a file.
    """

    @property
    def schema(self) -> Any: ...

    @property
    def files_schema(self) -> str: ...

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Takes all batches of a task, as pyarrow's record batches, and gives some that name its files."""

    def remove_files(self) -> None:
        """Delete what tasks wrote, on the driver, when not all of them succeed."""
