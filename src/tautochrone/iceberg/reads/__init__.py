"""The reading half of an Iceberg table: snapshots, refs, schemas, rows."""
