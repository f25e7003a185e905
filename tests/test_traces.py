"""The trace that a defect leaves, and the commands that show it."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tautochrone import traces
from tautochrone.cli.main import main
from tautochrone.errors import LakeError
from tautochrone.meta import MetaStore
from tautochrone.meta.sql.checkpoints import SqlCheckpoints
from tautochrone.redaction import keep_secret
from tautochrone.traces import is_defect, keep_traces, trace_of, traces_in

_WRITER = """
import sys
from pathlib import Path
from tautochrone.traces import keep_traces, trace_of
keep_traces(Path(sys.argv[1]))
for number in range(40):
    lines = chr(10) * number + "try: {}[0]" + chr(10) + "except KeyError as error: trace_of(error, 'a loop')"
    exec(compile(lines, "f", "exec"))
"""


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_folder", None)
    monkeypatch.setattr(traces, "_at_once", False)
    monkeypatch.setattr(traces, "_written", {})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "transformations").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(
        "name: demo\nstorage: storage\nlibraries:\n  - glob:\n      include: transformations/**\n"
    )
    (tmp_path / "storage").mkdir()
    MetaStore.open(f"sqlite:///{tmp_path}/storage/meta.db").close()
    return tmp_path


def caught(text: str = "missing") -> KeyError:
    try:
        raise KeyError(text)
    except KeyError as error:
        return error


def test_trace_holds_the_stack_and_no_secret(tmp_path: Path) -> None:
    keep_secret("hunter2-hunter2")
    keep_traces(tmp_path / "logs")
    words = trace_of(caught("hunter2-hunter2"), "refresh lake.default.totals", {"last lines": "a\nb"})
    (trace,) = traces_in(tmp_path / "logs")
    assert str(trace.file) in words
    assert (trace.where, trace.error_class) == ("refresh lake.default.totals", "KeyError")
    text = trace.file.read_text()
    assert "in caught" in text
    assert "last lines:\na\nb" in text
    assert "hunter2" not in text


def test_repeated_defect_is_written_once_and_named_again(tmp_path: Path) -> None:
    keep_traces(tmp_path)
    words = {trace_of(caught(), "a loop") for _ in range(5)}
    assert len(words) == 1
    assert len(traces_in(tmp_path)) == 1


def test_long_trace_is_cut_in_the_middle(tmp_path: Path) -> None:
    keep_traces(tmp_path)
    trace_of(caught(), "a loop", {"much": "x" * 1_000_000})
    (trace,) = traces_in(tmp_path)
    assert trace.file.stat().st_size < 100_000
    assert "in caught" in trace.file.read_text()


def test_several_processes_write_whole_traces_and_few(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    writers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
    for writer in writers:
        assert writer.communicate()[1] == b""
        assert writer.returncode == 0
    all_traces = traces_in(tmp_path)
    assert len(all_traces) == 50
    assert all("KeyError: 0" in trace.file.read_text() for trace in all_traces)
    assert len(list(tmp_path.iterdir())) == 50


def test_trace_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the folder should be")
    keep_traces(tmp_path / "logs")
    assert trace_of(caught(), "a loop").startswith("its trace could not be written: ")


def test_error_that_explains_itself_is_no_defect() -> None:
    assert is_defect(KeyError("x"))
    assert not is_defect(LakeError("TABLE_OR_VIEW_NOT_FOUND", "no such table"))
    passed_on = LakeError("LAKE_OPERATION_FAILED", "NullPointerException")
    passed_on.__cause__ = type("Py4JJavaError", (Exception,), {})()
    assert is_defect(passed_on)


def test_defect_of_a_command_is_named_by_status_and_in_the_bundle(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    with monkeypatch.context() as broken:
        broken.setattr(SqlCheckpoints, "newest", lambda *_: {}["gone"])
        assert main(["checkpoints"]) == 2
    (trace,) = traces_in(project / "storage" / "logs")
    output = capsys.readouterr().err
    assert "[INTERNAL_ERROR] KeyError: 'gone'" in output
    assert str(trace.file) in output
    assert main(["status"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("defect: ")]
    assert line.split()[1:] == [trace.at, "taut", "checkpoints", "KeyError", str(trace.file)]
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["defect"] == "KeyError"
    from tautochrone.app import support_bundle as bundle

    monkeypatch.setattr(bundle, "health_findings", lambda _options: [])
    assert main(["support-bundle", "--output", "b.zip"]) == 0
    with zipfile.ZipFile("b.zip") as parts:
        assert "Traceback" in json.loads(parts.read("traces.jsonl"))["text"]


def test_debug_shows_the_trace_at_once(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(SqlCheckpoints, "newest", lambda *_: {}["gone"])
    assert main(["--debug", "checkpoints"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert len(traces_in(project / "storage" / "logs")) == 1
