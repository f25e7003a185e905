"""The MetaService's memory: topology, cuts, versions, fences, pins, lineage. Start at `Store`."""

from tautochrone.meta.database import StoreDatabase
from tautochrone.meta.protocols.checkpoints import ReportTime
from tautochrone.meta.protocols.datasets import (
    CheckpointLine,
    DatasetEntry,
    DatasetState,
    DatasetStatus,
    Lineage,
    RefreshTotals,
)
from tautochrone.meta.protocols.jobs import JobEntry, TableRole
from tautochrone.meta.protocols.reads import DEFAULT_LEASE_MS
from tautochrone.meta.protocols.recovery import Comparison, LakeVersion, Reconciled, StoreRelation
from tautochrone.meta.protocols.store import Store
from tautochrone.meta.store import MetaStore

__all__ = [
    "DEFAULT_LEASE_MS",
    "CheckpointLine",
    "Comparison",
    "DatasetEntry",
    "DatasetState",
    "DatasetStatus",
    "JobEntry",
    "LakeVersion",
    "Lineage",
    "MetaStore",
    "Reconciled",
    "RefreshTotals",
    "ReportTime",
    "Store",
    "StoreDatabase",
    "StoreRelation",
    "TableRole",
]
