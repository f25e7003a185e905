"""`docs/algebra.md` has every node of the algebra with its rule, and the formulas of the rules."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tautochrone.algebra import rules
from tautochrone.algebra.nodes import Constant, Node, Scan, query
from tautochrone.algebra.rules import RULES

from .reference import DOCS

PAGE = (DOCS / "algebra.md").read_text("utf-8")
RULE_FILES = sorted(Path(inspect.getfile(rules)).parent.glob("*.py"))
_ROW = re.compile(r"^\| `(\w+)`: [^|]+ \| (?:`(\w+)` in `([\w.]+)`|–) \|", re.M)


def test_every_node_of_a_query_has_its_row_and_rule() -> None:
    defined = [each for each in vars(query).values() if inspect.isclass(each) and issubclass(each, Node)]
    nodes = [Scan, Constant, *(node for node in defined if node.__module__ == query.__name__)]
    rows = {node: (rule, file) for node, rule, file in _ROW.findall(PAGE)}
    assert rows == {node.__name__: _rule_and_file(node) for node in nodes}


def _rule_and_file(node: type[Node]) -> tuple[str, str]:
    if node not in RULES:
        return "", ""
    rule = type(RULES[node])
    return rule.__name__, Path(inspect.getfile(rule)).name


def test_every_rule_that_is_named_exists() -> None:
    existing = {type(rule).__name__ for rule in RULES.values()}
    assert set(re.findall(r"\w+Rule\b", PAGE)) == existing


def test_formulas_are_those_of_the_rules() -> None:
    sources = "\n".join(file.read_text("utf-8") for file in RULE_FILES)
    blocks = "".join(re.findall(r"^```text\n(.+?)^```", PAGE, re.M | re.S))
    formulas = [*blocks.splitlines(), *re.findall(r"`(Δ[^`]+)`", PAGE)]
    assert len(formulas) > 15
    assert [formula for formula in formulas if formula not in sources] == []
