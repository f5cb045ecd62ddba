"""Tables of what there is to choose from: a name, and what it stands for, one line per entry.

A table is whole as soon as it is imported. What is slow to import stands in it as "module:attribute" and is imported
when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def imported(place: str) -> Any:
    """What "module:attribute" stands for."""
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
        """What the name stands for; for another name, one line that says which there are."""
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
