"""The only place that knows how Spark is started and what its plans look like."""
