"""Opening a project: everything that needs all other packages together."""
