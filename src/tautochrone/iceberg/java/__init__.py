"""Iceberg's Java API over Py4J."""
