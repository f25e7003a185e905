"""A shop in PostgreSQL, captured into the lake while it is written to: `make demo-cdc`."""
