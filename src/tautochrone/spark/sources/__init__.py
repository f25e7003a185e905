"""Streaming sources that Spark reads, such as Kafka and files: what each can do, and batch limits."""
