"""The alignment interface: a table that all parties have in common, and the rows of a party's own records in it.

Three implementations: `pre_aligned.py` (equal lists), `psi.py` (private set intersection; option `revealed`) and
`hidden_intersection.py` (option `hidden`). Ids come as text by a declared rule (ids.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from secure_sccvfl.protocols.alignment.ids import check_distinct
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.errors import InputError, ProtocolError
from secure_sccvfl.protocols.records.releases import ANY, Release

AlignKind = Literal["exact", "hidden", "revealed"]
EQUAL, UNION = "alignment", "alignment: places"
SIZES, COMMON = "alignment: records of each party", "alignment: common records"
"""Names of the releases: of pre-aligned lists, of a hidden intersection, and the last two of PSI."""
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class AlignmentError(ProtocolError):
    """The parties do not hold the same records, or too few of them."""


class Alignment(Protocol):
    """Run by all parties together, each with its own ids."""

    def align(self, ids: Iterable[str]) -> Aligned:
        """The common table. Raises at this party, before anything is sent, if its ids cannot be used."""
        ...


def checked(ids: Iterable[str]) -> list[str]:
    """The ids as a list; raises unless they are text and each occurs once. The message speaks of rows, not of ids."""
    names = list(ids)
    if odd := next((type(name).__name__ for name in names if type(name) is not str), None):
        raise InputError(f"an id is of type {odd}: ids are compared as text, so normalise them first")
    check_distinct(names, "this party")
    return names


def releases(parties: int, *, revealed: bool) -> list[Release]:
    """What an alignment opens, for the plan of a session."""
    everyone = tuple(range(parties))
    if not revealed:
        return [Release(UNION, everyone, (ANY,), "the size of the common table", times=1)]
    return [
        Release(SIZES, everyone, (ANY,), "sizes of the lists that are compared"),
        Release(COMMON, everyone, (ANY,), "the records that all parties hold, each by its own ids"),
    ]


def rows_of(count: int, chunk: int) -> Sequence[slice]:
    return [slice(at, min(at + chunk, count)) for at in range(0, count, chunk)]
