"""Canonical record ids: a declared rule maps different spellings of an id to the same text at every party.

A rule is public and the same for all parties, part of the description of the data. Each party applies it to its own
table and checks the result. Problems (a record without an id, an id that occurs twice) are reported to people at this
party only, by row numbers. Nothing of it is sent.

Always: a value's type does not matter (7, 7.0 and "7" are one id), and text is in Unicode's composed form. On
request, in this order:

| | |
|---|---|
| `trim` (on unless turned off) | spaces at both ends are dropped |
| `case = "lower"` | upper and lower case are equal |
| `number` | an integer has one spelling: "0012", "12.0" and "1.2e1" are 12; anything else is refused |
| `zeros = "strip"` | "0012" is "12", also where letters follow |

Several columns are one id. Their texts are joined so that different lists of texts give different ids.

`canonical` is coarser than any of this. Pseudonyms that outlive a session are made of it, so that the same record
keeps its pseudonym when a file is saved in another format.
"""

from __future__ import annotations

import json
import numbers
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from secure_sccvfl.protocols.errors import InputError

_SHOWN = 3
"""So many findings stand in a message."""
_GAPS = ("NAType", "NaTType")
"""What pandas puts where there is no value."""
_EXACT = 1 << 53
"""From here on, a floating-point number stands for several whole ones."""
_LONGEST_NUMBER = 64
"""Digits of an id that is a number: "1e999999999" is a mistake."""


_WORDS: Mapping[str, tuple[object, ...]] = {
    "trim": (True, False),
    "case": ("keep", "lower"),
    "zeros": ("keep", "strip"),
    "number": (True, False),
}
"""What a description may say besides the columns."""


@dataclass(frozen=True)
class IdRule:
    """The columns that make up the id of a record, and the differences in spelling that do not matter."""

    columns: tuple[str, ...]
    trim: bool = True
    fold_case: bool = False
    number: bool = False
    drop_leading_zeros: bool = False

    def __post_init__(self) -> None:
        if not self.columns or not all(isinstance(name, str) and name for name in self.columns):
            raise InputError(f"an id needs the name of one column or more, not {self.columns}")
        if len(set(self.columns)) < len(self.columns):
            raise InputError(f"an id names a column twice: {', '.join(self.columns)}")

    @classmethod
    def of(cls, entry: str | Mapping[str, Any]) -> IdRule:
        """From a description: the name of a column, or a table with `columns` and the differences to ignore."""
        if isinstance(entry, str):
            return cls((entry,))
        if not isinstance(entry, Mapping) or "columns" not in entry or not set(entry) <= {"columns", *_WORDS}:
            raise InputError(f"id must be the name of a column, or a table with columns and {', '.join(_WORDS)}")
        if not isinstance(entry["columns"], list | tuple):
            raise InputError(f"id: columns must be a list of names, not {entry['columns']!r}")
        for word, values in _WORDS.items():
            if word in entry and entry[word] not in values:
                raise InputError(f"id: {word} must be {' or '.join(map(_as_toml, values))}, not {entry[word]!r}")
        return cls(
            tuple(entry["columns"]),
            entry.get("trim", True),
            entry.get("case") == "lower",
            entry.get("number", False),
            entry.get("zeros") == "strip",
        )

    @property
    def name(self) -> str:
        """The name of the id column that the rule makes."""
        return "+".join(self.columns)

    @property
    def plain(self) -> bool:
        """Whether it is only the name of a column."""
        return self == IdRule(self.columns) and len(self.columns) == 1

    @property
    def words(self) -> str:
        """The rule for people, in one line."""
        switches = {
            "spaces at both ends kept": not self.trim,
            "upper and lower case alike": self.fold_case,
            "written as whole numbers": self.number,
            "leading zeros dropped": self.drop_leading_zeros,
        }
        columns = ("column " if len(self.columns) == 1 else "columns ") + ", ".join(map(repr, self.columns))
        return ", ".join([columns, *(what for what, on in switches.items() if on)])

    def apply(self, table: Mapping[str, Iterable[object]], owner: str) -> list[str]:
        """The id of every record of a party's table (columns by name), in order.

        Raises InputError, for this party's own people, if one cannot be used.
        """
        if lost := [name for name in self.columns if name not in table]:
            raise InputError(f"{owner}: no id column {lost[0]!r}; available: {', '.join(map(str, table))}")
        parts = [self._texts(table[name], f"{owner}, id column {name!r}") for name in self.columns]
        if len(parts) == 1:
            ids = parts[0]
        else:
            ids = [json.dumps(texts, ensure_ascii=False) for texts in zip(*parts, strict=True)]
        check_distinct(ids, owner)
        return ids

    def id_of(self, written: str) -> str | None:
        """The id that a file writes like this; of several columns, as a list in JSON. None if it is none."""
        if len(self.columns) == 1:
            return self._text(written) or None
        try:
            ids = [self._text(part) for part in json.loads(written)]
        except (ValueError, TypeError):
            return None
        return json.dumps(ids, ensure_ascii=False) if len(ids) == len(self.columns) and all(ids) else None

    def _texts(self, column: Iterable[object], where: str) -> list[str]:
        read = [self._text(value) for value in column]
        for what, odd in (
            ("no id", ""),
            ("a number that is not whole, or has lost digits,", None),
        ):
            if rows := [row for row, text in enumerate(read, start=1) if text == odd]:
                raise InputError(f"{where}: {what} in {_rows(rows)}")
        return [text for text in read if text is not None]

    def _text(self, value: object) -> str | None:
        """One cell by this rule; "" for a gap, None for what should be an integer and is none."""
        plain = _plain(value)
        if plain is None:
            return None
        text = unicodedata.normalize("NFC", plain)
        if self.trim or self.number or not text.strip():
            text = text.strip()
        if self.fold_case:
            text = unicodedata.normalize("NFC", text.casefold())
        if self.number and text:
            return _whole(text)
        if self.drop_leading_zeros:
            text = text.lstrip("0") or text[-1:]
        return text


