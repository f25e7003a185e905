"""What the flows of a job read outside of the lake, by the last word of its newest run."""

from __future__ import annotations

from typing import Any

from tautochrone.model.jobs import JobStatus

__all__ = ["flow_sources"]


def flow_sources(job: JobStatus) -> list[dict[str, Any]]:
    """A job's sources as JSON objects, by flow. Of a database: the phase of the copy, by how much the log
    table is behind, what the database keeps for it, when it was asked (epoch milliseconds); null for others.
    """
    if job.report is None:
        return []
    result = []
    for source in job.report.sources:
        capture = job.report.captures.get(source.dataset)
        kept = () if capture is None else capture.kept
        result.append(
            {
                "job": job.name,
                "flow": source.flow,
                "dataset": source.dataset,
                "kind": str(source.kind),
                "name": source.name,
                "phase": None if capture is None else capture.phase,
                "lag_ms": None if capture is None else capture.lag_ms,
                "kept": [
                    {
                        "name": log.name,
                        "is_lost": log.is_lost,
                        "kept_bytes": log.kept_bytes,
                        "distance_bytes": log.distance_bytes,
                    }
                    for log in kept
                ],
                "problem": None if capture is None else capture.problem,
                "asked_at_ms": None if capture is None else capture.at_ms,
            }
        )
    return result
