"""Commits to an Iceberg table: compare-and-set, their metadata, staged files."""
