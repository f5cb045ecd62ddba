"""Every data set by name: `load(name)`.

To add a loader, write a module with `read(name)` and list it in LOADERS. The module may also have `words(name)`, the
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
    """Which names a module of this package reads: exact ones, prefixes, or a suffix.

    `benchmark`: the data are public, so an evaluation may pool them. Otherwise they belong to a user.
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

    def _function(self, name: str) -> Any:
        return getattr(import_module(self.module), name, None)

    def read(self, name: str) -> Dataset:
        data: Dataset = self._function("read")(name)
        return data

    def words(self, name: str) -> dict[str, Any]:
        """Label and protected attributes, as their description names them."""
        if (described := self._function("words")) is not None:
            words: dict[str, Any] = described(name)
            return words
        data = load(name)
        entries = [{"meaning": a.meaning} for a in data.protected]
        return {"label": {"meaning": data.label.meaning}, "protected": entries}

    def state(self, name: str) -> tuple[tuple[str, int, int], ...]:
        """Name, time and size of the files that hold the records, which show whether something changed."""
        files = self._function("files")
        stats = [(str(path), path.stat()) for path in (files(name) if files else ()) if path.exists()]
        return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)


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
    for _, loader in LOADERS.items():
        if loader.takes(name):
            return loader
    from secure_sccvfl.data.features import DataError  # slow to import; programs that only show help do not need it

    raise DataError(f"no data set {name!r}: use one of {dataset_help()}")


def is_benchmark(name: str) -> bool:
    """Whether a name stands for public data, which may be pooled."""
    return loader_of(name).benchmark


def dataset_help() -> str:
    return ", ".join(f"{', '.join(one.names) or one.example} ({one.help})" for _, one in LOADERS.items())


_last: list[tuple[object, Dataset]] = []
"""The data set that was read last, with its key. One is enough: a process works on one."""


def load(name: str) -> Dataset:
    """Any data set by name. It is read again only if its files changed or another one was read since."""
    loader = loader_of(name)
    key = (name, loader.state(name))
    if not _last or _last[0][0] != key:
        _last[:] = [(key, loader.read(name))]
    return _last[0][1]


def forget() -> None:
    """Drop the cached data set, for a process that continues with one party's columns alone."""
    _last.clear()
