"""What captures of all databases share: the log table, the tables over it, their patterns."""
