"""What definition files import, and import again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tautochrone.project.libraries import Libraries
from tautochrone.project.usercode import forget_imports, user_code


@pytest.mark.parametrize("has_init", [True, False])
def test_changed_module_of_a_folder_is_imported_anew(tmp_path: Path, *, has_init: bool) -> None:
    folder = tmp_path / f"rules_of_test_{has_init}"
    folder.mkdir()
    if has_init:
        (folder / "__init__.py").touch()

    def imported(limit: int) -> int:
        (folder / "limits.py").write_text(f"LIMIT = {limit}")
        forget_imports(Libraries((tmp_path,)))
        names: dict[str, Any] = {}
        with user_code(tmp_path, (tmp_path,), str, [], in_query=False):
            exec(f"from {folder.name} import limits", names)
        return int(names["limits"].LIMIT)

    assert [imported(1), imported(22)] == [1, 22]
