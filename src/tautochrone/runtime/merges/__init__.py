"""Streaming tables into which change events are merged by key."""
