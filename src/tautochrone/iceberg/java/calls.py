"""What Python asks of Iceberg often, in one message: `IcebergCalls.java`, and its answers as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tautochrone.model.lake import NO_VERSION
from tautochrone.model.names import Version
from tautochrone.spark.jvm.driver_calls import java_object, singleton, split_texts

__all__ = [
    "LoadedTable",
    "Reference",
    "Snapshot",
    "column_names",
    "history",
    "iceberg_calls",
    "references",
    "written_files",
]


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table as one read of its metadata showed it.

    Attributes:
        table, operations, metadata: of Java.
        main: the current version.
        last_updated_ms: when the metadata was made, epoch milliseconds.
        operations_class: the name of the Java class of the operations.
        location: the table's folder, as Iceberg writes it.
        property_values: of the properties that were asked for; None: the table has no such property.
    """

    table: Any
    operations: Any
    metadata: Any
    main: Version
    last_updated_ms: int
    operations_class: str
    location: str
    property_values: tuple[str | None, ...]

    @classmethod
    def of(cls, answer: str) -> Self:
        """From what `IcebergCalls.load` answered."""
        texts = iter(split_texts(answer))
        table, operations, metadata = (java_object(next(texts)) for _ in range(3))
        operations_class, location = next(texts), next(texts)
        main = _optional(texts)
        return cls(
            table=table,
            operations=operations,
            metadata=metadata,
            main=NO_VERSION if main is None else Version(main),
            last_updated_ms=int(next(texts)),
            operations_class=operations_class,
            location=location,
            property_values=tuple(_values(texts)),
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a table.

    Attributes:
        parent: None: it is the first one.
        operation: None for snapshots of the first format.
        schema_id: None for snapshots of old writers.
        committed_at_ms: epoch milliseconds.
    """

    version: Version
    parent: Version | None
    operation: str | None
    schema_id: int | None
    sequence_number: int
    committed_at_ms: int
    summary: Mapping[str, str]


def history(metadata: Any, version: Version, until: Version = NO_VERSION) -> list[Snapshot]:
    """The snapshot `version` and its ancestors, newest first.

    Args:
        metadata: a Java TableMetadata.
        until: the last one, if it is one of them; else the oldest that is not expired is the last.
    """
    if version == NO_VERSION:
        return []
    texts = iter(split_texts(str(iceberg_calls().history(metadata, str(int(version)), until))))
    return [_snapshot(Version(number), texts) for number in texts]


@dataclass(frozen=True, slots=True)
class Reference:
    """A branch or a tag of a table. `sequence_number` is that of its snapshot."""

    name: str
    is_tag: bool
    version: Version
    sequence_number: int


def references(metadata: Any) -> list[Reference]:
    """The branches and tags of a Java TableMetadata."""
    texts = split_texts(str(iceberg_calls().references(metadata)))
    return [
        Reference(name, kind == "TAG", Version(version), int(sequence_number))
        for name, kind, version, sequence_number in zip(*(texts[i::4] for i in range(4)), strict=True)
    ]


def written_files(answer: str) -> list[tuple[Any, int]]:
    """From what `IcebergCalls.write` answered: the data files of Java, each with its number of rows."""
    texts = split_texts(answer)
    return [(java_object(part), int(rows)) for part, rows in zip(texts[::2], texts[1::2], strict=True)]


def column_names(schema: Any) -> list[str]:
    """The names of the top-level columns of a Java schema, in its order."""
    return split_texts(str(iceberg_calls().columns(schema)))


def _snapshot(version: Version, texts: Iterator[str]) -> Snapshot:
    parent, operation, schema = _optional(texts), _optional(texts), _optional(texts)
    return Snapshot(
        version=version,
        parent=None if parent is None else Version(parent),
        operation=operation,
        schema_id=None if schema is None else int(schema),
        sequence_number=int(next(texts)),
        committed_at_ms=int(next(texts)),
        summary={next(texts): next(texts) for _ in range(int(next(texts)))},
    )


def _optional(texts: Iterator[str]) -> str | None:
    is_present, value = next(texts) == "+", next(texts)
    return value if is_present else None


def _values(texts: Iterator[str]) -> Iterator[str | None]:
    """All that `_optional` takes from the rest of the texts."""
    for present in texts:
        value = next(texts)
        yield value if present == "+" else None


def iceberg_calls() -> Any:
    """The object `IcebergCalls` of Spark's JVM."""
    return singleton(Path(__file__).with_name("IcebergCalls.java"))
