"""The store for jobs on other machines."""
