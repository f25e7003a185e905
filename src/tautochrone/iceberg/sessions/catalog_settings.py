"""Settings of the Iceberg catalog. This module must not import Spark, because the command line reads the
settings before it prints anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CatalogSettings"]


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The pipeline's lake catalog: its name in SQL and its Iceberg catalog properties."""

    name: str
    options: Mapping[str, str]

    @classmethod
    def default(cls, storage: str) -> CatalogSettings:
        """Iceberg's JDBC catalog on SQLite in `<storage>/catalog.db`, warehouse in `<storage>/warehouse`."""
        return cls(
            "lake",
            {
                "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri": f"jdbc:sqlite:{storage}/catalog.db",
                "warehouse": f"{storage}/warehouse",
                "jdbc.schema-version": "V1",
                # Without a timeout a second writer of the SQLite file fails at once.
                "jdbc.busy_timeout": "30000",
            },
        )

    @property
    def sqlite_file(self) -> str | None:
        """The catalog's database file, when it is Iceberg's JDBC catalog on SQLite."""
        match = re.match(r"jdbc:sqlite:([^?]+)", self.options.get("uri", ""))
        return None if match is None else match[1]
