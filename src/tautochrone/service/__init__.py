"""The MetaService to the outside: the checkpoint as an Iceberg REST catalog, and SQL readers.

Import from its modules: `server` needs FastAPI and `reader` Spark, and neither should pay for both.
"""
