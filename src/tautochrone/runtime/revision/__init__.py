"""Reverting tables to an earlier checkpoint."""
