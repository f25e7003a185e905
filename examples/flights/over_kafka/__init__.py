"""Two definitions that read topics instead of files: `make demo-kafka` replaces the others by them."""
