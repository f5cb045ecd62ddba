"""Imports go one way, and some things live in one module only."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {
    "accounting": {"accounting"},
    "protocols": {"protocols"},
    "secure_sccvfl": {"secure_sccvfl", "protocols", "accounting"},
    "launch": {"launch", "secure_sccvfl", "protocols", "accounting"},
}
SOURCES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py"))]


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    ours = {name.split(".")[0] for name in imported(path)} & set(ALLOWED)
    assert ours <= ALLOWED[package]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_the_readme_names_every_module() -> None:
    """In its table of where things are: single modules, patterns, or the folder they are in."""
    table = (ROOT / "README.md").read_text().partition("## Where things are")[2].partition("## Limits")[0]
    names = re.findall(r"`([^`]+)`", table)
    for path in SOURCES:
        place = path.relative_to(ROOT)
        if path.name != "__init__.py" and not any(f"{folder}/" in table for folder in place.parts[1:-1]):
            known = place.parts[0] == "launch" or any(fnmatch(path.name, name.split("/")[-1]) for name in names)
            assert known, f"{place} is not in the README's table"
    for name in names:
        if name.endswith(".py"):
            assert any(fnmatch(path.name, name.split("/")[-1]) for path in SOURCES), f"{name} is gone"


def importers(module: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(name == module or name.startswith(module + ".") for name in imported(path))
    }


def test_only_the_runtime_imports_crypten() -> None:
    assert importers("crypten") == {"protocols/session/runtime.py"}


def test_only_one_module_samples_noise() -> None:
    assert importers("opendp") == {"protocols/dealing/gaussian.py"}


def test_only_the_rendezvous_opens_sockets() -> None:
    opening = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(
            isinstance(node, ast.Attribute) and node.attr in ("create_server", "create_connection", "connect_ex")
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert opening == {"protocols/net/rendezvous.py"}


def test_no_generator_but_the_cryptographic_one_in_protocols() -> None:
    """Masks and shares: no numpy, torch or stdlib generator anywhere in the package."""
    forbidden = ("random", "numpy.random", "secrets")
    for path in (ROOT / "protocols").glob("*.py"):
        assert not imported(path) & set(forbidden), path
        text = path.read_text()
        for name in ("np.random", "torch.rand", "torch.Generator", "default_rng", "manual_seed"):
            assert name not in text, (path, name)


def test_the_check_sees_a_backward_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from secure_sccvfl.run.jobs import make_job\n")
    assert {name.split(".")[0] for name in imported(bad)} & set(ALLOWED) - ALLOWED["protocols"]
