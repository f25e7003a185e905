"""What several adapters of sinks use."""
