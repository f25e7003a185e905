"""Reads all definition files of a project, like `spark-pipelines`, and adds the quarantine tables.

No file declares quarantine tables: they follow from the settings of flows.
"""

from __future__ import annotations
import __future__

import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from pyspark.errors import PySparkException
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.sql import SparkSession

from tautochrone.errors import DefinitionError, all_at_once
from tautochrone.model.definitions import Dataset, DatasetKind, OtherCatalogs, SourceLocation
from tautochrone.model.names import TableName
from tautochrone.model.source import QUARANTINE_SCHEMA, BadRecords, quarantine_of
from tautochrone.project.auto_cdc import event_quarantine_name, event_table_name
from tautochrone.project.databricks.ipynb import Notebook, parse_notebook
from tautochrone.project.databricks.notebooks import (
    Dbutils,
    is_written_for_databricks,
    magic_warnings,
    magic_warnings_of,
    runs_as_main,
)
from tautochrone.project.definitions import Definitions, Flow
from tautochrone.project.explain_failure import explain
from tautochrone.project.invariant_files import read_invariants
from tautochrone.project.libraries import Libraries
from tautochrone.project.queries import Project
from tautochrone.project.registry import Registry
from tautochrone.project.session_settings import needed_at_start
from tautochrone.project.settings import BadRecordsSetting
from tautochrone.project.spec import PipelineSpec
from tautochrone.project.sqltext import ForeignNames, NameScope, split_name
from tautochrone.project.usercode import evaluation_lock, forget_imports, user_code
from tautochrone.project.validate import validate
from tautochrone.spark.analysis.session_context import use_session, with_parameters
from tautochrone.spark.jvm.driver_calls import settings_of

__all__ = ["load_definitions", "settings_to_evaluate_with", "with_quarantines"]


_CATALOG_SETTING = "spark.sql.catalog."


def load_definitions(
    spec: PipelineSpec,
    session: SparkSession,
    catalog: str = "lake",
    other_catalogs: OtherCatalogs = OtherCatalogs.MAP,
    confs: Iterable[str] = (),
) -> Definitions:
    """Import the project's Python files and read its SQL files; evaluate no query yet.

    Args:
        spec: the pipeline.
        session: the session of `spark` and `SparkSession.active()` while files are imported.
        catalog: the name of the lake catalog in Spark. `spark_catalog` is an alias.
        other_catalogs: what names mean that begin with a catalog which no setting defines.
        confs: names of Spark settings that define catalogs, besides those of the session.

    Raises:
        DefinitionError: a file cannot be read, two definitions contradict each other, an invariant is no
            query.
    """
    configured = frozenset(
        key.removeprefix(_CATALOG_SETTING) for key in (*settings_of(session), *confs) if _is_catalog(key)
    )
    scope = _scope(spec, catalog, configured, other_catalogs, partial(with_parameters, session))
    # Symbolic links are resolved, as Spark does: tracebacks have the real path of imported files.
    root = spec.root.resolve()
    files = _files(root, spec.libraries)
    folders = [root, *(file.parent for file in files if file.suffix in (".py", ".ipynb"))]
    project = Project(root, tuple(dict.fromkeys(folders)))
    forget_imports(Libraries((root, *project.imports)))
    registry = Registry(session, project, scope, spec.configuration)
    texts = [_code_of(file, project) for file in files]
    registry.settings_ignored(spec.configuration, "configuration", SourceLocation(project.shown(spec.path)))
    registry.for_databricks = any(
        file.suffix == ".ipynb" or is_written_for_databricks(text)
        for file, text in zip(files, texts, strict=True)
    )
    _register(files, registry, project, scope, session, spec)
    registry.finish()
    definitions = Definitions(
        spec=spec,
        scope=scope,
        datasets=registry.datasets,
        flows=tuple(registry.flows),
        sinks=registry.sinks,
        warnings=tuple(registry.warnings),
        folders=(root, *project.imports),
        data_sources=project.data_sources,
        invariants=read_invariants(root, project, scope, dict(spec.configuration), session),
    )
    validate(
        definitions,
        len(files),
        main_files=[file.name for file, text in zip(files, texts, strict=True) if runs_as_main(text)],
    )
    return definitions


def _scope(
    spec: PipelineSpec,
    catalog: str,
    configured: frozenset[str],
    other_catalogs: OtherCatalogs,
    substitute: Callable[[str], str],
) -> NameScope:
    """What names mean outside of `USE`.

    Raises:
        DefinitionError: `CATALOG_NOT_FOUND`, the spec names another catalog than the lake's.
    """
    scope = NameScope(
        catalog,
        split_name(spec.database or "default"),
        configured=configured,
        other_catalogs=other_catalogs,
        foreign=ForeignNames(spec.name, substitute),
    )
    if spec.catalog is not None and not scope.is_ours(spec.catalog):
        raise DefinitionError(
            "CATALOG_NOT_FOUND",
            f"The spec's catalog `{spec.catalog}` is not the lake catalog `{catalog}`",
            sqlstate="42P08",
            location=str(spec.path),
            hint="Let `catalog` below [lake] and in the spec be the same, or set only one of them.",
        )
    return scope


