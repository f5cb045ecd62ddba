"""Every data set, by name: `load(name)` is the one way to it.

A loader is a line in the table and a module that has `read(name)`. The module may also have `words(name)`, the
names of the label and the protected attributes for people, and `files(name)`, the files that hold the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from secure_sccvfl.data.registry import Registry

if TYPE_CHECKING:
    from secure_sccvfl.data.dataset import Dataset

CENSUS = ("acs-income", "acs-income-sex", "acs-mobility")
EMBEDDED = ("german", "heart", "compas", "mobility", "acs12", "acs12-gender")


@dataclass(frozen=True)
class Loader:
    """Which names a module reads: these, those that start so, or those that end so.

    `benchmark`: the data are public, so a harness may pool them. Otherwise they are a user's own.
    """

    module: str
    help: str
    example: str
    names: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    suffix: str | None = None
    benchmark: bool = True

    def takes(self, name: str) -> bool:
        ends = self.suffix is not None and name.endswith(self.suffix)
        return name in self.names or name.startswith(self.prefixes) or ends

    def read(self, name: str) -> Dataset:
        data: Dataset = import_module(self.module).read(name)
        return data

    def words(self, name: str) -> dict[str, Any]:
        """Label and protected attributes, as their description names them."""
        described = getattr(import_module(self.module), "words", None)
        if described is not None:
            found: dict[str, Any] = described(name)
            return found
        data = load(name)
        entries = [{"meaning": a.meaning} for a in data.protected]
        return {"label": {"meaning": data.label.meaning}, "protected": entries}

    def state(self, name: str) -> tuple[tuple[str, int, int], ...]:
        """Name, time and size of the files that hold the records: they tell whether something changed."""
        files = getattr(import_module(self.module), "files", None)
        if files is None:
            return ()
        facts = ((str(path), path.stat()) for path in files(name) if path.exists())
        return tuple((path, fact.st_mtime_ns, fact.st_size) for path, fact in facts)


LOADERS: Registry[Loader] = Registry(
    "loader",
    {
        "embedded": Loader("secure_sccvfl.data.embedded", "embedded", "german", names=EMBEDDED),
        "own": Loader("secure_sccvfl.data.files", "your own data", "loans.toml", suffix=".toml", benchmark=False),
        "census": Loader(
            "secure_sccvfl.data.census",
            "census records from a file; acs-income@CA-2018 fetches them; acs-income-sex and acs-mobility likewise",
            "acs-income:PATH.csv",
            prefixes=tuple(f"{task}{mark}" for task in CENSUS for mark in ":@"),
        ),
        "synthetic": Loader("secure_sccvfl.data.synthetic", "made up", "synthetic:1000", prefixes=("synthetic:",)),
    },
)


def loader_of(name: str) -> Loader:
    """The first loader that takes this name."""
    for _, loader in LOADERS.items():
        if loader.takes(name):
            return loader
    from secure_sccvfl.data.features import DataError  # slow to import; programs that only show help do not need it

    raise DataError(f"no data set {name!r}: use one of {dataset_help()}")


def is_benchmark(name: str) -> bool:
    """Whether a name stands for public data that a harness may pool."""
    return loader_of(name).benchmark


def dataset_help() -> str:
    """The names that can be given, for people."""
    told = [f"{', '.join(loader.names) or loader.example} ({loader.help})" for _, loader in LOADERS.items()]
    return ", ".join(told)


class _Last:
    """The data set that was read last. One is enough: a process works on one."""

    def __init__(self) -> None:
        self.kept: tuple[object, Dataset] | None = None


_LAST = _Last()


def load(name: str) -> Dataset:
    """Any data set by name. It is read again only if its files changed or another one was read since."""
    loader = loader_of(name)
    key = (name, loader.state(name))
    kept = _LAST.kept
    if kept is not None and kept[0] == key:
        return kept[1]
    data = loader.read(name)
    _LAST.kept = (key, data)
    return data


def forget() -> None:
    """Keep no data set: for a process that continues with one party's columns alone."""
    _LAST.kept = None
