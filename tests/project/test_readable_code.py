"""Which Python definitions may read more than themselves: everything that is not known not to."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

from tautochrone.model.reason import Reason, ReasonCode
from tautochrone.project.readable_code import files_read

KNOWN = (
    "from pyspark import pipelines as dp\nfrom pyspark.sql import SparkSession, functions as sf, types as t",
    "import os\nfolder = os.path.join(os.environ['FOLDER'], os.getenv('OTHER', ''))",
    "from os import environ\nfrom os.path import join, dirname",
    "from pathlib import Path\nfolder = Path(__file__).resolve().parents[1] / 'in'",
    "rows = spark.readStream.format('json').option('a', 'b').schema('id INT').load('x')",
    "from pyspark.sql import functions as sf\nx = rows.groupBy('a').count().agg(sf.first('a'))",
    "import pyspark.sql.functions as F\nx = rows.agg(F.corr('a', 'b'), F.count('a'))",
    "for name in ('a', 'b'):\n    def table(name=name):\n        return spark.sql(f'SELECT * FROM {name}')",
)
UNKNOWN = (
    "import datetime", "from time import time", "import random, uuid", "import requests", "import os as o",
    "from os import listdir", "import os.path as p", "from os.path import exists", "import pyspark.pandas",
    "from pyspark import pandas", "from pyspark import *", "from os import *", "from . import settings",
    "import importlib", "open('x')", "eval('1')", "getattr(x, 'y')", "__import__('time')", "dbutils.fs",
    "import os\nos.listdir('.')", "import os\nos.path.exists('x')", "rows.count()", "spark.table('x').schema",
    "spark.catalog.listTables()", "[r.a for r in rows.collect()]", "spark._jvm.java.lang.System.nanoTime()",
    "from pathlib import Path\nPath('x').read_text()", "().__class__", "rows.groupBy('a').pivot('b').sum()",
    "from os import path", "import os\nfiles = os", "import os\np = os.path", "import operator",
    "this is no Python", "# \x00", "reader = spark.read\nreader.csv('x').columns", "rows.rdd",
)  # fmt: skip


def answer(folder: Path, code: str) -> frozenset[Path] | Reason:
    file = folder / "definitions.py"
    file.write_text(code)
    return files_read([file], folder)


@pytest.mark.parametrize("code", KNOWN)
def test_known_code(tmp_path: Path, code: str) -> None:
    assert answer(tmp_path, code) == {tmp_path / "definitions.py"}


@pytest.mark.parametrize("code", UNKNOWN)
def test_unknown_code(tmp_path: Path, code: str) -> None:
    reason = answer(tmp_path, code)
    assert isinstance(reason, Reason)
    assert reason.code is ReasonCode.CODE_MAY_READ


def test_modules_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text("import more.names\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "names.py").write_text("import names\nTABLE = 'x'\n")
    files = answer(tmp_path, "from names import TABLE")
    own = {tmp_path / name for name in ("definitions.py", "names.py", "more/names.py")}
    assert files == own
    (tmp_path / "more" / "__init__.py").write_text("")
    (tmp_path / "more" / "more").mkdir()
    (tmp_path / "more" / "more" / "names.py").write_text("")
    assert answer(tmp_path, "from names import TABLE") == own | {tmp_path / "more" / "__init__.py"}
    (tmp_path / "more" / "names.py").write_text("import time\n")
    reason = answer(tmp_path, "from names import TABLE")
    assert isinstance(reason, Reason)
    assert (reason.params["position"], reason.params["what"]) == ("names.py:1", "time")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_method_of_paths_that_asks_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def refuse(*_: Any, **__: Any) -> Any:
        calls.append("")
        raise OSError("not in this test")

    path = tmp_path / "x"
    asking = set()
    with monkeypatch.context() as patched:
        for module, names in (
            (os, ("stat", "lstat", "listdir", "scandir", "readlink", "open")),
            (io, ("open",)),
        ):
            for name in names:
                patched.setattr(module, name, refuse)
        for name in dir(Path):
            method = getattr(path, name, None)
            if name.startswith("_") or not callable(method):
                continue
            calls.clear()
            for arguments in ((), ("*",)):
                try:
                    result = method(*arguments)
                    list(result) if hasattr(result, "__next__") else None
                except (OSError, TypeError, ValueError, RuntimeError, NotImplementedError):
                    pass
            if calls:
                asking.add(name)
    # Writing is no reading, and where a link leads decides only which folder is read.
    asking -= {"resolve", "relative_to", "is_relative_to", "match", "write_bytes", "write_text", "touch"}
    assert {"exists", "read_text", "iterdir", "glob"} <= asking
    code = "from pathlib import Path\nPath('x')."
    assert [name for name in sorted(asking) if not isinstance(answer(tmp_path, code + name), Reason)] == []


HARMLESS = {
    *("asTable", "sparkSession", "write", "writeStream", "writeTo", "mergeInto", "na", "registerTempTable"),
    *("metadataColumn", "colRegex", "createTempView", "createOrReplaceTempView", "createGlobalTempView"),
    *("createOrReplaceGlobalTempView", "exists", "scalar", "sql_ctx"),
}


def test_every_method_of_frames_that_gives_no_frame(tmp_path: Path) -> None:
    lazy = {"DataFrame", "ParentDataFrame", "GroupedData", "Column", "ParentColumn", "'DataFrame'"}
    missing = []
    for name in dir(DataFrame):
        attribute = getattr(DataFrame, name)
        function = attribute.fget if isinstance(attribute, property) else attribute
        returns = getattr(function, "__annotations__", {}).get("return")
        if name.startswith("_") or str(returns) in lazy or name in HARMLESS:
            continue
        if not isinstance(answer(tmp_path, f"rows.{name}"), Reason):
            missing.append((name, returns))
    assert missing == []
