"""Settings of the Iceberg catalog. This module must not import Spark, because the command line reads the
settings before it prints anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tautochrone.errors import SettingsError
from tautochrone.model.s3 import S3_OPTIONS

__all__ = ["SPARK_CATALOG_CLASSES", "CatalogSettings", "check_supported"]

SPARK_CATALOG_CLASSES = (
    "org.apache.iceberg.spark.SparkCatalog",
    "org.apache.iceberg.spark.SparkSessionCatalog",
)
"""The classes by which Spark's settings name an Iceberg catalog."""
_LOCAL_SCHEMES = ("", "file")

_KINDS = {
    "JdbcCatalog": "jdbc",
    "RESTCatalog": "rest",
    "HadoopCatalog": "hadoop",
    "HiveCatalog": "hive",
    "GlueCatalog": "glue",
    "NessieCatalog": "nessie",
    "DynamoDbCatalog": "dynamodb",
}
"""By the last part of the name of Iceberg's class."""


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """The pipeline's lake catalog: its name in SQL and its Iceberg catalog properties.

    Attributes:
        file_options: PyIceberg's options for files that Spark opens by settings of Hadoop.
    """

    name: str
    options: Mapping[str, str]
    file_options: Mapping[str, str] = field(default_factory=dict, repr=False)

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
    def kind(self) -> str:
        """`jdbc`, `rest`, `hadoop`, `hive`, `glue`, …; an unknown class is its own kind."""
        implementation = self.options.get("catalog-impl")
        if implementation is None:
            # Without a type Iceberg takes Hive's.
            return self.options.get("type", "hive").lower()
        return _KINDS.get(implementation.rpartition(".")[2], implementation)

    @property
    def s3_options(self) -> dict[str, str]:
        """How the catalog's files on S3 are opened: some of `model.s3.S3_OPTIONS`."""
        options = {**self.file_options, **self.options}
        named = {option: options[option] for option in S3_OPTIONS if option in options}
        if "client.region" in options:
            named.setdefault("s3.region", options["client.region"])
        virtual = options.get("s3.force-virtual-addressing")
        if virtual is not None:
            named.setdefault("s3.path-style-access", str(virtual.lower() != "true").lower())
        return named

    @property
    def sqlite_file(self) -> str | None:
        """The catalog's database file, when it is Iceberg's JDBC catalog on SQLite."""
        match = re.match(r"jdbc:sqlite:([^?]+)", self.options.get("uri", ""))
        return None if match is None else match[1]


def check_supported(catalog: CatalogSettings) -> None:
    """Refuse a catalog in which a commit may overwrite another one, or that readers cannot open.

    Raises:
        SettingsError: `CATALOG_NOT_ATOMIC` or `CATALOG_NOT_SUPPORTED`.
    """
    if catalog.kind == "hadoop":
        warehouse = catalog.options.get("warehouse", "")
        scheme = urlsplit(warehouse).scheme
        if not warehouse:
            raise SettingsError(
                "CATALOG_NOT_SUPPORTED",
                f"The hadoop catalog {catalog.name} has no warehouse",
                hint=f"set spark.sql.catalog.{catalog.name}.warehouse to a local folder",
            )
        if scheme not in _LOCAL_SCHEMES:
            raise SettingsError(
                "CATALOG_NOT_ATOMIC",
                f"The hadoop catalog {catalog.name} is on {scheme}://, where a commit may overwrite another",
                hint="use a catalog of type jdbc or rest with the same warehouse; type hadoop is supported "
                "on a local file system",
            )
    elif catalog.kind == "nessie":
        raise SettingsError(
            "CATALOG_NOT_SUPPORTED",
            f"The catalog {catalog.name} of type nessie cannot be read from Python",
            hint="Nessie is an Iceberg REST catalog too: type=rest, uri=http://HOST:19120/iceberg",
        )
