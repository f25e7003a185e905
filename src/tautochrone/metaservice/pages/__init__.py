"""Web pages over the store: `add_pages`. Those in `routes` only read; those in `forms` act, by
`Forms` and by the store: alarms are acknowledged, built plans decided."""

from tautochrone.metaservice.pages.forms import Forms, Revisions, Runner
from tautochrone.metaservice.pages.login import add_login
from tautochrone.metaservice.pages.routes import add_pages

__all__ = ["Forms", "Revisions", "Runner", "add_login", "add_pages"]
