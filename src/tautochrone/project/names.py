"""Resolves names in definition files: `x`, `db.x`, `lake.db.x`, `spark_catalog.db.x`, `other.db.x`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import OtherCatalogs
from tautochrone.model.names import TableName, quoted
from tautochrone.project.sqltext import Renamed, rename, tokens, unquote

__all__ = ["SESSION_CATALOG", "NameScope"]

SESSION_CATALOG = "spark_catalog"
"""Spark's default catalog. Where projects name it, it is an alias of the pipeline's own catalog."""

_LIVE = "live"
"""The database that all datasets of a pipeline seem to be in, in Databricks' dialect."""

_BEFORE_A_TABLE = frozenset({"FROM", "JOIN", "INTO", "STREAM", "TABLE"})


class _LiveTables:
    """Tables of the lake that are called `live.x`. Each is looked for once, when a query names it."""

    def __init__(self) -> None:
        self.is_table: Callable[[str], bool] = lambda _: False
        self._known: dict[str, bool] = {}

    def has(self, parts: tuple[str, ...]) -> bool:
        database, table = parts[:2]
        if database != _LIVE:
            return False
        if table not in self._known:
            self._known[table] = self.is_table(table)
        return self._known[table]


@dataclass(frozen=True, slots=True)
class NameScope:
    """The pipeline's catalog and the current database, with the persisted views registered so far.

    `views` maps a persisted view to the temporary view that stands for it in a session. `live` maps the last
    part of a dataset's name, in lower case, to the dataset and to what queries call it: Databricks' `LIVE.x`
    means it, whatever its database is. `live_tables` are tables of the lake that are called so.

    `other.db.x` with a catalog that no setting defines is the table `x` of the lake's database `other.db`:
    Spark reads the name so too, as it takes the first part for a catalog only where there is one.
    `configured` are the catalogs that settings define. `mapped` are the other ones in which there are
    datasets, with the definition that names each first.
    """

    catalog: str
    namespace: tuple[str, ...]
    views: dict[TableName, str] = field(default_factory=dict, compare=False)
    live: dict[str, tuple[TableName, str]] = field(default_factory=dict, compare=False)
    live_tables: _LiveTables = field(default_factory=_LiveTables, compare=False)
    configured: frozenset[str] = frozenset()
    other_catalogs: OtherCatalogs = OtherCatalogs.MAP
    mapped: dict[str, str] = field(default_factory=dict, compare=False)

    def within(self, namespace: tuple[str, ...]) -> NameScope:
        """The same scope after `USE namespace`."""
        return replace(self, namespace=namespace)

    def is_ours(self, catalog: str) -> bool:
        """Whether a catalog name refers to the pipeline's catalog."""
        return catalog in (self.catalog, SESSION_CATALOG)

    def resolve(self, parts: tuple[str, ...], location: str | None = None) -> TableName:
        """The full name of a dataset.

        Raises:
            DefinitionError: SEVERAL_CATALOGS, the name starts with a catalog that a setting defines and
                that is not the pipeline's; INVALID_IDENTIFIER, it is not a name.
        """
        if not parts or not all(parts):
            raise DefinitionError("INVALID_IDENTIFIER", "An empty name", location=location, sqlstate="42602")
        dotted = [part for part in parts if "." in part]
        if dotted:
            raise DefinitionError(
                "INVALID_IDENTIFIER",
                f"The part `{dotted[0]}` of the name {quoted(*parts)} contains a dot",
                location=location,
                sqlstate="42602",
                hint="Dots separate catalog, database and table; use another character within a part.",
            )
        if len(parts) == 1:
            return TableName(self.catalog, self.namespace, parts[0])
        if len(parts) == 2:
            return TableName(self.catalog, (parts[0],), parts[1])
        if self.is_ours(parts[0]):
            return TableName(self.catalog, parts[1:-1], parts[-1])
        if parts[0] in self.configured or self.other_catalogs is OtherCatalogs.FAIL:
            self.require_pipeline_catalog(parts[0], location, parts[1:])
        if location is not None:
            self.mapped.setdefault(parts[0], location)
        return TableName(self.catalog, parts[:-1], parts[-1])

    def require_pipeline_catalog(
        self, catalog: str, location: str | None, rest: tuple[str, ...] = ()
    ) -> None:
        """Refuse a catalog that is not the pipeline's; `rest` are the parts of the name after it.

        Raises:
            DefinitionError: SEVERAL_CATALOGS.
        """
        if self.is_ours(catalog):
            return
        if catalog in self.configured:
            way = f'or set mapped_catalogs = ["{catalog}"] below [lake]: then it is a database of the lake.'
        elif not rest:
            way = f"or write names with three parts, `{catalog}.db.x`: then it is a database of the lake."
        else:
            way = 'or set other_catalogs = "map" below [lake]: then it is a database of the lake.'
        raise DefinitionError(
            "SEVERAL_CATALOGS",
            f"{'.'.join((catalog, *rest))} is not in the pipeline's catalog, `{self.catalog}`",
            sqlstate="0A000",
            location=location,
            hint="A checkpoint shows all datasets of a pipeline, so they are in one catalog: write "
            f"`{'.'.join((self.catalog, *rest))}`, {way}",
        )

    def live_dataset(self, parts: tuple[str, ...]) -> tuple[TableName, str] | None:
        """The dataset that `LIVE.x` means, unless the pipeline has a database of that name.

        A table of the lake that is called exactly so comes first: `prefer_tables_in_live`.
        """
        if len(parts) < 2 or parts[0].lower() != _LIVE or self.live_tables.has(parts):
            return None
        if any(name.namespace[-1].lower() == _LIVE for name, _ in self.live.values()):
            return None
        return self.live.get(parts[1].lower())

    def prefer_tables_in_live(self, is_table: Callable[[TableName], bool]) -> None:
        """Let `live.x`, in lower case, mean the table of the lake where there is one."""
        self.live_tables.is_table = lambda table: is_table(TableName(self.catalog, (_LIVE,), table))

    def find(self, parts: tuple[str, ...]) -> TableName | None:
        """Like `resolve`, for names that are read: None for catalogs that settings define."""
        try:
            return self.resolve(parts)
        except DefinitionError:
            return None

    def rewrite(self, text: str) -> str:
        """The SQL with `spark_catalog` replaced by our catalog, and views by their temporary views."""
        return self.renamed(text).text

    def renamed(self, text: str) -> Renamed:
        """Like `rewrite`, with the positions of the replacements."""

        may_be_alias = bool(self.live) and _has_single_word(text, _LIVE)

        def replace(parts: tuple[str, ...], before: Sequence[str]) -> tuple[int, str] | None:
            for length in (len(parts), len(parts) - 1):
                # Without its last part the name may be the qualifier of a column.
                name = self.find(parts[:length]) if length > 1 else None
                if name in self.views:
                    return length, quoted(self.views[name])
            dataset = self.live_dataset(parts)
            if dataset is not None and (not may_be_alias or _is_table_next(before)):
                return 2, dataset[1]
            if parts[0] == SESSION_CATALOG != self.catalog and len(parts) > 2:
                return 1, quoted(self.catalog)
            return None

        return rename(text, replace)


def _has_single_word(text: str, word: str) -> bool:
    """Whether SQL has a name of one part, such as an alias, that is this word."""
    if word not in text.lower():
        return False
    names = [token for token in tokens(text) if token.kind not in ("space", "comment")]
    for number, token in enumerate(names):
        neighbours = (*names[max(number - 1, 0) : number], *names[number + 1 : number + 2])
        is_word = token.kind == "name" and unquote(token.text).lower() == word
        if is_word and not any(neighbour.kind == "dot" for neighbour in neighbours):
            return True
    return False


def _is_table_next(before: Sequence[str]) -> bool:
    """Whether the name after these words is that of a table, not the qualifier of a column."""
    words = [word.upper() for word in before[-2:]]
    if words[-1:] == ["("]:
        return words[0] in ("STREAM", "TABLE")
    return bool(words) and words[-1] in _BEFORE_A_TABLE and words != ["DISTINCT", "FROM"]
