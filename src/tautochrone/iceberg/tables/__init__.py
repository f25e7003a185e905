"""The catalog and its tables behind the ports of `model`."""
