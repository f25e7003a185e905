"""What Spark's streaming sources are and how they are read: Kafka, files, rate limits."""
