"""The Iceberg adapter of the lake port."""

from tautochrone.iceberg.tables.catalog import IcebergLake

__all__ = ["IcebergLake"]
