"""Datasets that left the project: dropped, or going on under another name."""
