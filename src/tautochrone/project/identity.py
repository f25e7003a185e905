"""The identity of a definition: what it evaluates to, and the code that Python runs in it.

Two definitions are the same when their evaluated plans have the same text (`plan_text`), when the functions
in these plans do the same (`object_text`), and when the settings agree that may change rows. How a definition
is written does not matter, nor where its query comes from.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.core.broadcast import Broadcast, _broadcastRegistry
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tautochrone.model.names import TableName
from tautochrone.project.definitions import Definitions, Flow
from tautochrone.project.libraries import Libraries
from tautochrone.project.object_text import ObjectText, ProjectFolder
from tautochrone.project.queries import PythonQuery
from tautochrone.project.session_settings import SECRET
from tautochrone.project.usercode import evaluation_lock
from tautochrone.spark.analysis.analyzed_plan import (
    DERIVED,
    PlanText,
    PythonCommand,
    analyzed_plan,
    plan_text,
)

__all__ = [
    "INPUTS",
    "PROJECT_FOLDER",
    "DescribedFunction",
    "DescribedPlan",
    "Identity",
    "changed_parts",
    "described_flow",
    "described_function",
    "function_text",
    "has_same_columns",
    "identity_of",
]

INPUTS, PROJECT_FOLDER = "inputs", "project_folder"
"""The parts of a definition that its author does not decide."""

_COLUMNS = "columns"
_DECIDED_BY_TYPES = frozenset({"types", _COLUMNS})
_PARTS = ("query", "functions", "settings", "types", _COLUMNS, INPUTS, PROJECT_FOLDER)


@dataclass(frozen=True, slots=True)
class Identity:
    """Hashes of the parts of a definition. `str` is what is stored, and compared.

    Attributes:
        query: the evaluated query, without what follows from the types of the columns that it reads.
        functions: the code that Python runs in it.
        settings: what may change its rows besides.
        types: the whole evaluated query.
        columns: names and types of its result.
        inputs: the columns that it reads, with their types. When this part agrees and `types` does not, the
            query was changed in a way that only types show.
        project_folder: the project's folder, if its path is in the query or in functions.
    """

    query: str
    functions: str
    settings: str
    types: str
    columns: str
    inputs: str
    project_folder: str

    def __str__(self) -> str:
        return ".".join(getattr(self, part) for part in _PARTS)


@dataclass(frozen=True, slots=True)
class DescribedPlan:
    """An evaluated plan as text.

    Attributes:
        tokens: of the plan.
        inputs: the columns that it reads, with their types.
        functions: texts of the functions in it.
        unread: what functions read while they run, and values without a text: a change there is not seen.
        project_folder: the project's folder, if it was in the texts: they do not have it.
    """

    tokens: tuple[str, ...]
    inputs: tuple[str, ...]
    functions: tuple[str, ...]
    unread: tuple[str, ...]
    project_folder: str

    def has_node(self, name: str) -> bool:
        """Whether the plan has an operator or an expression of this class."""
        return f"({name}" in self.tokens

    def common(self, other: DescribedPlan) -> DescribedPlan | None:
        """What two evaluations of a definition have in common: texts of constants that each made anew are
        empty. None if they have another form."""
        sizes = [(len(plan.tokens), len(plan.functions)) for plan in (self, other)]
        if sizes[0] != sizes[1]:
            return None
        tokens, functions = _common(self.tokens, other.tokens), _common(self.functions, other.functions)
        return DescribedPlan(tokens, self.inputs, functions, self.unread, self.project_folder)

    def with_former_names(self, former: Mapping[TableName, TableName]) -> DescribedPlan:
        """The plan as it was when some of the tables that it reads had these other names."""
        names = {(new.catalog, new.without_catalog): old.without_catalog for new, old in former.items()}
        # The text of a table is its catalog and, after that, its name.
        pairs = zip(("", *self.tokens), self.tokens, strict=False)
        return replace(self, tokens=tuple(names.get(pair, pair[1]) for pair in pairs))

    def is_same(self, other: DescribedPlan) -> bool:
        """Whether two evaluations gave the same query."""
        return (self.tokens, self.functions) == (other.tokens, other.functions)

    def may_be(self, other: DescribedPlan) -> bool:
        """Whether another evaluation has what this one, of `common`, says; one without tokens says
        nothing."""
        if not self.tokens:
            return True
        common = self.common(other)
        return common is not None and (common.tokens, common.functions) == (self.tokens, self.functions)


def described_flow(definitions: Definitions, flow: Flow, rows: DataFrame) -> DescribedPlan:
    """What a flow evaluated to, with what its expectations ask."""
    text = plan_text(rows.sparkSession, analyzed_plan(flow.with_flags(rows)), SECRET)
    return _described(text, definitions.folders, definitions.data_sources)


def _described(
    text: PlanText, folders: tuple[Path, ...], data_sources: Iterable[type[DataSource]]
) -> DescribedPlan:
    """A plan with the functions that Python runs in it.

    Args:
        text: of the plan.
        folders: of the project.
        data_sources: classes that the project registered.
    """
    folder = ProjectFolder(folders[0])
    objects = ObjectText(Libraries(folders), folder)
    tokens = tuple(map(folder.without_folder, text.tokens))
    functions = [_function_text(command, objects) for command in text.functions]
    functions += [objects.of(source) for source in data_sources if source.name() in text.sources]
    objects.opaque.update(text.opaque)
    return DescribedPlan(tokens, text.inputs, tuple(functions), _unread(objects), folder.path)


def _unread(objects: ObjectText) -> tuple[str, ...]:
    unread = [f"{name} in a function" for name in sorted(objects.reads)]
    unread += [f"a value of type {name}" for name in sorted(objects.opaque)]
    return tuple(unread)


@dataclass(frozen=True, slots=True)
class DescribedFunction:
    """A function that the driver calls as text; the rest as of `DescribedPlan`."""

    text: str
    unread: tuple[str, ...]
    project_folder: str


def described_function(
    definitions: Definitions, query: PythonQuery, session: SparkSession
) -> DescribedFunction:
    """The code of a query's function, with the values that it sees when it runs."""
    folder = ProjectFolder(definitions.folders[0])
    objects = ObjectText(Libraries(definitions.folders), folder)
    with evaluation_lock, query.bindings.bound(session):
        text = objects.of(query.function)
    return DescribedFunction(text, _unread(objects), folder.path)


