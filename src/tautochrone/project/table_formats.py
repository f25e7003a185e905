"""Formats that definitions ask for: `format=` and `USING`.

Spark's own pipelines write managed tables in such a format. Here all tables are Iceberg, so a format of files
or of another lake format means "a managed table", and the dataset remembers what was asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import LAKE_FORMAT, Dataset, OtherFormats
from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.definitions import Definitions

__all__ = ["check_format", "mapped_datasets", "mapping_reason"]

_MANAGED_TABLE_FORMATS = frozenset(
    {"parquet", "delta", "orc", "avro", "json", "csv", "text", "hive", "hudi", "paimon"}
)


def check_format(dataset: Dataset) -> None:
    """Refuse a format in which Spark has no managed tables.

    Raises:
        DefinitionError: `UNSUPPORTED_TABLE_FORMAT`.
    """
    if dataset.format is None or dataset.format == LAKE_FORMAT or dataset.format in _MANAGED_TABLE_FORMATS:
        return
    known = sorted({LAKE_FORMAT, *_MANAGED_TABLE_FORMATS})
    near = difflib.get_close_matches(dataset.format, known, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    raise DefinitionError(
        "UNSUPPORTED_TABLE_FORMAT",
        f"Dataset {dataset.name} asks for the format {dataset.format}, which is no format of managed tables",
        sqlstate="0A000",
        location=str(dataset.location),
        hint=f"{meant}Leave the format out, or write one of {', '.join(known)}.",
    )


def mapped_datasets(definitions: Definitions, other_formats: OtherFormats) -> Sequence[Dataset]:
    """The datasets that ask for another format than the lake's.

    Raises:
        DefinitionError: `TABLE_FORMAT_NOT_WRITTEN`, there is one and the setting forbids it.
    """
    datasets = [
        dataset for dataset in definitions.datasets.values() if dataset.format not in (None, LAKE_FORMAT)
    ]
    if datasets and other_formats is OtherFormats.FAIL:
        raise DefinitionError(
            "TABLE_FORMAT_NOT_WRITTEN",
            f"Dataset {datasets[0].name} asks for the format {datasets[0].format}, and tables are written "
            f"in {LAKE_FORMAT}",
            sqlstate="0A000",
            location=str(datasets[0].location),
            hint="Leave the format out of the definition, or set other_formats below [lake] to map.",
        )
    return datasets


def mapping_reason(dataset: Dataset) -> Reason:
    """Why a dataset is written in another format than its definition asks for."""
    return Reason.of(ReasonCode.TABLE_FORMAT_MAPPED, format=dataset.format, lake_format=LAKE_FORMAT)
