"""The tables: all that knows Iceberg's classes, metadata and catalogs, and the sessions that use them."""
