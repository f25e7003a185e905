"""The refresh policy of a view: its table property, else the project's setting."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tautochrone.errors import DefinitionError
from tautochrone.model.definitions import Dataset, DatasetKind
from tautochrone.model.refresh import RefreshPolicy

__all__ = ["POLICY_HINT", "POLICY_PROPERTY", "check_policies", "is_misspelt", "parse_policy", "policy_of"]

POLICY_PROPERTY = "tautochrone.refresh-policy"
POLICY_HINT = f"policies are {', '.join(RefreshPolicy)}"


def parse_policy(text: str) -> RefreshPolicy:
    """A policy by its name; case does not matter.

    Raises:
        ValueError: there is no such policy.
    """
    return RefreshPolicy(text.strip().lower())


def policy_of(dataset: Dataset, default: RefreshPolicy) -> RefreshPolicy:
    """The policy of a dataset that `check_policies` has validated."""
    text = dataset.properties.get(POLICY_PROPERTY)
    return default if text is None else parse_policy(text)


def is_misspelt(key: str, name: str) -> bool:
    """Whether a property is a misspelling of `name`, one of ours, and would be ignored silently."""
    ours = key.startswith("tautochrone.") and key != name
    return ours and bool(difflib.get_close_matches(key.lower(), [name], cutoff=0.85))


def check_policies(datasets: Iterable[Dataset]) -> None:
    """Refuse what would be ignored silently: wrong values, wrong kinds of datasets, misspelt properties.

    Raises:
        DefinitionError: `INVALID_REFRESH_POLICY`, with `file:line`.
    """
    for dataset in datasets:
        for key, value in dataset.properties.items():
            if is_misspelt(key, POLICY_PROPERTY):
                raise _invalid(dataset, f"has a property '{key}'", f"Did you mean '{POLICY_PROPERTY}'?")
            if key != POLICY_PROPERTY:
                continue
            if dataset.kind is not DatasetKind.MATERIALIZED_VIEW and not dataset.is_kind_by_query:
                problem = f"is a {dataset.kind} and has no '{POLICY_PROPERTY}'"
                raise _invalid(dataset, problem, "Only materialized views are refreshed.")
            try:
                parse_policy(value)
            except ValueError as error:
                problem = f"has '{POLICY_PROPERTY}' = '{value}', which is no policy"
                raise _invalid(dataset, problem, POLICY_HINT) from error


def _invalid(dataset: Dataset, problem: str, hint: str) -> DefinitionError:
    return DefinitionError(
        "INVALID_REFRESH_POLICY",
        f"Dataset {dataset.name} {problem}",
        location=str(dataset.location),
        hint=hint,
    )
