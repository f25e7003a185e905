"""Materialized views: the mode of a refresh, following changes, computing anew, verifying."""
