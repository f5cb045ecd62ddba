"""What-if answers under MPC: decisions in other groups, and the columns that weigh most for and against a decision.

**Decisions in other groups.** Before: each owner has its columns of new records, its noisy tables and a public
encoder; the holder of s has s of these records; the weights are shared. Each owner makes, for every group g that a
record may be in, each step j = 1, ..., groups - 1 and each of `DRAWS` draws, the change of its encoding when its
mediators move from g to the group j positions after g (around the list) by the generator of the run. Its randomness
is its own and fresh. The secret one-hot of s selects among the g (`SecureEngine.selected`). The logits of all copies
are compared with those of the records, and of the draws of one step the majority decides. After: shares of one
decision for each record and step.

| step | rounds |
|---|---|
| select by s | 1 for each owner of mediators and 2^21 ring elements |
| logits of the copies | 2 |
| compare all copies | 0: in the comparison of the caller, which decides records |
| compare the votes | 6; for more classes those of argmax |

An owner sends rows x groups x columns ring elements of its mediators under its mask to the holder, for rows x
(groups - 1) x draws rows; the holder sends the one-hot of as many rows under its mask to each owner.

What the receiver learns, beyond the decision: for each step one decision of the majority, no count and no logit. A
step counts from the person's own group, which the receiver does not know unless it holds s. So an answer names no
group: if it named the group, a decision that differs would reveal that the person is not in it, and of two groups s
itself. What can be inferred: a decision that differs says that the person has mediators that move, towards a decision
that members of the other group get more often. Couplings of tables move one way, so of two groups the direction of a
difference gives s to whoever knows which group gets more of a decision. Owner and holder see masked values only, and
the dealer shapes.

**Reasons.** Before: as for logits. A column c (a feature with all its encoded columns) contributes w_c . e_c to the
logit, where encodings are centred, on public values if the head is private. The contributions are the logits of a
head with a column for each feature, of which w_c is the only part that is not 0: no round more than the logits. All
pairs are compared, and each contribution with 0. A column is among the three for the second class if it contributes
more than 0 and fewer than three contribute more, and so for the first class. After: for each record and column +1,
-1 or 0, shared. Opened they are two sets of at most three names: no order and no value.

| step | rounds |
|---|---|
| compare pairs and signs: d (d + 3) / 2 values of a record with d columns | 0: in the comparison of decisions |
| compare ranks with three: 2 d values | 0: in that of the votes; 6 without other groups |
| product of both bits | 1 |

For so many records that they do not fit memory at once, both comparisons take six rounds for each part.

Of two equal contributions the column that comes first in the description counts as the larger. The names are public;
which of them weigh most follows from values of all parties, so a session has to ask for them (`session.reasons`).
Every value that is opened on the way is under a uniform mask that is used once, inside CrypTen's operators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.metrics.exact import SecureEvaluation, Shared, in_one_call
from secure_sccvfl.models.encoders import plain_columns
from secure_sccvfl.protocols.session.runtime import Session, crypten

DRAWS = 5
"""Draws of the mediators for each other group: odd, so that two classes have a majority."""
TOP = 3
"""How many columns are named for a decision, and against it."""
_COMPARED = 1 << 19  # values at once: each takes some 200 bytes of memory


def majorities(
    evaluation: SecureEvaluation, decided: Shared, rows: int, *values: Shared
) -> tuple[Shared, list[Shared]]:
    """The decision of most draws, of several classes of the first with most (rows x steps * outputs); whole numbers.

    decided: decisions of the copies: all rows for each draw, for each step. Also where whole `values` are negative.
    """
    outputs = decided.size(1)
    votes = decided.reshape(-1, DRAWS, rows * outputs).sum(1).reshape(-1, outputs)
    if outputs == 1:
        most, negative = evaluation.compared(2 * votes - DRAWS, *values)
    else:  # no two numbers of a row are equal
        most, negative = evaluation.compared(votes * outputs - torch.arange(outputs), *values)
    by_step = most.reshape(-1, rows, outputs)
    return crypten.cat([by_step[step] for step in range(by_step.size(0))], dim=1), negative


def reason_names(layouts: Mapping[int, Layout], dropped: tuple[str, ...]) -> list[str]:
    """The columns that can be reasons, in the order of the description: all inputs of the model."""
    return [name for layout in layouts.values() for name in layout.names if name not in dropped]


def weights_by_feature(weight: Shared, layouts: Mapping[int, Layout], dropped: tuple[str, ...]) -> Shared:
    """Weights of a head with one output as those of a head with an output for each column; no communication."""
    blocks = [block for layout in layouts.values() for block in layout.blocks]
    owners = np.repeat(np.arange(len(blocks)), [plain_columns(block) for block in blocks])
    seen = [at for at, block in enumerate(blocks) if block.feature.name not in dropped]
    return weight * torch.from_numpy((owners[:, None] == np.array(seen)).astype(np.int64))


@dataclass(frozen=True, repr=False, eq=False)
class Strongest:
    """Which columns weigh most, in two comparisons that a caller may share (records x columns).

    signs: of `values`, 1 where one is negative. ranks_of: of those, what is negative where a rank is below `TOP`.
    """

    contributions: Shared

    @property
    def _pairs(self) -> tuple[np.ndarray, np.ndarray]:
        first, second = np.triu_indices(self.contributions.size(1), 1)
        return first, second

    @property
    def values(self) -> tuple[Shared, Shared, Shared]:
        """Differences of pairs, and contributions with either sign."""
        first, second = self._pairs
        return self.contributions[:, first] - self.contributions[:, second], -self.contributions, self.contributions

    def ranks(self, below: Shared) -> Shared:
        """Ranks from above and, next to them, from below, less `TOP`; whole numbers."""
        rows, count = self.contributions.size()
        first, second = self._pairs
        duels = crypten.cat([below, 1 - below], dim=1)
        # Of each column: the bits that are 1 where the other one is larger.
        larger = np.zeros((count, count - 1), int)
        for one in range(count):
            larger[one] = [*(np.flatnonzero(first == one)), *(len(first) + np.flatnonzero(second == one))]
        above = duels[:, larger.reshape(-1)].reshape(rows, count, count - 1).sum(2)
        return crypten.cat([above, count - 1 - above], dim=1) - TOP

    @staticmethod
    def named(among: Shared, raises: Shared, lowers: Shared) -> Shared:
        """+1 if a column is among the `TOP` largest contributions above 0, -1 for those below 0; else 0."""
        named = among * crypten.cat([raises, lowers], dim=1)
        return named[:, : raises.size(1)] - named[:, raises.size(1) :]


def together_fits(rows: int, columns: int) -> bool:
    """Whether all comparisons of so many records fit memory at once."""
    return rows <= _rows_at_once(columns)


def _rows_at_once(columns: int) -> int:
    return max(1, _COMPARED // (columns * (columns - 1) // 2 + 2 * columns))


def strongest(session: Session, contributions: Shared) -> Shared:
    """`Strongest` by itself, some rows at a time: whole numbers (records x columns)."""
    each, parts = _rows_at_once(contributions.size(1)), []
    with session.measure("reasons"):
        for at in range(0, contributions.size(0), each):
            part = Strongest(contributions[at : at + each])
            below, *signs = in_one_call(lambda value: value < 0, *part.values)
            parts.append(part.named(part.ranks(below) < 0, *signs))
    return crypten.cat(parts)