def _register(
    files: Sequence[Path],
    registry: Registry,
    project: Project,
    scope: NameScope,
    session: SparkSession,
    spec: PipelineSpec,
) -> None:
    """Run the Python files and read the SQL files: what they define is in the registry afterwards.

    Raises:
        DefinitionError: of all files that cannot be read.
    """
    known = set(sys.modules)
    try:
        with (
            evaluation_lock,
            # Files read their parameters with spark.conf.get while they are imported.
            use_session(session, None, None, spec.configuration),
            graph_element_registration_context(registry),
        ):
            errors: list[DefinitionError] = []
            for file in files:
                try:
                    if file.suffix == ".ipynb":
                        _run_notebook(file, registry, project, scope, session)
                        continue
                    registry.warnings += magic_warnings(file, project.shown(file))
                    if file.suffix == ".py":
                        _import(file, registry, project, scope, session)
                    else:
                        registry.register_sql(file.read_text(encoding="utf-8"), Path(project.shown(file)))
                except DefinitionError as error:
                    errors.append(error)
            if errors:
                raise all_at_once(errors)
    except PySparkException as error:
        raise explain(error, lambda _, __: None, SourceLocation(project.shown(spec.path))) from error
    finally:
        registry.modules.extend(_remove_modules(set(sys.modules) - known, project))


def settings_to_evaluate_with(base: SparkSession, configuration: Mapping[str, str]) -> dict[str, str]:
    """The settings for evaluating definitions, without those that `base` was started with and that a session
    does not take: Spark's own outside of `spark.sql.`, such as `spark.executor.memory`, and removed ones."""
    scratch: SparkSession | None = None
    settings: dict[str, str] = {}
    for name, text in configuration.items():
        started_with = base.conf.get(name, None)
        if started_with == text or (needed_at_start(name) and started_with is not None):
            scratch = scratch or base.newSession()
            try:
                scratch.conf.set(name, text)
            except PySparkException:
                continue
        settings[name] = text
    return settings


def _files(root: Path, libraries: tuple[str, ...]) -> list[Path]:
    matches: dict[Path, None] = {}
    for pattern in libraries:
        path = Path(pattern)
        base, relative = (root, pattern) if not path.is_absolute() else (Path(path.anchor), pattern[1:])
        for match in sorted(base.glob(relative)):
            if match.is_file() and "__pycache__" not in match.parts:
                matches[match.resolve()] = None
    for file in matches:
        if file.suffix not in (".py", ".sql", ".ipynb"):
            raise DefinitionError(
                "PIPELINE_UNSUPPORTED_DEFINITIONS_FILE_EXTENSION",
                f"Pipeline definitions file `{file.name}` has an unsupported extension. "
                "Supported extensions are `.py`, `.sql` and `.ipynb`.",
                location=str(file.relative_to(root) if file.is_relative_to(root) else file),
                hint="Move the file out of the folder that `libraries` names.",
            )
    return list(matches)


def _notebook(file: Path, project: Project) -> Notebook:
    return parse_notebook(file.read_text(encoding="utf-8", errors="replace"), project.shown(file))


def _code_of(file: Path, project: Project) -> str:
    """The text of a definition file, of a notebook that of its cells."""
    if file.suffix == ".ipynb":
        return "\n".join(cell.code for cell in _notebook(file, project).cells)
    return file.read_text(encoding="utf-8", errors="replace")


def _run_notebook(
    file: Path, registry: Registry, project: Project, scope: NameScope, session: SparkSession
) -> None:
    """Run the cells of a notebook in their order, in one module that cannot be imported.

    Raises:
        DefinitionError: of the first cell that fails, or `NOTEBOOK_UNREADABLE`.
    """
    notebook = _notebook(file, project)
    shown = project.shown(file)
    registry.warnings += magic_warnings_of(notebook, shown)
    if notebook.language == "sql":
        registry.register_cells((cell.code, f"{shown}#{cell.number}") for cell in notebook.cells)
        return
    module = ModuleType("__main__")
    vars(module).update({"__file__": str(file), "spark": session, "dbutils": Dbutils(session)})
    registry.module = vars(module)
    flags = 0
    for cell in notebook.cells:
        name = f"{file}#{cell.number}"
        # Tracebacks and `inspect` find the lines of a cell here: no file has its name.
        linecache.cache[name] = (len(cell.code), None, cell.code.splitlines(keepends=True), name)
        try:
            with user_code(
                project.root, project.imports, scope.rewrite, project.data_sources, in_query=False
            ):
                code = compile(cell.code, name, "exec", flags, dont_inherit=True)
                # As in IPython, a cell's import from `__future__` is valid in later ones, too.
                flags |= code.co_flags & __future__.annotations.compiler_flag
                exec(code, vars(module))
        except Exception as error:
            location = SourceLocation(f"{shown}#{cell.number}")
            raise explain(error, project.position_of, location) from error


