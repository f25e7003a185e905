"""The checkpoint as a read-only Iceberg REST catalog."""
