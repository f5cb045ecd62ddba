"""What a mutation is, and where the list of them comes from.

A mutation is one small change of the code that would break a promise, and the tests that must notice it. It is
found by its exact text, not by its line, so that it survives edits elsewhere; a text that is not there exactly
once is an error, since a change that was never made could neither be killed nor survive.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

LIST = Path(__file__).with_name("mutations.toml")
ROOT = Path(__file__).resolve().parents[2]


class MutationError(Exception):
    """The list does not fit the code; nothing can be said about the tests."""


@dataclass(frozen=True)
class Selection:
    """What pytest is given: test files or single tests, and an expression that chooses among them."""

    files: tuple[str, ...]
    chosen: str = ""

    def arguments(self) -> list[str]:
        return [*self.files, *(["-k", self.chosen] if self.chosen else [])]


@dataclass(frozen=True)
class Mutation:
    """One change of one file, the tests that must fail, and the promise that it breaks."""

    name: str
    file: str
    old: str
    new: str
    tests: Selection
    why: str

    def __post_init__(self) -> None:
        if not all((self.name, self.file, self.old, self.tests.files, self.why)) or self.old == self.new:
            raise MutationError(f"mutation {self.name!r} lacks a field or changes nothing")

    def applied(self, root: Path) -> str:
        """The file as the mutation leaves it; it still compiles, so that a test must notice what it does."""
        path = root / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        count = text.count(self.old)
        if count != 1:
            raise MutationError(f"{self.name}: its text is {count} times in {self.file}, not once")
        changed = text.replace(self.old, self.new)
        try:
            compile(changed, self.file, "exec")
        except SyntaxError as error:
            raise MutationError(f"{self.name}: {self.file} does not compile with it, line {error.lineno}") from None
        return changed


def read_list(path: Path = LIST) -> list[Mutation]:
    """All mutations in order; an entry with another field, or a name twice, raises."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]
    try:
        mutations = [
            Mutation(tests=Selection(tuple(entry.pop("tests")), entry.pop("chosen", "")), **entry)
            for entry in entries
        ]
    except (KeyError, TypeError) as error:
        raise MutationError(f"{path.name}: an entry has other fields than a mutation: {error}") from None
    names = [mutation.name for mutation in mutations]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise MutationError(f"{path.name}: named twice: {', '.join(twice)}")
    return mutations
