"""A year of real flights as an ordinary Spark Declarative Pipelines project."""
