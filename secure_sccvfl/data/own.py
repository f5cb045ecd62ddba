"""A user's own data set, named by the path of its TOML description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from secure_sccvfl.data.dataset import Dataset, load_toml
from secure_sccvfl.data.files import read_description


def read(name: str) -> Dataset:
    return load_toml(Path(name))


def words(name: str) -> dict[str, Any]:
    return read_description(Path(name))


def files(name: str) -> list[Path]:
    """The description, and every file that it names."""
    spec, path = words(name), Path(name)
    entries = [*spec["parties"].values(), spec["label"], *spec["protected"]]
    tables = {entry["file"] for entry in entries if "file" in entry}
    return [path, *(path.parent / table for table in sorted(tables))]
