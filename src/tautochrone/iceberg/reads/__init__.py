"""Reading of Iceberg tables: snapshots, refs, schemas, rows."""
