"""One job: its project, lake, store and fence, and the only way to durable writes."""
