"""What happens, as it happens: each event is a frozen value with a name, fields, a text and a form as JSON.

    from tautochrone.model import events

    job.emit(events.FlowRecovered(flow="orders", dataset="lake.default.orders", attempts=2))

The modules are the sections of `docs/events.md`, which is generated from the classes.
"""

# The names of each module's `__all__`, so that one import serves emitters and listeners.
from tautochrone.model.events.base import DatasetReason as DatasetReason
from tautochrone.model.events.base import Emit as Emit
from tautochrone.model.events.base import Event as Event
from tautochrone.model.events.checkpoints import *
from tautochrone.model.events.commands import *
from tautochrone.model.events.ingestion import *
from tautochrone.model.events.maintenance import *
from tautochrone.model.events.run import *
from tautochrone.model.events.sinks import *
from tautochrone.model.events.store import *
from tautochrone.model.events.transactions import *
