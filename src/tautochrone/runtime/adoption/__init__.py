"""Adoption of tables that other programs built, and of a pipeline's tables after it was renamed."""
