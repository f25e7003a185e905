"""The streaming flows of a job, bound to their tables and folders."""
