"""Taking tables back to an earlier checkpoint."""
