"""What the store can do, part by part, without how. It must never know SQL or HTTP. Start at `Store`."""

from tautochrone.meta.protocols.alarms import Alarms
from tautochrone.meta.protocols.builds import Builds
from tautochrone.meta.protocols.checkpoints import Checkpoints, Invariants, Roots
from tautochrone.meta.protocols.datasets import Datasets, History
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.meta.protocols.jobs import Jobs, Registrations
from tautochrone.meta.protocols.reads import Pins, Reads
from tautochrone.meta.protocols.recovery import Recovery
from tautochrone.meta.protocols.revisions import Revisions
from tautochrone.meta.protocols.store import Store
from tautochrone.meta.protocols.transactions import Transactions

__all__ = [
    "Alarms",
    "Builds",
    "Checkpoints",
    "Datasets",
    "Deliveries",
    "History",
    "Invariants",
    "Jobs",
    "Pins",
    "Reads",
    "Recovery",
    "Registrations",
    "Revisions",
    "Roots",
    "Store",
    "Transactions",
]
