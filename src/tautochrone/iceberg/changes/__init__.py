"""What changed between two snapshots of an Iceberg table."""
