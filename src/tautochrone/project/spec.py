"""The pipeline spec file: finds it, reads it, and refuses what SDP refuses, with SDP's classes.

Unknown fields are refused because Spark refuses them; our own settings are in other files.

`taut init` writes a sample project: a streaming table with a source, and a view over it. It has the layout
of `spark-pipelines init`, and runs there when `storage` is changed to a `file:` URI; here it is relative, so
that a copy of the project does not use the original's storage. Spark's own sample has no source, so its
second run could not show an incremental refresh.
"""

from __future__ import annotations

import difflib
import glob
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import yaml

from tautochrone.errors import SpecError

__all__ = ["INVARIANTS_FOLDER", "PipelineSpec", "find_spec", "init_project", "load_spec"]


INVARIANTS_FOLDER = "invariants"
"""Next to the spec: each SQL file in it is an invariant."""
_FILE_NAMES = ("spark-pipeline.yaml", "spark-pipeline.yml")
_LOCAL_FOLDER = ".tautochrone"
"""In the project, for logs, when the storage is on another file system."""
_FIELDS = frozenset({"name", "storage", "catalog", "database", "schema", "configuration", "libraries"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """A pipeline spec as written.

    `storage` is the text in the file; `storage_path` the same as an absolute local path, or the folder
    `.tautochrone` of the project if the storage is on another file system; `storage_root` what streaming
    checkpoints are below: the local path, or the URI. `libraries` are globs, ready for `Path.glob` below
    `root`. `target` is the chosen target of `tautochrone.toml`, which may have a storage of its own; `base`
    is the spec without it.
    """

    path: Path
    name: str
    storage: str
    storage_path: str
    storage_root: str
    catalog: str | None = None
    database: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
    target: str | None = None
    storage_origin: str | None = field(default=None, repr=False, compare=False)
    base: PipelineSpec | None = field(default=None, repr=False, compare=False)

    def origin_of(self, key: str) -> str:
        """`spark-pipeline.yml:7`: where a field, or a setting below `configuration`, is."""
        if key == "storage" and self.storage_origin is not None:
            return self.storage_origin
        return f"{self.path.name}:{self.lines[key]}" if key in self.lines else self.path.name

    @property
    def root(self) -> Path:
        """The folder of the spec file: globs and relative paths start here."""
        return self.path.parent

    def at_target(self, target: str, storage: str | None, origin: str) -> PipelineSpec:
        """The same pipeline in a target of its project.

        Args:
            target: its name.
            storage: its storage as the target writes it; None: the spec's.
            origin: where that is written.

        Raises:
            SpecError: `PIPELINE_STORAGE_ROOT_NOT_SUPPORTED`.
        """
        if storage is None:
            return replace(self, target=target, base=self)
        local_folder = f"{_LOCAL_FOLDER}-{target}"
        storage_path, storage_root = _folders_of_storage(self.root, storage, origin, local_folder)
        return replace(
            self,
            target=target,
            storage=storage,
            storage_path=storage_path,
            storage_root=storage_root,
            storage_origin=origin,
            base=self,
        )


@cache
def _messages() -> dict[str, Any]:
    text = files("pyspark.errors").joinpath("error-conditions.json").read_text(encoding="utf-8")
    conditions: dict[str, Any] = json.loads(text)
    return conditions


def _refuse(error_class: str, location: str | None, *, hint: str | None = None, **values: str) -> NoReturn:
    """Raise Spark's own class with Spark's own sentence."""
    message = " ".join(_messages()[error_class]["message"])
    for key, value in values.items():
        message = message.replace(f"<{key}>", value)
    raise SpecError(error_class, message, location=location, hint=hint, parameters=values)


def find_spec(start: Path) -> Path:
    """Search `start` and its parents for `spark-pipeline.yml` or `spark-pipeline.yaml`.

    Raises:
        SpecError: none found (PIPELINE_SPEC_FILE_NOT_FOUND), or both in one folder
            (MULTIPLE_PIPELINE_SPEC_FILES_FOUND).
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        try:
            candidates = [folder / name for name in _FILE_NAMES if (folder / name).is_file()]
        except PermissionError:
            break
        if len(candidates) > 1:
            _refuse("MULTIPLE_PIPELINE_SPEC_FILES_FOUND", str(folder), dir_path=str(folder))
        if candidates:
            return candidates[0]
    _refuse(
        "PIPELINE_SPEC_FILE_NOT_FOUND",
        None,
        hint="Run inside a project, name its file with --spec, or make a project with `taut init`.",
        dir_path=str(start),
    )


def load_spec(path: Path) -> PipelineSpec:
    """Read a spec file under any name.

    Raises:
        SpecError: the file is missing, is no YAML (PIPELINE_SPEC_INVALID_YAML), or has content
            that SDP does not allow. `location` is `file:line`.
    """
    if not path.is_file():
        _refuse("PIPELINE_SPEC_FILE_DOES_NOT_EXIST", None, spec_path=str(path))
    try:
        text = path.read_text(encoding="utf-8")
        data = yaml.safe_load(text)
        lines = _lines(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        location = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise SpecError(
            "PIPELINE_SPEC_INVALID_YAML", f"Not valid YAML: {problem}", location=location
        ) from error
    return _Reader(path, lines).read({} if data is None else data)


def _lines(text: str) -> dict[str, int]:
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        return {}
    lines = {str(key.value): key.start_mark.line + 1 for key, _ in node.value}
    for field_name, content in node.value:
        if field_name.value == "configuration" and isinstance(content, yaml.MappingNode):
            lines |= {str(key.value): key.start_mark.line + 1 for key, _ in content.value}
    return lines


class _Reader:
    """Checks one parsed spec; knows the line of every top-level field and of every Spark setting."""

    def __init__(self, path: Path, lines: Mapping[str, int]) -> None:
        self._path = path.absolute()
        self._lines = lines
        self._shown = str(path)

    def _location(self, key: str) -> str:
        return f"{self._shown}:{self._lines[key]}" if key in self._lines else self._shown

    def _wrong(self, key: str, message: str) -> NoReturn:
        raise SpecError("PIPELINE_SPEC_INVALID_FIELD", message, location=self._location(key))

    def read(self, data: Any) -> PipelineSpec:
        if not isinstance(data, dict):
            raise SpecError(
                "PIPELINE_SPEC_INVALID_YAML", "The spec must be a mapping of fields", location=self._shown
            )
        for key in data:
            if key not in _FIELDS:
                near = difflib.get_close_matches(str(key), sorted(_FIELDS), n=1)
                _refuse(
                    "PIPELINE_SPEC_UNEXPECTED_FIELD",
                    self._location(str(key)),
                    field_name=str(key),
                    hint=f"did you mean {near[0]}?"
                    if near
                    else "Settings of Tautochrone belong into tautochrone.toml beside the spec.",
                )
        for key in ("name", "storage"):
            if data.get(key) is None:
                _refuse("PIPELINE_SPEC_MISSING_REQUIRED_FIELD", self._shown, field_name=key)
        storage = self._text(data, "storage")
        storage_path, storage_root = _folders_of_storage(
            self._path.parent, storage, self._location("storage")
        )
        return PipelineSpec(
            path=self._path,
            name=str(data["name"]),
            storage=storage,
            storage_path=storage_path,
            storage_root=storage_root,
            catalog=self._optional(data, "catalog"),
            database=self._optional(data, "database" if data.get("database") is not None else "schema"),
            configuration=MappingProxyType(self._configuration(data.get("configuration"))),
            libraries=self._libraries(data.get("libraries")),
            lines=MappingProxyType(dict(self._lines)),
        )

    def _text(self, data: Mapping[str, Any], key: str) -> str:
        if not isinstance(data[key], str):
            self._wrong(
                key, f"Pipeline spec field `{key}` should be a string, got {type(data[key]).__name__}"
            )
        return str(data[key])

    def _optional(self, data: Mapping[str, Any], key: str) -> str | None:
        return None if data.get(key) is None else self._text(data, key)

    def _configuration(self, value: Any) -> dict[str, str]:
        name, location = "configuration", self._location("configuration")
        if value is None:
            return {}
        if not isinstance(value, dict):
            _refuse(
                "PIPELINE_SPEC_FIELD_NOT_DICT", location, field_name=name, field_type=type(value).__name__
            )
        for key, item in value.items():
            if not isinstance(key, str):
                _refuse(
                    "PIPELINE_SPEC_DICT_KEY_NOT_STRING",
                    location,
                    field_name=name,
                    key_type=type(key).__name__,
                )
            if not isinstance(item, str):
                _refuse(
                    "PIPELINE_SPEC_DICT_VALUE_NOT_STRING",
                    location,
                    field_name=name,
                    key_name=key,
                    value_type=type(item).__name__,
                    hint=f'Put the value between quotes: {key}: "{item}".',
                )
        return dict(value)

    def _libraries(self, value: Any) -> tuple[str, ...]:
        if value is None:
            return ()
        try:
            patterns = [entry["glob"]["include"] for entry in value]
        except (TypeError, KeyError):
            patterns = [None]
        if not all(isinstance(pattern, str) for pattern in patterns):
            self._wrong(
                "libraries", "Pipeline spec field `libraries` should be a list of `glob: {include: path}`"
            )
        return tuple(self._pattern(pattern) for pattern in patterns)

    def _pattern(self, pattern: str) -> str:
        if not glob.has_magic(pattern):
            return pattern
        if pattern.endswith("/**") and not glob.has_magic(pattern[:-3]):
            return pattern + "/*"
        _refuse("PIPELINE_SPEC_INVALID_GLOB_PATTERN", self._location("libraries"), glob_pattern=pattern)


def _folders_of_storage(
    root: Path, storage: str, location: str, local_folder: str = _LOCAL_FOLDER
) -> tuple[str, str]:
    """The local folder of a storage, and what its streaming checkpoints are below.

    Args:
        root: the spec's folder.
        storage: as it is written.
        location: where it is written, for errors.
        local_folder: in the project, for logs, when the storage is on another file system.
    """
    # Spark requires a scheme, but public projects write relative paths.
    parts = urlsplit(storage)
    if parts.scheme and parts.scheme != "file":
        return _usable(str(root.resolve() / local_folder), location), storage.rstrip("/")
    folder = unquote(parts.path) if parts.scheme else str((root / storage).resolve())
    return (_usable(folder, location),) * 2


def _usable(folder: str, location: str) -> str:
    """The storage's folder, unless SQLite's JDBC driver would take a part of its path for options."""
    if "?" in folder:
        raise SpecError(
            "PIPELINE_STORAGE_ROOT_NOT_SUPPORTED",
            f"The path of the pipeline's storage contains a question mark: {folder}",
            location=location,
            hint="Choose another folder for `storage`, by an absolute path if the project's own has one.",
            sqlstate="42K03",
        )
    return folder


_SPEC = """\
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

_ORDERS = '''\
"""Orders as they arrive: every file in the folder `orders` is taken in once."""

from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
FOLDER = Path(__file__).resolve().parents[1] / "orders"


@dp.table
def orders() -> DataFrame:
    return spark.readStream.schema("id INT, product STRING, price DECIMAL(9,2)").json(str(FOLDER))
'''

# Without the policy so small a view would be recomputed: that is cheaper, but shows nothing.
_SALES = """\
-- The policy says: follow the change, even while computing everything is cheaper.
CREATE MATERIALIZED VIEW sales
TBLPROPERTIES ('tautochrone.refresh-policy' = 'incremental')
AS SELECT product, count(*) AS sold, sum(price) AS revenue
FROM orders
GROUP BY product;
"""

_SALES_TEST = """\
# Run by `taut test`, without a lake.
unit_tests:
  - name: orders are summed up by product
    model: sales
    given:
      - input: ref('orders')
        rows:
          - {product: tea, price: 3.50}
          - {product: tea, price: 3.00}
          - {product: coffee, price: 4.20}
    expect:
      rows:
        - {product: tea, sold: 2, revenue: 6.50}
        - {product: coffee, sold: 1, revenue: 4.20}
"""

_FIRST_ORDERS = """\
{"id": 1, "product": "tea", "price": 3.50}
{"id": 2, "product": "coffee", "price": 4.20}
{"id": 3, "product": "tea", "price": 3.50}
"""

_SETTINGS = """\
# Records of the files that do not parse become rows with NULL, and are counted (`taut status`).
# To set them aside in the table orders__quarantine instead:
#
# [flows.orders]
# bad_records = "quarantine"
"""


def init_project(folder: Path, name: str) -> Path:
    """Write the sample as `folder/name` and return that path.

    Raises:
        SpecError: PROJECT_ALREADY_EXISTS, the directory exists; PROJECT_NOT_WRITTEN, it cannot be made or
            filled, and what was written of it stays.
    """
    project = folder / name
    if project.exists():
        raise SpecError(
            "PROJECT_ALREADY_EXISTS",
            f"Directory `{name}` already exists.",
            hint="Choose a different name or remove the existing directory.",
            location=str(project),
        )
    storage = project / "pipeline-storage"
    folders = (storage, project / "transformations", project / "unit_tests", project / "orders")
    files = {
        "spark-pipeline.yml": _SPEC.format(name=name, storage=storage.name),
        "transformations/orders.py": _ORDERS,
        "transformations/sales.sql": _SALES,
        "unit_tests/sales.yml": _SALES_TEST,
        "orders/1.json": _FIRST_ORDERS,
        "tautochrone.toml": _SETTINGS,
    }
    try:
        for part in folders:
            part.mkdir(parents=True)
        for path, text in files.items():
            (project / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            "PROJECT_NOT_WRITTEN",
            f"The project cannot be written: {error.strerror}",
            hint="go to a folder where this user may write, on a disk with space",
            location=str(error.filename or project),
        ) from error
    return project
