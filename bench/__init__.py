"""What refreshes, ingestion, checkpoints and idling cost: `python -m bench --help`, or `make bench`."""
