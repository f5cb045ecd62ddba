"""The notebooks of the documentation: valid, without outputs, and run from the first cell to the last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.test_documents import broken_links
from tests.support.sessions import LONG

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
KERNEL = """
import ast, json, sys

for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        body = ast.parse("".join(cell["source"])).body
        shown = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<cell>", "exec"), globals())
        if shown is not None:
            repr(eval(compile(ast.Expression(shown.value), "<cell>", "eval"), globals()))
print("result:", json.dumps(eval(sys.argv[2])))
"""
"""What a kernel does: all cells in `__main__`, which has no file; the last expression of a cell is shown."""
RESULTS = {
    "pooled": (
        "[len(frontier), int(changed[certified].sum()), bool((scores['test_flips'] <= 0).all())]",
        [9, 0, True],
    ),
    "three_parties": ("[run.page.is_file(), len(decisions), bool(decisions.isna().any())]", [True, 4, False]),
}
"""By notebook: what is asked of its variables when it has run, and the answer."""


def run_notebook(path: Path, question: str, folder: Path) -> Any:
    paths = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "TMPDIR": str(folder)}
    command = [sys.executable, "-c", KERNEL, str(path), question]
    environment = {**os.environ, **paths}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LONG)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.rpartition("result:")[2])


def test_every_notebook_is_run() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(RESULTS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_and_holds_no_output(path: Path) -> None:
    """As format 4.5 of Jupyter notebooks asks."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5) and notebook["metadata"]["kernelspec"]
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for cell in notebook["cells"]:
        of_code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert cell["cell_type"] in ("code", "markdown") and all(isinstance(line, str) for line in cell["source"])
        assert set(cell) == {"cell_type", "id", "metadata", "source", *of_code}
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert cell["cell_type"] == "code" or broken_links("".join(cell["source"]), path.parent) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    question, answer = RESULTS[path.stem]
    assert run_notebook(path, question, tmp_path) == answer


def test_an_error_in_a_cell_is_noticed(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "source": ["a = 1\n", "a.b"]}]
    (tmp_path / "wrong.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(AssertionError, match="has no attribute 'b'"):
        run_notebook(tmp_path / "wrong.ipynb", "a", tmp_path)
