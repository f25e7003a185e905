"""Maintenance: expiry of checkpoints and versions, compaction, orphaned files."""
