"""Bringing views and derived streaming tables from one checkpoint to the next."""
