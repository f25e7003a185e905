"""Checks between the store and the lake when a job changes hands."""
