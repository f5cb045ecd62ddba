"""The Statistics seam: noisy, charged statistics of s, in plaintext or in secret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from accounting.events import Sensitivity
from secure_sccvfl.data.party import AtHolder

Arrays = Mapping[str, np.ndarray]
"""Columns of each feature, by its name."""
Groups = Sequence[AtHolder]
"""For each protected attribute: the records' groups, at its holder."""
Counts = Sequence[int]
"""For each protected attribute: how many groups there are."""
Tables = tuple[dict[str, np.ndarray], ...]
"""For each protected attribute: a table of columns by groups for each feature."""
Widths = Mapping[str, int] | int | tuple[str, ...] | None
"""What a release is about: columns of features by name, a number for each of all, bins of these, or bins of all."""


class Opened(NamedTuple):
    """What all are told about one attribute for the default score (`discovery.projected`), of the mean noisy table N.

    squares: |N P|^2 of every feature. marginals: |N 1|^2. sizes: noisy records of each group.
    """

    squares: Mapping[str, float]
    marginals: Mapping[str, float]
    sizes: np.ndarray


@dataclass(frozen=True)
class Clipped:
    """Noisy tables that were scaled to one length, by attribute, and the deviation of their noise.

    `counts`: how many records one of their units may stand for. A table's own length stays secret, so it is the
    ratio for a length in the middle of what is possible.
    """

    tables: Tables
    deviation: float
    counts: float


class Statistics(Protocol):
    """What discovery needs: noisy, charged statistics of s, and scores told to all."""

    def group_sums(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str, sensitivity: float, widths: Widths = None
    ) -> Tables:
        """Noisy sums over records of each column by group, one result per protected attribute.

        Columns are whole numbers, none negative. Keys are feature names. Each result (columns x groups) goes to the
        owner of that feature alone. All of it is one release. `sensitivity` bounds the l2 norm of what one record
        adds to all sums, an equal part of its square for each feature and attribute. A replaced record moves the
        sums by sqrt(2) times that. `widths`: public columns of all parties' features in this release, if they are
        not the bins of all features. A number is that many for each of them; names are features with their bins.
        """
        ...

    def clipped_sums(self, columns: Arrays, groups: Groups, counts: Counts, name: str, length: float) -> Clipped:
        """Noisy tables of one-hot columns by group, each scaled to `length` first, as in the paper.

        A table has all groups of all attributes side by side. It goes to the owner of its feature alone. All of it
        is one release, priced as what it is (`accounting.paper`).
        """
        ...

    def residual_dependence(
        self, columns: Arrays, groups: Groups, counts: Counts, name: str
    ) -> tuple[dict[str, float], ...]:
        """Noisy HSIC of each feature's kernel features (rows of norm at most 1) with each attribute.

        One number per feature, to its owner alone; all of it is one release (`secure_sccvfl.discovery.hsic`).
        """
        ...

    def projected(
        self, tables: Tables, releases: int, counts: Counts, tabled: tuple[str, ...] = ()
    ) -> tuple[Opened, ...]:
        """For each attribute what is opened about every feature of all parties; it follows from noisy tables alone.

        `tables`: the means of so many releases, of the features of this process. `tabled`: the features of all
        parties that have one; empty: all.
        """
        ...

    def bins(self, tables: Tables, tabled: tuple[str, ...] = ()) -> Mapping[str, int]:
        """The public number of bins of every such feature of all parties."""
        ...

    def deviation(self, sensitivity: float | Sensitivity) -> float:
        """Standard deviation of the noise in a release of this sensitivity, known to all; a number: of counts."""
        ...

    def publish(self, name: str, values: Mapping[str, float]) -> dict[str, float]:
        """Every party announces these named numbers to all (scores, counts); returns those of all parties.

        Only for values that are public or follow from a noisy release; they are declared, not charged.
        """
        ...
