"""Tables of choices: each line has a name and what it stands for.

A table is complete as soon as it is imported. An entry that is slow to import is written as "module:attribute" and
imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def imported(place: str) -> Any:
    """The object that "module:attribute" stands for."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


class Registry(Generic[T]):
    """Names in order, each with an object or with the place of one. Iteration gives the names."""

    def __init__(self, what: str, entries: Mapping[str, T | str], error: type[Exception] = ValueError) -> None:
        self.what, self.error = what, error
        self.entries = dict(entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def get(self, name: str) -> T:
        """The object of this name; an unknown name raises one line that lists the known ones."""
        if name not in self.entries:
            raise self.error(f"no {self.what} {name!r}; there is {', '.join(self.entries)}")
        entry = self.entries[name]
        found: T = imported(entry) if isinstance(entry, str) else entry
        return found

    def items(self) -> Iterator[tuple[str, T]]:
        return ((name, self.get(name)) for name in self.entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, name: object) -> bool:
        return name in self.entries
