"""Which of the store's calls only ask."""

from __future__ import annotations

__all__ = ["READS"]

READS = {
    "aligned", "checkpoint", "checkpoint_states", "checkpoints", "compare", "cut_times", "datasets",
    "decided_after", "delays", "described", "details", "failures_at", "fence", "foreign", "held",
    "held_back_by", "history", "incarnation", "invariants", "is_empty", "job_entries", "job_states", "knows",
    "last_complete", "last_number", "latest_done", "latest_published", "lineage", "newest_decision",
    "newest_refresh", "newest_versions", "now_ms", "observed", "open_target", "pending_revisions",
    "pinned_checkpoints", "pins", "progress", "published_after", "published_versions", "recent_refreshes",
    "refreshes_after", "refreshes_at", "reported", "reports", "retained_versions", "revision", "revisions",
    "revoked_after", "schema_revision", "shared_clocks", "standing", "status", "table_ids", "timeline",
    "versions_at", "why_absent",
}  # fmt: skip
"""Methods that change nothing: they may be asked as often as one likes."""
