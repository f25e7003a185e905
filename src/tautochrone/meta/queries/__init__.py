"""Queries that the SQL parts of the store share. Each runs on a connection, in its caller's transaction."""
