"""What an answer about a new person consists of: numbers as they are opened and kept on record, and words.

A person is answered once, so an answer on record has the parts that were asked for then. It can give any of them
again and no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from secure_sccvfl.metrics.rates import certified_words

CERTIFICATE, WHAT_IF, REASONS = PARTS = ("certificate", "what-if", "reasons")
"""What an answer may have besides the decision, in the order in which it has them."""
OTHERS, WEIGHS = "decision ", "weighs most "
"""How the titles of columns with decisions in other groups, and with reasons, begin."""
ONCE = "a person is answered once"
NO_SCORES = f"was decided before without scores: {ONCE}"
LACKS = {
    CERTIFICATE: f"was decided before without a certificate: {ONCE}",
    WHAT_IF: f"was decided before without the decisions in other groups: {ONCE}",
    REASONS: f"was decided before without reasons: {ONCE}",
}


@dataclass(frozen=True)
class Contents:
    """What is asked for.

    decision: how many numbers the decision has, or the scores. widths: of each part that this model may give.
    asked: the parts that are asked for.
    """

    scores: bool
    decision: int
    widths: Mapping[str, int]
    asked: Sequence[str] = ()

    @property
    def kind(self) -> float:
        """What an answer on record begins with: 1 with scores, plus 2, 4 and 8 for the parts."""
        return float(self.scores + sum(2 << PARTS.index(part) for part in self.asked))

    def slices(self, parts: Sequence[str]) -> dict[str, slice]:
        """Where each of these parts is, after the decision."""
        ends = np.cumsum([self.decision, *(self.widths[part] for part in parts)]).tolist()
        return {part: slice(*pair) for part, pair in zip(parts, pairwise(ends), strict=True)}

    def lacks(self, earlier: Sequence[float]) -> str:
        """Why an answer on record is none to what is asked for now; "" if it is one."""
        if self.scores and not earlier[0] % 2:
            return NO_SCORES
        there = self._parts(earlier)
        return next((LACKS[part] for part in self.asked if part not in there), "")

    def taken(self, earlier: Sequence[float]) -> list[float]:
        """From an answer on record, what is asked for now."""
        values, at = list(earlier[1:]), self.slices(self._parts(earlier))
        return values[: self.decision] + [value for part in self.asked for value in values[at[part]]]

    @staticmethod
    def _parts(earlier: Sequence[float]) -> list[str]:
        return [part for number, part in enumerate(PARTS) if int(earlier[0]) & 2 << number]


def certificate_words(bit: bool, mediators: Sequence[str]) -> str:
    """What the receiver reads of a decision: that it cannot change through the mediators, or that it can."""
    stays = certified_words(mediators)
    return stays if bit else f"not certified: {stays.replace('cannot', 'can').partition(', whatever')[0]}"


def other_groups(
    decided: np.ndarray, others: np.ndarray, groups: Sequence[str], own: np.ndarray | None
) -> dict[str, list[str]]:
    """Columns with the decisions in other groups. They name the groups for the holder of s alone.

    decided: in words, of each record. others: that after each step from its own group (records x steps). own: at the
    holder of s the group of each record.
    """
    steps = others.shape[1]
    if own is None:
        titles = [f"{OTHERS}in another group ({step + 1} of {steps})" for step in range(steps)]
        if steps == 1:
            titles = [f"{OTHERS}in the other group"]
        return {title: column.tolist() for title, column in zip(titles, others.T, strict=True)}
    by_step, rows = np.column_stack([decided, others]), np.arange(len(decided))
    return {f"{OTHERS}as {name}": by_step[rows, (at - own) % len(groups)].tolist() for at, name in enumerate(groups)}


def reasons(codes: np.ndarray, marks: np.ndarray, names: Sequence[str]) -> dict[str, list[str]]:
    """Columns with the names that weigh most for and against each decision of two classes.

    marks: 1 for a column that weighs most for the second class, -1 for the first (records x columns).
    """
    towards = np.where(codes[:, None] > 0, marks, -marks)
    return {
        f"{WEIGHS}{side} it": [", ".join(np.array(names)[row * sign > 0.5]) for row in towards]
        for side, sign in (("for", 1), ("against", -1))
    }