def _import(
    file: Path, registry: Registry, project: Project, scope: NameScope, session: SparkSession
) -> None:
    """Run one definition file as a module that cannot be imported, as Spark does.

    A notebook of Databricks is the main program.
    """
    location = SourceLocation(project.shown(file))
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        for_databricks = is_written_for_databricks(text)
        is_main = for_databricks and runs_as_main(text)
        name = "__main__" if is_main else file.stem
        module_spec = importlib.util.spec_from_file_location(name, str(file))
        assert module_spec is not None
        loader = module_spec.loader
        assert isinstance(loader, SourceFileLoader)
        module = importlib.util.module_from_spec(module_spec)
        vars(module)["spark"] = session
        if for_databricks:
            vars(module)["dbutils"] = Dbutils(session)
        registry.module = vars(module)
        with user_code(project.root, project.imports, scope.rewrite, project.data_sources, in_query=False):
            # Not `exec_module`: Python's cached bytecode hides a change within a second that keeps the size.
            exec(loader.source_to_code(loader.get_data(str(file)), str(file)), vars(module))
    except Exception as error:
        raise explain(error, project.position_of, location) from error


def _remove_modules(names: set[str], project: Project) -> list[ModuleType]:
    """Remove the project's own modules from `sys.modules`, and return them.

    Two pipelines may both have a module `helpers`. And functions of a module that cannot be imported are
    pickled by value, so that Python workers, which know nothing of the project's folder, can run them.
    """
    forgotten: list[ModuleType] = []
    for name in sorted(names):
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        path = Path(file) if file else None
        if path is None or "site-packages" in path.parts:
            continue
        if any(path.is_relative_to(folder) for folder in project.imports):
            forgotten.append(sys.modules.pop(name))
    return forgotten


def _is_catalog(key: str) -> bool:
    """Whether a setting defines a catalog; its options have one part more."""
    return key.startswith(_CATALOG_SETTING) and "." not in key.removeprefix(_CATALOG_SETTING)


def with_quarantines(definitions: Definitions, settings: Mapping[str, BadRecordsSetting]) -> Definitions:
    """The definitions, with a quarantine table for each streaming table with a flow that quarantines.

    Each AUTO CDC flow has its own, for the table of its events.

    Raises:
        DefinitionError: `QUARANTINE_NAME_TAKEN`, a dataset of the project has its name.
    """
    quarantining_flows = {
        flow for flow, flow_settings in settings.items() if flow_settings.policy is BadRecords.QUARANTINE
    }
    quarantine_tables: dict[TableName, Dataset] = {}
    for flow in definitions.flows:
        target = definitions.datasets.get(flow.target)
        if flow.name in quarantining_flows and target and target.kind is DatasetKind.STREAMING_TABLE:
            table = _quarantine_table(target, flow)
            taken = definitions.datasets.get(table.name) or quarantine_tables.get(table.name)
            if taken is not None and taken.bad_records_of != table.bad_records_of:
                raise DefinitionError(
                    "QUARANTINE_NAME_TAKEN",
                    f"The bad records of {table.bad_records_of} go into {table.name}, and a dataset is "
                    "called so",
                    location=str(taken.location),
                    hint="rename that dataset, or the flow",
                    sqlstate="42P07",
                )
            quarantine_tables[table.name] = table
    flows = tuple(
        replace(flow, sets_aside=True) if flow.name in quarantining_flows and flow.auto_cdc else flow
        for flow in definitions.flows
    )
    datasets = {**definitions.datasets, **quarantine_tables}
    return replace(definitions, datasets=datasets, flows=flows) if quarantine_tables else definitions


def _quarantine_table(target: Dataset, flow: Flow) -> Dataset:
    is_merged = flow.auto_cdc is not None
    return Dataset(
        name=event_quarantine_name(flow) if is_merged else quarantine_of(target.name),
        kind=DatasetKind.STREAMING_TABLE,
        location=target.location,
        comment=f"Records on which the flows into {target.name.table} failed",
        schema_ddl=QUARANTINE_SCHEMA,
        bad_records_of=event_table_name(flow) if is_merged else target.name,
    )
