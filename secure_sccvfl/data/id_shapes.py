"""How a table writes its ids, as a draft states it, so that parties compare before anything is charged.

A shape says which characters ids are made of, how long they are, whether some begin with a zero, and their case. It
names no id. Two parties whose shapes differ would find nobody in common, and learn it only from a charged release.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from secure_sccvfl.data.features import DataError, check_entries, counted

RULES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "strip-zeros": ("0012 and 12 are one person", {"zeros": "strip"}),
    "ignore-case": ("AB and ab are one person", {"case": "lower"}),
    "whole-numbers": ("12.0, 0012 and 12 are one person", {"number": True}),
}
"""Rules for ids that `sccvfl init --merge` offers: what each says, and how a description says it."""
AS_THEY_ARE = "as-they-are"
_WANTED = {"characters": str, "shortest": int, "longest": int, "zeros": bool, "case": str}


@dataclass(frozen=True)
class IdShape:
    characters: str
    shortest: int
    longest: int
    zeros: bool
    case: str

    @classmethod
    def of_ids(cls, ids: Iterable[str]) -> IdShape:
        """The shape of these ids, of which there is one or more, none empty."""
        kept = list(ids)
        text = "".join(kept)
        kinds = {"digits": any(c.isdigit() for c in text), "letters": any(c.isalpha() for c in text)}
        kinds["other characters"] = any(not c.isalnum() for c in text)
        lengths = {len(name) for name in kept}
        upper, lower = text != text.lower(), text != text.upper()
        case = "mixed" if upper and lower else "upper" if upper else "lower" if lower else ""
        characters = " and ".join(kind for kind, seen in kinds.items() if seen)
        return cls(characters, min(lengths), max(lengths), any(name[0] == "0" and name != "0" for name in kept), case)

    @classmethod
    def of(cls, entry: Any, where: str) -> IdShape:
        """From a draft."""
        if not isinstance(entry, dict) or set(entry) != set(_WANTED):
            raise DataError(f"{where}: id_shape has {', '.join(_WANTED)}, as `sccvfl init` writes it")
        check_entries(f"{where}: id_shape", entry, _WANTED, {})
        return cls(**entry)

    def as_entry(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        long = f"{self.shortest}" if self.shortest == self.longest else f"{self.shortest} to {self.longest}"
        more = [f"{self.case} case" * bool(self.case), "some begin with 0" if self.zeros else "none begins with 0"]
        return f"{long} {self.characters} ({', '.join(filter(None, more))})"

    def fits(self, other: IdShape, rules: Collection[str] = ()) -> bool:
        """Whether ids of both shapes can be of the same people, under these rules."""
        numbers = "whole-numbers" in rules and "letters" not in self.characters + other.characters
        if numbers and (self.characters != other.characters or self.zeros or other.zeros):
            return True
        if self.characters != other.characters:
            return False
        if "ignore-case" not in rules and {self.case, other.case} == {"upper", "lower"}:
            return False
        padded = self.zeros or other.zeros
        if self.characters == "digits" and padded and "strip-zeros" in rules:
            return True
        if self.shortest > other.longest or other.shortest > self.longest:
            return False
        if self.characters == "digits":
            return self.zeros == other.zeros or (self.shortest, self.longest) == (other.shortest, other.longest)
        return (self.shortest == self.longest) == (other.shortest == other.longest)


def check_shapes(shapes: Mapping[str, IdShape], rules: Collection[str] = ()) -> None:
    """Raise DataError if parties write their ids in ways that cannot match; the message names the rule that helps."""
    if AS_THEY_ARE in rules:
        if len(rules) > 1:
            raise DataError(f"--ids {AS_THEY_ARE} goes with no other rule for ids")
        return
    odd = next(((a, b) for a, b in combinations(shapes, 2) if not shapes[a].fits(shapes[b], rules)), None)
    if odd is None:
        return
    helps = [
        f"--ids {rule} if {means}"
        for rule, (means, _) in RULES.items()
        if rule not in rules and all(a.fits(b, {*rules, rule}) for a, b in combinations(shapes.values(), 2))
    ]
    todo = "; ".join([*helps[:1], f"--ids {AS_THEY_ARE} if they are right as they are; otherwise correct a file"])
    look = "; ".join(f"{party} has {shape.words}" for party, shape in shapes.items())
    raise DataError(f"ids of {counted(len(shapes), 'draft')} look different, so few would match ({look}): {todo}")


def id_entry(column: str, rules: Collection[str]) -> Any:
    """The id in a description: the column, or the rule that makes different ways of writing equal."""
    switches = {key: value for rule, (_, entry) in RULES.items() if rule in rules for key, value in entry.items()}
    return {"columns": [column], **switches} if switches else column