def canonical(text: str) -> str:
    """One form of all ways to write an id: compatible characters, case, white space and invisible characters.

    Ids of two records may have the same canonical form. Whoever uses it must be safe then: a budget counts both as
    one record, and so charges too much rather than too little.
    """
    seen = "".join(c for c in unicodedata.normalize("NFKC", text) if not _invisible(c))
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", seen).casefold())
    return "".join(c for c in folded if not (c.isspace() or _invisible(c)))


_IGNORED = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, *range(0x180B, 0x1810), *range(0xFE00, 0xFE10)}
"""Characters that Unicode calls ignorable and that are no format characters: fillers and variation selectors."""


def _invisible(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf") or ord(c) in _IGNORED or 0xE0100 <= ord(c) <= 0xE01EF


def _as_toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f'"{value}"'


def _plain(value: object) -> str | None:
    """A cell as text, for any type: a table of numbers with gaps holds 7 as 7.0. None if digits may be lost."""
    if value is None or type(value).__name__ in _GAPS:
        return ""
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        number = float(value)
        if number != number:
            return ""
        if number.is_integer():
            return str(int(number)) if abs(number) < _EXACT else None
    return str(value)


def _whole(text: str) -> str | None:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > _LONGEST_NUMBER or number != number.to_integral_value():
        return None
    return str(int(number))


def check_distinct(ids: Sequence[str], owner: str) -> None:
    """Raise InputError if an id occurs twice; the message names rows, counted from the first record."""
    if len(set(ids)) == len(ids):
        return
    first: dict[str, int] = {}
    twice = [(before, row) for row, name in enumerate(ids, start=1) if (before := first.setdefault(name, row)) != row]
    shown = ", ".join(f"{before} and {row}" for before, row in twice[:_SHOWN])
    more = f" and {len(twice) - _SHOWN} more" if len(twice) > _SHOWN else ""
    raise InputError(f"{owner}: the same id occurs twice, in rows {shown}{more}: every record needs its own")


def _rows(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if len(numbers) > _SHOWN else "")
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}"
