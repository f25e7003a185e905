"""Plan nodes and delta rules: pure Python, never an engine."""
