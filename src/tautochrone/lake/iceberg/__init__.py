"""The Iceberg adapter of the lake port."""

from tautochrone.lake.iceberg.catalog import IcebergLake

__all__ = ["IcebergLake"]
