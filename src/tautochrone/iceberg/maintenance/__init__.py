"""Keeping Iceberg tables small: expiry, compaction, orphan files, relocation."""
