"""Lake tables behind one port: one folder per format."""
