"""`taut test`."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tautochrone.cli.options import options_of
from tautochrone.cli.output import answer, json_line
from tautochrone.errors import DefinitionError, QueryError, SettingsError
from tautochrone.model.near_names import near_names_hint
from tautochrone.model.reason import reason_fields

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from tautochrone.app.open import Project
    from tautochrone.model.names import TableName
    from tautochrone.project.graph import Graph
    from tautochrone.project.settings import Settings
    from tautochrone.project.spec import PipelineSpec
    from tautochrone.project.unit_test_files import UnitTest
    from tautochrone.runtime.unit_tests.differences import Difference, RowDifference
    from tautochrone.runtime.unit_tests.runner import TestResult

__all__ = ["unit_tests"]

_EXIT_FAILED = 1
_LEASE_MS = 3_600_000
"""A large table may take long. The pin is released at the end."""


def unit_tests(arguments: argparse.Namespace) -> int:
    """Run the unit tests of the project: 1 if one fails. Or write a test of rows of a checkpoint.

    Raises:
        SettingsError: `CONFLICTING_OPTIONS`.
    """
    _check_options(arguments)
    if arguments.record is not None:
        return _record(arguments)
    from tautochrone.app.locate import locate

    options = options_of(arguments)
    spec, settings = locate(options)
    # What is wrong with the files is said before Spark starts.
    tests = _chosen(spec, settings, arguments.names)
    if not tests:
        sys.stderr.write("no unit tests: write some below unit_tests in a YAML file of the project\n")
        if arguments.junit is not None:
            _write_junit(Path(arguments.junit), [])
        return 0
    from tautochrone.app.launch import launch

    launch(settings, short_lived=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.runtime.unit_tests.runner import Outcome, UnitTests

    results: list[TestResult] = []
    with Project(options, log_event, short_lived=True, located=(spec, settings)) as project:
        _, graph = project.analysed()
        for result in UnitTests(graph, project.base, settings.catalog.name).run(tests):
            results.append(result)
            if arguments.json:
                json_line(_as_json(result))
            else:
                _show(result)
    if arguments.junit is not None:
        _write_junit(Path(arguments.junit), results)
    if not arguments.json:
        counts = Counter(str(result.outcome) for result in results)
        answer().write(", ".join(f"{counts[str(o)]} {o}" for o in Outcome if counts[str(o)]) + "\n")
    return 0 if all(result.outcome is Outcome.PASSED for result in results) else _EXIT_FAILED


def _check_options(arguments: argparse.Namespace) -> None:
    of_record = arguments.where or arguments.output or arguments.checkpoint is not None
    if arguments.record is None and of_record:
        raise SettingsError("CONFLICTING_OPTIONS", "--where, --checkpoint and --output need --record")
    if arguments.record is not None and (arguments.names or arguments.junit or arguments.json):
        raise SettingsError(
            "CONFLICTING_OPTIONS", "--record takes no names of tests, no --junit and no --json"
        )


def _record(arguments: argparse.Namespace) -> int:
    """Write a test that passes, on stdout or into a file."""
    from tautochrone.app.launch import locate_and_launch

    options = options_of(arguments)
    located = locate_and_launch(options, reads_store=True)
    from tautochrone.app.open import Project, log_event
    from tautochrone.runtime.job.topology import find_all

    with Project(options, log_event, short_lived=True, located=located) as project:
        definitions, graph = project.analysed()
        (model,) = find_all(definitions, [arguments.record])
        text = _recorded(arguments, project, graph, model)
    if arguments.output is None:
        answer().write(text)
    else:
        _write(Path(arguments.output), text)
    return 0


def _recorded(arguments: argparse.Namespace, project: Project, graph: Graph, model: TableName) -> str:
    """A test of rows of a checkpoint, which is pinned while they are read."""
    from tautochrone.model.checkpoint import Consistency
    from tautochrone.runtime.refresh.sessions import session_at
    from tautochrone.runtime.unit_tests.recording import Condition, RecordedCheckpoint, record

    store, tables = project.store(), graph.inputs(model).tables
    pinned = store.reads.resolve(
        Consistency.STRONG, tables, arguments.checkpoint, owner="test", lease_ms=_LEASE_MS, only_named=True
    )
    number = pinned.checkpoint
    assert number is not None
    try:
        session = session_at(
            project.base,
            project.open_read_point_server(store),
            f"checkpoint-{number}",
            model.catalog,
            graph.definitions.scope.namespace[0],
            graph.flows_of(model)[0].flow.conf,
        )
        versions, times = store.checkpoints.versions_at(number), store.checkpoints.cut_times([number])
        checkpoint = RecordedCheckpoint(number, versions, times[number])
        conditions = [Condition.parse(condition) for condition in arguments.where]
        return record(graph, project.base, session, model, checkpoint, conditions, limit=arguments.rows)
    finally:
        store.pins.release(pinned.pin)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file that is there may hold other tests.
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise QueryError(
            "OUTPUT_NOT_WRITABLE", f"The file {path} cannot be written: {error.strerror}"
        ) from error


def _chosen(spec: PipelineSpec, settings: Settings, names: Sequence[str]) -> list[UnitTest]:
    """The tests of some models, or with some names; all when nothing is named.

    Raises:
        DefinitionError: `UNIT_TEST_NOT_FOUND`, and what is wrong with the files.
    """

    from tautochrone.project.unit_test_files import read_unit_tests

    tests = read_unit_tests(spec.root, (Path(settings.storage), Path(spec.storage_path)))
    chosen: list[UnitTest] = []
    for name in names:
        matching = [test for test in tests if name.lower() in _names(test)]
        if not matching:
            models = {str(test.model): test.model.parts[-1] for test in tests}
            known = {*models, *(test.name for test in tests)}
            raise DefinitionError(
                "UNIT_TEST_NOT_FOUND",
                f"No unit test is called {name}, or is of a model of this name",
                sqlstate="42704",
                hint=near_names_hint(
                    name,
                    known,
                    "tests and models:",
                    spellings=partial(_spellings, models),
                ),
            )
        chosen += [test for test in matching if test not in chosen]
    return chosen if names else list(tests)


def _spellings(models: Mapping[str, str], name: str) -> tuple[str, str]:
    """How the name of a test or of a model may be written; `models`: of each its last part."""
    return name, models.get(name, name)


def _names(test: UnitTest) -> set[str]:
    return {test.name.lower(), str(test.model).lower(), test.model.parts[-1].lower()}


# -- what people read ------------------------------------------------------------------------------------


def _show(result: TestResult) -> None:
    test, out = result.test, answer()
    out.write(
        f"{result.outcome.upper():<6}  {test.model}  {test.name}  ({result.duration_ms / 1000:.2f} s)\n"
    )
    for text in _details(result):
        out.write(f"  {text}\n")
    out.flush()


def _details(result: TestResult) -> list[str]:
    """What is wrong, line by line, and the notes."""
    lines = []
    if result.error is not None:
        lines += result.error.render().splitlines()
    for checked in result.checks:
        if checked.difference:
            count = len(checked.difference.rows)
            lines.append(
                f"{checked.check}: {count} differ{'s' if count == 1 else ''}, "
                f"{checked.difference.matching} as expected ({result.test.location})"
            )
            lines += [f"  {line}" for line in difference_lines(checked.difference)]
    lines += [f"note: {note}" for note in result.notes]
    return lines


_SIGNS = {"missing": "-", "unexpected": "+", "changed": "~"}


def difference_lines(difference: Difference) -> list[str]:
    """A table of the rows that differ: `-` is missing, `+` is unexpected. Of a row that changed, `~`, the
    cells that differ are in brackets, the expected value first."""
    table = [["", *difference.columns]]
    table += [[_SIGNS[row.state], *_cells(difference, row)] for row in difference.rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]


def _cells(difference: Difference, row: RowDifference) -> list[str]:
    cells = []
    for number, name in enumerate(difference.columns):
        expected, actual = (
            None if side is None else _text(side[number]) for side in (row.expected, row.actual)
        )
        if name in row.columns:
            cells.append(f"[{expected} → {actual}]")
        else:
            cells.append(str(actual if expected is None else expected))
    return cells


def _text(value: Any) -> str:
    from tautochrone.runtime.unit_tests.differences import plain_value

    plain = plain_value(value)
    if plain is None:
        return "NULL"
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False, default=str)
    if isinstance(plain, bool):
        return str(plain).lower()
    # A text that is empty, or begins or ends with a space, would not be seen.
    is_hidden = (isinstance(plain, str) and plain.strip() != plain) or plain in ("", "NULL")
    return (repr(plain) if is_hidden else str(plain)).replace("\n", "\\n")


# -- what programs read ----------------------------------------------------------------------------------


def _as_json(result: TestResult) -> dict[str, Any]:
    test = result.test
    errors = [] if result.error is None else [result.error, *result.error.others]
    return {
        "test": test.name,
        "model": str(test.model),
        "location": str(test.location),
        "outcome": str(result.outcome),
        "duration_ms": result.duration_ms,
        "checks": [
            {
                "check": checked.check.name.lower(),
                "matching": checked.difference.matching,
                "differences": [_row_json(checked.difference, row) for row in checked.difference.rows],
            }
            for checked in result.checks
        ],
        "notes": [reason_fields("reason", note) for note in result.notes],
        "errors": [
            {
                "error_class": error.error_class,
                "message": error.message,
                "location": error.location,
                "hint": error.hint,
            }
            for error in errors
        ],
    }


def _row_json(difference: Difference, row: RowDifference) -> dict[str, Any]:
    from tautochrone.runtime.unit_tests.differences import plain_value

    def named(values: Sequence[Any] | None) -> dict[str, Any] | None:
        if values is None:
            return None
        return dict(zip(difference.columns, map(plain_value, values), strict=True))

    return {
        "state": str(row.state),
        "expected": named(row.expected),
        "actual": named(row.actual),
        "columns": list(row.columns),
    }


def _write_junit(path: Path, results: Sequence[TestResult]) -> None:
    """Write the results as JUnit XML: one suite per model.

    Raises:
        QueryError: `OUTPUT_NOT_WRITABLE`.
    """
    import xml.etree.ElementTree as ET

    root = ET.Element("testsuites", _counts(results))
    by_model: dict[str, list[TestResult]] = {}
    for result in results:
        by_model.setdefault(str(result.test.model), []).append(result)
    for model, of_model in by_model.items():
        suite = ET.SubElement(root, "testsuite", {"name": model, **_counts(of_model)})
        for result in of_model:
            suite.append(_junit_case(result))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise QueryError(
            "OUTPUT_NOT_WRITABLE", f"The file {path} cannot be written: {error.strerror}"
        ) from error


def _junit_case(result: TestResult) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    from tautochrone.runtime.unit_tests.runner import Outcome

    file, _, line = str(result.test.location).rpartition(":")
    attributes = {"classname": str(result.test.model), "name": result.test.name, "file": file, "line": line}
    case = Element("testcase", {**attributes, "time": f"{result.duration_ms / 1000:.3f}"})
    details = _xml_text("\n".join(_details(result)))
    if result.outcome is Outcome.ERROR and result.error is not None:
        attributes = {"type": result.error.error_class, "message": _xml_text(result.error.message)}
        SubElement(case, "error", attributes).text = details
    elif result.outcome is Outcome.FAILED:
        checks = ", ".join(str(checked.check) for checked in result.checks if checked.difference)
        SubElement(case, "failure", {"message": f"other {checks}"}).text = details
    return case


def _counts(results: Sequence[TestResult]) -> dict[str, str]:
    outcomes = Counter(str(result.outcome) for result in results)
    return {
        "tests": str(len(results)),
        "failures": str(outcomes["failed"]),
        "errors": str(outcomes["error"]),
        "time": f"{sum(result.duration_ms for result in results) / 1000:.3f}",
    }


def _xml_text(text: str) -> str:
    """The text without signs that XML cannot hold."""
    return "".join(sign for sign in text if sign in "\t\n\r" or ord(sign) >= 32)
