"""What every request passes: access, limits, errors, logs, metrics."""
