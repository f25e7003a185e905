"""Rows that enter: streaming flows and the positions that make them exactly-once."""
