"""Reading with plain SQL at one checkpoint."""
