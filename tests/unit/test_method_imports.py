"""Imports go one way: launch -> secure_sccvfl -> {protocols, accounting}; crypten has one home."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
METHOD = sorted((ROOT / "secure_sccvfl").rglob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", METHOD, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_method_imports_neither_launchers_nor_crypten(path):
    assert not {"launch", "crypten", "tests"} & set(imported(path))


@pytest.mark.parametrize("path", METHOD, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_modules_stay_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
