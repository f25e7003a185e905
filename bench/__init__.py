"""What a refresh costs, measured: `python -m bench --help`, or `make bench`."""
