"""Registries: named choices. An entry that is slow to import is written as "module:attribute" and imported on use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def imported(path: str) -> Any:
    """The object that "module:attribute" stands for."""
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


class Registry(Generic[T]):
    """Names in order, each with an object or with its import path. Iteration gives the names."""

    def __init__(self, what: str, entries: Mapping[str, T | str], error: type[Exception] = ValueError) -> None:
        self.what, self.error = what, error
        self.entries = dict(entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def get(self, name: str) -> T:
        """The object of this name; an unknown name raises one line that lists the available ones."""
        if name not in self.entries:
            raise self.error(f"no {self.what} {name!r}; available: {', '.join(self.entries)}")
        entry = self.entries[name]
        value: T = imported(entry) if isinstance(entry, str) else entry
        return value

    def items(self) -> Iterator[tuple[str, T]]:
        return ((name, self.get(name)) for name in self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries
