"""The embedded data sets: each has a TOML description and its tables; some have a policy card."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.files import load_toml, read_description


@contextmanager
def embedded_file(name: str) -> Iterator[Path]:
    """The path of a file in this folder, with the others next to it; the file may not exist."""
    with resources.as_file(resources.files(__package__)) as folder:
        yield folder / name


def read(name: str) -> Dataset:
    with embedded_file(f"{name}.toml") as path:
        return load_toml(path)


def words(name: str) -> dict[str, Any]:
    with embedded_file(f"{name}.toml") as path:
        return read_description(path)
