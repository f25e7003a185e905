"""The MetaService's memory: topology, cuts, versions, fences, pins, lineage. Start at `MetaStore`."""

from tautochrone.meta.database import Database
from tautochrone.meta.history import DatasetStatus
from tautochrone.meta.jobs import DatasetEntry, Lineage
from tautochrone.meta.read_versions import DEFAULT_LEASE_MS
from tautochrone.meta.rebuild import LakeVersion
from tautochrone.meta.reconcile import Comparison, Reconciled, StoreRelation
from tautochrone.meta.registration import JobEntry, TableRole
from tautochrone.meta.store import MetaStore
from tautochrone.meta.timeline import CheckpointLine, Report

__all__ = [
    "DEFAULT_LEASE_MS",
    "CheckpointLine",
    "Comparison",
    "Database",
    "DatasetEntry",
    "DatasetStatus",
    "JobEntry",
    "LakeVersion",
    "Lineage",
    "MetaStore",
    "Reconciled",
    "Report",
    "StoreRelation",
    "TableRole",
]
