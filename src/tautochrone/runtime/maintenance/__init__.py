"""Keeping a job's tables small."""
