"""What happens to the store when a job gets a new owner: reconcile it, describe the datasets."""
