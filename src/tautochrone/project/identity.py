"""The identity of a definition: what it evaluates to, and the code that Python runs in it.

Two definitions are the same when their evaluated plans have the same text (`spark.analysis.plan_text`), when
the functions in these plans do the same (`object_text`), and when the settings agree that may change rows.
How a definition is written does not matter, nor where its query comes from.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.core.broadcast import Broadcast, _broadcastRegistry
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource

from tautochrone.project.definitions import Definitions, Flow
from tautochrone.project.libraries import Libraries
from tautochrone.project.object_text import ObjectText
from tautochrone.project.row_settings import SECRET
from tautochrone.spark.analysis.analyzed_plan import analyzed_plan
from tautochrone.spark.analysis.plan_text import PlanText, PythonCommand, plan_text

__all__ = ["DescribedPlan", "Identity", "changed_parts", "described_flow", "function_text", "identity_of"]

_PARTS = ("query", "functions", "settings")


@dataclass(frozen=True, slots=True)
class Identity:
    """Hashes of the parts of a definition. `str` is what is stored, and compared."""

    query: str
    functions: str
    settings: str

    def __str__(self) -> str:
        return f"{self.query}.{self.functions}.{self.settings}"


@dataclass(frozen=True, slots=True)
class DescribedPlan:
    """An evaluated plan as text.

    Attributes:
        tokens: of the plan.
        functions: texts of the functions in it.
        unread: what functions read while they run, and values without a text: a change there is not seen.
    """

    tokens: tuple[str, ...]
    functions: tuple[str, ...]
    unread: tuple[str, ...]

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
        return DescribedPlan(tokens, functions, self.unread)

    def may_be(self, other: DescribedPlan) -> bool:
        """Whether another evaluation has what this one, of `common`, says."""
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
    objects = ObjectText(Libraries(folders))
    functions = [_function_text(command, objects) for command in text.functions]
    functions += [objects.of(source) for source in data_sources if source.name() in text.sources]
    unread = [f"{name} in a function" for name in sorted(objects.reads)]
    unread += [f"a value of type {name}" for name in sorted({*objects.opaque, *text.opaque})]
    return DescribedPlan(text.tokens, tuple(functions), tuple(unread))


def function_text(function: Callable[..., Any], folders: tuple[Path, ...]) -> str:
    """The text of a function that the driver calls."""
    return ObjectText(Libraries(folders)).of(function)


def identity_of(query: Sequence[Any], functions: Sequence[Any], settings: Sequence[Any]) -> Identity:
    """The identity of a definition with these parts; all are JSON values."""
    return Identity(_hash(query), _hash(functions), _hash(settings))


def changed_parts(stored: str, current: str) -> list[str]:
    """Which parts of a definition differ: `query`, `functions`, `settings`. Empty if that cannot be told, as
    for a table whose flows are others.

    >>> changed_parts("1.2.3", "1.4.3")
    ['functions']
    """
    old, new = stored.split("."), current.split(".")
    if len(old) != len(_PARTS) or len(new) != len(_PARTS):
        return []
    return [name for name, before, after in zip(_PARTS, old, new, strict=True) if before != after]


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
        objects.opaque.add(f"a function that cannot be read ({type(error).__name__})")
        return hashlib.sha256(command.pickled).hexdigest()
    finally:
        for number, _ in command.broadcasts:
            _broadcastRegistry.pop(number, None)
