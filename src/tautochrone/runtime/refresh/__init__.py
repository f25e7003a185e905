"""What the refreshes of views and of streaming tables share: the task, the sessions, the state tables."""
