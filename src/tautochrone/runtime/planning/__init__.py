"""What the next run will do, decided by the functions that a run decides with; nothing is written."""
