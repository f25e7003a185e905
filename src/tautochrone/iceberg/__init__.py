"""The Iceberg adapter: the only package that uses Iceberg's classes, metadata and catalogs."""