def function_text(function: Callable[..., Any], folders: tuple[Path, ...]) -> str:
    """The text of a function that the driver calls."""
    return ObjectText(Libraries(folders), ProjectFolder(folders[0])).of(function)


def identity_of(
    plan: DescribedPlan,
    schema: StructType,
    declared: Sequence[Any],
    functions: Sequence[Any],
    settings: Sequence[Any],
) -> Identity:
    """The identity of a definition with these parts; all sequences are JSON values.

    Args:
        plan: what its evaluations have in common.
        schema: of its rows.
        declared: what it says besides the query.
        functions: that are not in the plan.
        settings: that may change its rows.
    """
    query = [token for token in plan.tokens if not token.startswith(DERIVED)]
    columns = [[field.name, field.dataType.simpleString(), field.nullable] for field in schema.fields]
    return Identity(
        query=_hash([query, schema.names, declared]),
        functions=_hash([*plan.functions, *functions]),
        settings=_hash(settings),
        types=_hash(plan.tokens),
        columns=_hash(columns),
        inputs=_hash(plan.inputs),
        project_folder=_hash([plan.project_folder]),
    )


def changed_parts(stored: str, current: str) -> list[str]:
    """Which parts of a definition differ: `query`, `functions`, `settings`, `inputs` for the types of the
    columns that it reads; `project_folder` if none of the first three. Empty if that cannot be told, as for a
    table whose flows are others.

    >>> changed_parts("1.2.3.4.5.6.7", "1.8.3.4.5.6.7")
    ['functions']
    """
    old, new = stored.split("."), current.split(".")
    if len(old) != len(_PARTS) or len(new) != len(_PARTS):
        return []
    differ = [name for name, before, after in zip(_PARTS, old, new, strict=True) if before != after]
    changed = [name for name in differ if name not in _DECIDED_BY_TYPES]
    if INPUTS not in differ and "query" not in differ and _DECIDED_BY_TYPES.intersection(differ):
        changed = ["query", *changed]
    if {"query", "functions", "settings"}.intersection(changed):
        return [name for name in changed if name != PROJECT_FOLDER]
    return changed


def has_same_columns(stored: str, current: str) -> bool:
    """Whether the results of two definitions have the same columns and types."""
    part = _PARTS.index(_COLUMNS)
    old, new = stored.split("."), current.split(".")
    return len(old) == len(new) == len(_PARTS) and old[part] == new[part]


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(text if text == other else "" for text, other in zip(first, second, strict=True))


def _hash(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def _function_text(command: PythonCommand, objects: ObjectText) -> str:
    try:
        for number, path in command.broadcasts:
            _broadcastRegistry[number] = Broadcast(path=path)
        value = pickle.loads(command.pickled)
        if isinstance(value, Broadcast):
            # PySpark sends large functions so.
            value = pickle.loads(value.value)
        return objects.of(value)
    except Exception as error:
        # The bytes differ in each process; its rows are compared instead.
        objects.opaque.add(f"a function that cannot be read ({type(error).__name__})")
        return "unreadable"
    finally:
        for number, _ in command.broadcasts:
            _broadcastRegistry.pop(number, None)
