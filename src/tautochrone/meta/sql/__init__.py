"""The parts of the store in SQL: one class for each protocol."""
