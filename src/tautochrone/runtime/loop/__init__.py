"""The checkpoint loop: take over, cut, refresh, publish."""
