"""Sinks: where published rows leave."""
