"""What all requests share: access control, limits, errors, logs, metrics."""
