"""The checkpoint loop: plan, refresh, commit, recover."""
