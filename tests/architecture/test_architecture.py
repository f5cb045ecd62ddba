"""Imports go one way, production code does not import research code, and some libraries have one importer."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from secure_sccvfl.runs.jobs import JOBS

ROOT = Path(__file__).resolve().parents[2]
ALLOWED = {
    "accounting": {"accounting"},
    "protocols": {"protocols"},
    "secure_sccvfl": {"secure_sccvfl", "protocols", "accounting"},
    "launch": {"launch", "secure_sccvfl", "protocols", "accounting"},
}
LAYERS = {
    "protocols": ("", "net", "records", "authentication", "dealing", "operations", "session", "steps", "alignment"),
    "secure_sccvfl": (
        *("data", "releases", "policy", "discovery", "models", "metrics", "training", "config"),
        *(
            "training.modes",
            "runs",
            "audit.attacks",
            "evaluation",
            "reports",
            "audit",
            "runs.member",
            "runs.local",
        ),
        *("research", "api", ""),
    ),
}
"""Packages from the lowest; "" is the modules of the top package itself. A package imports lower ones and itself.

A subpackage that is listed has its own layer: `runs.local`, which starts whole sessions, is above `reports`.
"""
PROGRAM = ROOT / "secure_sccvfl" / "__main__.py"
"""The program itself, which starts launch.cli: no module imports it."""
SOURCES = [path for package in ALLOWED for path in sorted((ROOT / package).rglob("*.py")) if path != PROGRAM]


def test_every_package_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    packages = {".".join(path.parent.relative_to(ROOT).parts) for path in SOURCES if path.name == "__init__.py"}
    assert {in_tree(name) for name in listed} == packages
    for name in set(ALLOWED) - {"secure_sccvfl"}:
        assert (ROOT / "secure_sccvfl" / name).readlink() == Path("..", name)


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a file imports, anywhere in it; name is "" for a whole module."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((in_tree(alias.name), "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((in_tree(node.module), alias.name) for alias in node.names)


def in_tree(module: str) -> str:
    """The name of a module by its folder: accounting/, protocols/ and launch/ are imported from secure_sccvfl."""
    outer = module.removeprefix("secure_sccvfl.")
    return outer if outer.split(".")[0] in set(ALLOWED) - {"secure_sccvfl"} else module


def imported(path: Path) -> set[str]:
    return {module for module, _ in imports(path)}


def layer_of(package: str, parts: tuple[str, ...]) -> str:
    """The layer of a module, by the parts of its name after the package: the longest listed prefix."""
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((name for name in names if name in LAYERS[package]), "")


def foreign(path: Path, location: tuple[str, ...]) -> list[str]:
    """Top-level packages of the project that a file at `location` imports and may not."""
    return sorted({name.split(".")[0] for name in imported(path)} & set(ALLOWED) - ALLOWED[location[0]])


def backward(path: Path, location: tuple[str, ...]) -> list[str]:
    """Imports of a file at `location` (package and folders) that go against the layers."""
    package, *folders = location
    if package not in LAYERS:
        return []
    order, violations = LAYERS[package], []
    layer = order.index(layer_of(package, tuple(folders)))
    for module, name in imports(path):
        parts = tuple([*module.split("."), name])
        if parts[0] == package and order.index(layer_of(package, parts[1:])) > layer:
            violations.append(f"{module} {name}")
    return violations


def reached_into(path: Path, location: tuple[str, ...]) -> list[str]:
    """Private names or modules of another package that a file imports."""
    here = ".".join(location)
    return [
        f"{module} {name}"
        for module, name in imports(path)
        if module.split(".")[0] in ALLOWED
        and not module.startswith(here)
        and any(part.startswith("_") and not part.startswith("__") for part in [*module.split("."), name])
    ]


def location_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).parts[:-1]


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def offences(check: Callable[[Path, tuple[str, ...]], list[str]]) -> dict[str, list[str]]:
    """What a check finds in all source files, by file."""
    return {named(path): violations for path in SOURCES if (violations := check(path, location_of(path)))}


def test_imports_go_one_way() -> None:
    assert offences(foreign) == {}
    assert offences(backward) == {}


def test_no_package_imports_private_names_of_another() -> None:
    assert offences(reached_into) == {}


def loaded(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements that run when a module is imported: nothing inside functions or behind TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        checking = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if not checking and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            yield from loaded(node)


def dependencies(sources: dict[str, str]) -> dict[str, set[str]]:
    """For each module, the modules of the project that its import loads directly."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        graph[module] = set()
        for node in loaded(ast.parse(source)):
            if isinstance(node, ast.Import):
                names = [in_tree(alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                outer = in_tree(node.module)
                inner = [in_tree(f"{node.module}.{alias.name}") for alias in node.names]
                names = [name if name in sources else outer for name in inner]
            else:
                continue
            graph[module] |= {name for name in names if name in sources and name != module}
    return graph


def cycle_in(graph: dict[str, set[str]]) -> tuple[str, ...]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return ()


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_module_imports_itself_through_others() -> None:
    assert cycle_in(dependencies({module_of(path): path.read_text() for path in SOURCES})) == ()


def test_a_cycle_of_imports_is_noticed() -> None:
    pair = {"a": "import b", "b": "from a import thing"}
    assert cycle_in(dependencies(pair))
    assert cycle_in(dependencies({**pair, "b": "def f():\n    import a"})) == ()
    assert cycle_in(dependencies({**pair, "b": "if TYPE_CHECKING:\n    import a"})) == ()


def test_every_package_has_a_layer_and_a_docstring() -> None:
    for package, order in LAYERS.items():
        inits = (ROOT / package).glob("*/__init__.py")
        folders = {path.parent for path in inits if not path.parent.is_symlink()}
        assert {folder.name for folder in folders} == {name.split(".")[0] for name in order} - {""}
        for folder in folders:
            docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
            assert len(docstring.split()) >= 8, folder


def test_the_readme_names_exactly_the_packages() -> None:
    table = (ROOT / "README.md").read_text().partition("## The code")[2].partition("\nMore:")[0]
    named = re.findall(r"`([^` ]+)`", "\n".join(line for line in table.splitlines() if line.startswith("- ")))
    packages = {layer.split(".")[0] for order in LAYERS.values() for layer in order} - {""}
    assert {name.strip("/").removeprefix("secure_sccvfl/") for name in named} == {*packages, *ALLOWED} - {
        "secure_sccvfl"
    }


def importers(module: str) -> set[str]:
    return {
        named(path)
        for path in SOURCES
        if any(name == module or name.startswith(module + ".") for name in imported(path))
    }


REGISTRIES = {
    *("evaluation/methods.py", "models/generators.py", "runs/jobs.py", "runs/model_files.py"),
    *("training/__init__.py", "training/modes/__init__.py"),
}
"""Production modules of secure_sccvfl that name research code, as text in a registry that imports on use."""
DEFAULT_RUN = """
import sys
import secure_sccvfl.launch.cli, secure_sccvfl.launch.run_party, secure_sccvfl.launch.run_dealer
import secure_sccvfl
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.base import mode_plan
from secure_sccvfl.training.modes.options import RunOptions

options = RunOptions.of({})
options.check(3)
mode_plan(options.schema(3), options)
secure_sccvfl.train(secure_sccvfl.load("heart"))
print([name for name in sys.modules if name.startswith("secure_sccvfl.research")])
"""


def test_no_production_run_imports_research() -> None:
    """Two programs do. Other references are text in registries, and a default run imports none of them."""
    outside = {name for name in importers("secure_sccvfl.research") if not name.startswith("secure_sccvfl/research/")}
    assert outside == {"launch/bench.py", "launch/reproduce.py"}
    texts = [path for path in SOURCES if re.search(r'"(secure_sccvfl\.)?research\.', path.read_text())]
    referring = {named(path).removeprefix("secure_sccvfl/") for path in texts}
    assert {name for name in referring if not name.startswith(("research/", "launch/"))} == REGISTRIES
    assert all(job.startswith("bench-") for job, path in JOBS.items() if path.startswith("research."))
    ran = subprocess.run([sys.executable, "-c", DEFAULT_RUN], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stdout.strip().endswith("[]"), ran.stdout + ran.stderr


def test_only_the_runtime_imports_crypten() -> None:
    assert importers("crypten") == {"protocols/session/runtime.py"}


def test_only_one_module_imports_the_group() -> None:
    assert importers("rbcl") == {"protocols/alignment/psi.py"}


def test_only_one_module_samples_noise() -> None:
    assert importers("opendp") == {"protocols/dealing/gaussian.py"}


def test_only_the_rendezvous_opens_sockets() -> None:
    opening = {
        named(path)
        for path in SOURCES
        if any(
            isinstance(node, ast.Attribute) and node.attr in ("create_server", "create_connection", "connect_ex")
            for node in nodes(path)
        )
    }
    assert opening == {"protocols/net/rendezvous.py"}


def test_no_generator_but_the_cryptographic_one_in_protocols() -> None:
    """Masks and shares: no numpy, torch or stdlib generator anywhere in the package."""
    forbidden = ("random", "numpy.random", "secrets")
    for path in (ROOT / "protocols").rglob("*.py"):
        assert not imported(path) & set(forbidden), path
        text = path.read_text()
        for name in ("np.random", "torch.rand", "torch.Generator", "default_rng", "manual_seed"):
            assert name not in text, (path, name)


def test_the_checks_see_what_they_forbid(tmp_path: Path) -> None:
    bad, worse = tmp_path / "bad.py", tmp_path / "worse.py"
    bad.write_text(
        "def f():\n    from secure_sccvfl.runs.jobs import make_job\n    from secure_sccvfl.launch import cli\n"
    )
    assert backward(bad, ("secure_sccvfl", "data")) == ["secure_sccvfl.runs.jobs make_job"]
    assert backward(bad, ("secure_sccvfl", "runs", "local")) == []
    assert foreign(bad, ("secure_sccvfl", "data")) == ["launch"]
    worse.write_text(
        "from secure_sccvfl.protocols.session.runtime import _plain\nfrom secure_sccvfl.data.files import _csv\n"
    )
    assert len(reached_into(worse, ("secure_sccvfl", "runs"))) == 2
    assert len(reached_into(worse, ("secure_sccvfl", "data"))) == 1
