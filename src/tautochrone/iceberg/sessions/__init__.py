"""Spark sessions that know the lake: settings of its catalog, reader sessions, the empty catalog."""
