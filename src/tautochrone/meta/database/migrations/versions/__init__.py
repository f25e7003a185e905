"""One revision per change of the schema, oldest first. A released revision never changes."""
