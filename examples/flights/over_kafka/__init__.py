"""Two definitions that read topics instead of files: `make demo-kafka` puts them in the others' place."""
