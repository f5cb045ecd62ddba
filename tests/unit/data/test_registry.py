"""Tables of what there is to choose from: whole when imported, slow parts imported when asked for."""

import subprocess
import sys
from importlib import import_module

import pytest

from secure_sccvfl.data.registry import Registry, imported

TABLES = {
    "secure_sccvfl.data.catalogue": "LOADERS",
    "secure_sccvfl.models.generators": "GENERATORS",
    "secure_sccvfl.audit.attacks.catalogue": "ATTACKS",
    "secure_sccvfl.evaluation.counterfactual_models": "COUNTERFACTUAL_MODELS",
}
SLOW = ("torch", "ot", "pandas", "sklearn")


class Wrong(Exception):
    pass


SMALL: Registry[object] = Registry("shape", {"ring": 1, "path": "pathlib:Path"}, Wrong)


def test_names_keep_their_order_and_stand_for_objects_or_for_import_paths() -> None:
    assert SMALL.names == tuple(SMALL) == ("ring", "path")
    assert SMALL.get("ring") == 1 and SMALL.get("path") is imported("pathlib:Path")
    assert dict(SMALL.items())["ring"] == 1 and len(SMALL) == 2 and "ring" in SMALL and "cube" not in SMALL


def test_an_unknown_name_is_reported_with_the_available_ones() -> None:
    with pytest.raises(Wrong, match=r"^no shape 'cube'; available: ring, path$"):
        SMALL.get("cube")


@pytest.mark.parametrize("module", TABLES)
def test_a_table_is_imported_without_what_is_slow(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set({SLOW}) & set(sys.modules)))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[]"


@pytest.mark.parametrize(("module", "name"), TABLES.items())
def test_every_entry_of_a_table_exists_in_its_package(module: str, name: str) -> None:
    """Import paths in text are imports too: they go to the package of the table, or to research."""
    table: Registry[object] = getattr(import_module(module), name)
    packages = (".".join(module.split(".")[:2]) + ".", "secure_sccvfl.research.")
    for entry, value in table.items():
        paths = [v for v in (table.entries[entry], *vars(value).values()) if str(v).startswith("secure_sccvfl.")]
        assert all(path.startswith(packages) and import_module(path.partition(":")[0]) for path in paths)
