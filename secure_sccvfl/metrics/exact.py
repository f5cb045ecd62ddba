"""What a model is worth, computed in secret and opened exactly: rates, means and gaps of the held-out part.

Before: shares of the logits of test records and of their edited copies. The label and s are at their holders. Row
numbers and weights of the copies are public. After: every party knows the numbers in `metric_names`, and no
decision, logit, label or group of a record. Decisions cost one comparison each, the gaps one division per group.

Exact figures are not private: two of them about sets that differ by one record tell about that record. They are for
public data, and for consortia that agreed to them beforehand (`evaluation = "exact"`). All others use
`secure_sccvfl.metrics.noisy`. Floors hold here too: a rate over fewer than `min_group` records of a group takes no
part in a gap. This is decided in secret; only the fact that they are too few is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocols import ring
from protocols.operations import arithmetic, comparison, series
from protocols.records.releases import Release
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.metrics.group_rates import RATES, gaps_of
from secure_sccvfl.privacy.kinds import Facts
from secure_sccvfl.privacy.releases import EXACT_EVALUATION
from secure_sccvfl.training.sharing import decisions, share_groups, share_label

LOSS_BOUND = 50.0
"""Logits beyond this count as this much in the log loss."""


@dataclass(frozen=True)
class Copies:
    """Edited copies of test records: copy i is of record source[i] and counts weight[i]. Public."""

    source: np.ndarray
    weight: np.ndarray


def enough(rate: str, group: int) -> str:
    """The name of the bit that says whether a rate of a group rests on enough records."""
    return f"enough {rate} {group}"


def metric_names(task: Task, judges: Sequence[str], groups: int) -> tuple[str, ...]:
    """The names of the opened numbers, in order."""
    whole = ["mse", "variance"] if task == "regression" else ["acc", "logloss", "variance"]
    if task == "binary":
        whole += ["positive_rate", *(f"{rate}_gap" for rate in RATES)]
        whole += [enough(rate, group) for rate in RATES for group in range(groups)]
    each = ["scg"] if task == "regression" else ["scg", "fr"]
    return (*whole, *(f"{metric}_{judge}" for judge in judges for metric in each))


def exact_release(parties: int, task: Task, judges: Sequence[str], groups: int) -> Release:
    names = metric_names(task, judges, groups)
    told = [name for name in names if not name.startswith("enough")]
    facts = Facts({rank: {} for rank in range(parties)}, sizes={"figures": len(names)})
    (made,) = EXACT_EVALUATION.releases(facts, detail=f"{', '.join(told)}; which rates rest on too few records")
    return made


def exact_figures(opened: Mapping[str, float], judges: Sequence[str], groups: int) -> dict[str, Any]:
    """Opened numbers in the form of reports: metrics, and the rates of groups that rest on too few records."""
    out = dict(opened)
    spread = max(out.pop("variance"), 0.0) ** 0.5
    if "mse" in out:
        out["rmse"] = max(out.pop("mse"), 0.0) ** 0.5
    for judge in judges:
        out[f"scg_norm_{judge}"] = out[f"scg_{judge}"] / spread if spread > 1e-6 else 0.0
    told: list[dict[str, Any]] = []
    if "positive_rate_gap" in out:
        known = {rate: [out.pop(enough(rate, g)) > 0.5 for g in range(groups)] for rate in RATES}
        gaps = {rate: gap for rate in RATES for gap in [out.pop(f"{rate}_gap")] if sum(known[rate]) > 1}
        told = [{"too_few": [rate for rate in RATES if not known[rate][g]]} for g in range(groups)]
        out |= gaps_of(gaps)
    return {"metrics": out, "groups": told}


class SecureEvaluation:
    """Evaluates shared logits (records x outputs, FRACTION_BITS) of one test part."""

    def __init__(
        self, session: Session, task: Task, label_holder: int, group_holder: int, min_group: int = 1
    ) -> None:
        self.session, self.task, self.min_group = session, task, min_group
        self.label_holder, self.group_holder = label_holder, group_holder

    def metrics(
        self, logits: Words, label: AtHolder, groups: AtHolder, count: int, copies: Mapping[str, tuple[Words, Copies]]
    ) -> dict[str, float]:
        """`copies`: by judge, shares of the logits of edited copies. `count`: number of groups."""
        party, rows = self.session.party, len(logits)
        outputs = logits.shape[1]
        found: dict[str, Words] = {}
        shown: Words | None = None
        if self.task == "regression":
            target = self.target(label, rows)
            found["mse"] = self._mean(arithmetic.square(party, logits - target))
        else:
            shown, truth = self.decisions(logits), self.truth(label, rows, outputs)
            found["acc"] = self._mean(np.left_shift(self.right(shown, truth), WIDE_BITS), rows)
            found["logloss"] = self._log_loss(logits, truth)
        found["variance"] = self._variance(logits)
        if self.task == "binary" and shown is not None:
            found["positive_rate"] = self._mean(np.left_shift(shown, WIDE_BITS), rows)
            found |= self._gaps(shown, truth, groups, count)
        for judge, (edited, of) in copies.items():
            found |= {f"{k}_{judge}": v for k, v in self._stability(logits, shown, edited, of).items()}
        names = metric_names(self.task, list(copies), count)
        opened = self.session.open(
            self.session.wrap(np.concatenate([found[name] for name in names]), WIDE_BITS),
            self.session.declared(EXACT_EVALUATION.name),
        )
        if opened is None:
            raise ValueError("the evaluation must go to every party")
        return dict(zip(names, opened.tolist(), strict=True))

    def target(self, label: AtHolder, rows: int) -> Words:
        """Shares of a label that is a number, FRACTION_BITS."""
        return share_label(self.session, label, self.label_holder, (rows, 1), FRACTION_BITS)

    def truth(self, label: AtHolder, rows: int, outputs: int) -> Words:
        """Shares of the class: a bit, or a one-hot of several."""
        return share_label(self.session, label, self.label_holder, (rows, outputs), 0)

    def right(self, shown: Words, truth: Words) -> Words:
        """Shares of 1 for each record whose decision matches its label; several columns add up to it."""
        both = arithmetic.bilinear(self.session.party, "mul", shown, truth)
        if shown.shape[1] > 1:
            return both
        return 2 * both - shown - truth + (1 if self.session.rank == 0 else 0)

    def group_counts(self, shown: Words, truth: Words, groups: AtHolder, count: int) -> Words:
        """Shares of the sums by group: records, positive decisions, positive labels, both (4 x groups)."""
        party, rows = self.session.party, len(shown)
        member = share_groups(self.session, groups, self.group_holder, (rows, count))
        both = arithmetic.bilinear(party, "mul", shown, truth)
        cells = np.hstack([shown, truth, both])
        products = arithmetic.bilinear(party, "mul", member[:, :, None], cells[:, None, :]).sum(axis=0)
        return np.vstack([member.sum(axis=0), products.T])

    def flipped(self, shown: Words, edited: Words, source: np.ndarray) -> Words:
        """Shares of 1 for each edited copy whose decision differs from its record's."""
        after, before = self.decisions(edited), shown[source]
        same = arithmetic.bilinear(self.session.party, "mul", after, before)
        if shown.shape[1] == 1:
            return after + before - 2 * same
        return -same.sum(axis=1, keepdims=True) + (1 if self.session.rank == 0 else 0)

    def size(self, values: Words) -> Words:
        """Shares of absolute values."""
        party = self.session.party
        return values - 2 * arithmetic.bilinear(party, "mul", comparison.negative(party, values), values)

    def decisions(self, logits: Words) -> Words:
        """One-hot of the largest logit, or for a single one the bit [logit > 0]; whole numbers."""
        return decisions(self.session, logits)

    def _log_loss(self, logits: Words, truth: Words) -> Words:
        party = self.session.party
        if self.task == "multiclass":
            chances = words_of(self.session.wrap(logits, FRACTION_BITS).log_softmax(dim=1))
            of_truth = arithmetic.bilinear(party, "mul", truth, chances)
            return self._mean(-np.left_shift(of_truth, WIDE_BITS - FRACTION_BITS), len(logits))
        inside = words_of(self.session.clamp(self.session.wrap(logits, FRACTION_BITS), LOSS_BOUND))
        even = series.evaluate(party, "log_cosh", inside, LOSS_BOUND)
        sign = 2 * truth - (1 if self.session.rank == 0 else 0)
        of_truth = arithmetic.bilinear(party, "mul", sign, inside)
        return self._mean(even - np.left_shift(of_truth, WIDE_BITS - FRACTION_BITS - 1))

    def _variance(self, logits: Words) -> Words:
        party, rows = self.session.party, len(logits)
        middle = arithmetic.divide(party, logits.sum(axis=0), rows)
        return self._mean(arithmetic.square(party, logits - middle), rows)

    def _gaps(self, shown: Words, truth: Words, groups: AtHolder, count: int) -> dict[str, Words]:
        """Widest differences between groups of each rate, over groups with enough records; and which these are."""
        party = self.session.party
        size, positive, true, hit = self.group_counts(shown, truth, groups, count)
        above = np.stack([positive, hit, positive - hit])
        below = np.stack([size, true, size - true])
        first = 1 if party.rank == 0 else 0
        few = comparison.negative(party, below - first * self.min_group)
        known = first - few
        rates = self._ratio(above, below, len(shown))
        found = {
            f"{name}_gap": self._lift(self._widest(*pair)) for name, *pair in zip(RATES, rates, known, strict=True)
        }
        for name, bits in zip(RATES, known, strict=True):
            found |= {enough(name, g): np.left_shift(bits[g : g + 1], WIDE_BITS) for g in range(count)}
        return found

    def _ratio(self, above: Words, below: Words, rows: int) -> Words:
        """Counts divided by counts, FRACTION_BITS; 0 for an empty cell."""
        party = self.session.party
        empty = comparison.negative(party, below - (1 if party.rank == 0 else 0))
        shares = arithmetic.divide(party, np.left_shift(np.stack([above, below + empty]), FRACTION_BITS), rows)
        part, whole = (self.session.wrap(words, FRACTION_BITS) for words in shares)
        return words_of(part * whole.reciprocal())

    def _widest(self, rates: Words, known: Words) -> Words:
        """Largest pairwise difference between groups that are known; 0 if there is no such pair."""
        above, below = np.tril_indices(len(rates), -1)
        party = self.session.party
        both = arithmetic.bilinear(party, "mul", known[above], known[below])
        sizes = arithmetic.bilinear(party, "mul", both, self.size(rates[above] - rates[below]))
        widest = sizes[:1]
        for k in range(1, len(sizes)):
            widest = self._widest_of(widest, sizes[k : k + 1])
        return widest

    def _widest_of(self, a: Words, b: Words) -> Words:
        party = self.session.party
        more = comparison.negative(party, a - b)
        return a + arithmetic.bilinear(party, "mul", more, b - a)

    def _stability(self, logits: Words, shown: Words | None, edited: Words, of: Copies) -> dict[str, Words]:
        """Weighted mean gap between logits of copies and records, and share of decisions that flip."""
        size = self.size(edited - logits[of.source])
        weight = ring.encode(of.weight / of.weight.sum() * len(of.weight), FRACTION_BITS)[:, None]
        found = {"scg": self._mean(weight * size, len(of.weight))}
        if shown is not None:
            flipped = self.flipped(shown, edited, of.source)
            found["fr"] = self._mean(np.left_shift(weight * flipped, WIDE_BITS - FRACTION_BITS), len(of.weight))
        return found

    def _mean(self, values: Words, rows: int | None = None) -> Words:
        """Sum over everything, divided by the number of rows."""
        total: Words = values.reshape(-1).sum(keepdims=True)
        return arithmetic.divide(self.session.party, total, len(values) if rows is None else rows)

    @staticmethod
    def _lift(words: Words) -> Words:
        return np.left_shift(words, WIDE_BITS - FRACTION_BITS)
