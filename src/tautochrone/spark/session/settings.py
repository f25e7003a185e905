"""How Spark and the lake catalog are reached, as values. Importing this must not import Spark: the command
line reads settings before it says its first word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tautochrone.spark.session.jars import CORE, KAFKA, Artifact

__all__ = ["CatalogSettings", "SparkSettings"]


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The pipeline's lake catalog: its name in SQL and its Iceberg catalog properties."""

    name: str
    options: Mapping[str, str]

    @classmethod
    def default(cls, storage: str) -> CatalogSettings:
        """Iceberg's JDBC catalog on SQLite in `<storage>/catalog.db`, warehouse beside it."""
        return cls(
            "lake",
            {
                "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri": f"jdbc:sqlite:{storage}/catalog.db",
                "warehouse": f"{storage}/warehouse",
                "jdbc.schema-version": "V1",
                # Without a wait, a second writer of the SQLite file fails at once.
                "jdbc.busy_timeout": "30000",
            },
        )

    @property
    def sqlite_file(self) -> str | None:
        """The catalog's database file, when it is Iceberg's JDBC catalog on SQLite."""
        found = re.match(r"jdbc:sqlite:([^?]+)", self.options.get("uri", ""))
        return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How Spark is started. `conf` is the user's and wins over our defaults.

    `short_lived` is for commands that answer one question and end: the JVM's optimising compiler would
    spend more than it could win back.
    """

    app_name: str = "tautochrone"
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = CORE + KAFKA
    short_lived: bool = False
