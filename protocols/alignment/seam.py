"""The alignment interface: a table that all parties have in common, and the rows of a party's own records in it.

`hidden.py` and `revealed.py` implement `Alignment` and pass the same tests; `exact.py` is for equal lists. Ids come
as text by a declared rule (ids.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from protocols.alignment.ids import check_distinct
from protocols.errors import InputError, ProtocolError
from protocols.net.transport import Array
from protocols.records.releases import ANY, Release
from protocols.ring import RingArray

AlignKind = Literal["exact", "hidden", "revealed"]
ABSENT = -1
"""The row of a record that is not in the common table."""
EQUAL, UNION = "alignment", "alignment: places"
SIZES, COMMON = "alignment: records of each party", "alignment: common records"
"""Names of the releases: of `exact` the first, of `hidden` the second, of `revealed` the other two."""
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class AlignmentError(ProtocolError):
    """The parties do not hold the same records, or too few of them."""


@dataclass(frozen=True)
class Aligned:
    """The rows of the common table, and where a party's own records are in it, in the order of its ids.

    shares: this party's shares of whether all parties have a record at a row, where nobody may know that.
    """

    size: int
    places: npt.NDArray[np.int64] = field(repr=False)
    shares: RingArray | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        inside = self.places[self.places != ABSENT]
        if len(np.unique(inside)) < len(inside) or (
            len(inside) and not 0 <= inside.min() <= inside.max() < self.size
        ):
            raise ProtocolError("two records have the same row, or a row is outside the table")

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """For each row of the table, whether this party has a record there."""
        rows = np.zeros(self.size, np.bool_)
        rows[self.places[self.places != ABSENT]] = True
        return rows

    def spread(self, values: Array) -> Array:
        """Values of the own records as rows of the table; zeros where there is no record."""
        table = np.zeros((self.size, *values.shape[1:]), values.dtype)
        kept = self.places != ABSENT
        table[self.places[kept]] = values[kept]
        return table


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
    """The rows of a list in pieces."""
    return [slice(at, min(at + chunk, count)) for at in range(0, count, chunk)]
