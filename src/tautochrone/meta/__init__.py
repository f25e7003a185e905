"""The durable truth about pipelines: jobs, checkpoints, versions, pins."""
