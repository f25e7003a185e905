"""What a name in a definition file means: `x`, `db.x`, `lake.db.x`, `spark_catalog.db.x`."""

from __future__ import annotations

from dataclasses import dataclass, field

from tautochrone.errors import DefinitionError
from tautochrone.model.names import TableName, quoted
from tautochrone.project.sqltext import Renamed, rename

__all__ = ["SESSION_CATALOG", "NameScope"]

SESSION_CATALOG = "spark_catalog"
"""Spark's default catalog. Projects spell it out; here it means the pipeline's own catalog."""


@dataclass(frozen=True, slots=True)
class NameScope:
    """The pipeline's catalog and the current database, with the persisted views known so far.

    `views` maps a persisted view to the temporary view that stands for it in a session.
    """

    catalog: str
    namespace: tuple[str, ...]
    views: dict[TableName, str] = field(default_factory=dict, compare=False)

    def within(self, namespace: tuple[str, ...]) -> NameScope:
        """The same scope after `USE namespace`."""
        return NameScope(self.catalog, namespace, self.views)

    def is_ours(self, catalog: str) -> bool:
        """Does this catalog name mean the pipeline's catalog?"""
        return catalog in (self.catalog, SESSION_CATALOG)

    def resolve(self, parts: tuple[str, ...], location: str | None = None) -> TableName:
        """The full name of a dataset.

        Raises:
            DefinitionError: CATALOG_NOT_FOUND, the name starts with a catalog that is not the
                pipeline's; INVALID_IDENTIFIER, it is no name at all.
        """
        if not parts or not all(parts):
            raise DefinitionError("INVALID_IDENTIFIER", "An empty name", location=location, sqlstate="42602")
        if len(parts) == 1:
            return TableName(self.catalog, self.namespace, parts[0])
        if len(parts) == 2:
            return TableName(self.catalog, (parts[0],), parts[1])
        if not self.is_ours(parts[0]):
            raise DefinitionError(
                "CATALOG_NOT_FOUND",
                f"The catalog `{parts[0]}` of {'.'.join(parts)} is not the pipeline's, `{self.catalog}`",
                sqlstate="42P08",
                location=location,
                hint=f"Datasets live in one catalog: write `{self.catalog}` or leave the catalog out.",
            )
        return TableName(self.catalog, parts[1:-1], parts[-1])

    def find(self, parts: tuple[str, ...]) -> TableName | None:
        """As `resolve`, for names that are read: None for other catalogs."""
        try:
            return self.resolve(parts)
        except DefinitionError:
            return None

    def rewrite(self, text: str) -> str:
        """SQL in which `spark_catalog` means our catalog and qualified views mean their stand-ins."""
        return self.renamed(text).text

    def renamed(self, text: str) -> Renamed:
        """As `rewrite`, with what was replaced."""

        def replace(parts: tuple[str, ...]) -> tuple[int, str] | None:
            for length in (len(parts), len(parts) - 1):
                # With one part fewer it may be the qualifier of a column.
                name = self.find(parts[:length]) if length > 1 else None
                if name in self.views:
                    return length, quoted(self.views[name])
            if parts[0] == SESSION_CATALOG != self.catalog and len(parts) > 2:
                return 1, quoted(self.catalog)
            return None

        return rename(text, replace)
