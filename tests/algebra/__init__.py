"""Proof of the delta rules in plain Python: random queries, random changes, the known bug classes."""
