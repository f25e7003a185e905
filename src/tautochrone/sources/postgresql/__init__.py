"""PostgreSQL as a change log: its logical replication messages, decoded and written into one log table."""
