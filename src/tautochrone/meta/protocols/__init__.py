"""What the store can do, part by part, without how. It must never know SQL or HTTP. Start at `Store`."""

from tautochrone.meta.protocols.checkpoints import Checkpoints
from tautochrone.meta.protocols.datasets import Datasets
from tautochrone.meta.protocols.deliveries import Deliveries
from tautochrone.meta.protocols.history import History
from tautochrone.meta.protocols.invariants import Invariants
from tautochrone.meta.protocols.jobs import Jobs
from tautochrone.meta.protocols.pins import Pins
from tautochrone.meta.protocols.reads import Reads
from tautochrone.meta.protocols.recovery import Recovery
from tautochrone.meta.protocols.registrations import Registrations
from tautochrone.meta.protocols.revisions import Revisions
from tautochrone.meta.protocols.roots import Roots
from tautochrone.meta.protocols.store import Store
from tautochrone.meta.protocols.transactions import Transactions

__all__ = [
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
