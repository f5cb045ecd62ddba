"""What a model is worth, computed in secret and opened exactly: rates, means and gaps of the held-out part.

Before: shares of the logits of test records and of their edited copies. The label and s are at their holders. Row
numbers and weights of the copies are public. After: every party knows the numbers in `metric_names`, and no
decision, logit, label or group of a record. Decisions cost one comparison each, the gaps one division per group, net
flips one product per record and pair of groups.

Exact figures are not private: two of them about sets that differ by one record tell about that record. They are for
public data, and for consortia that agreed to them beforehand (`evaluation = "exact"`). All others use
`secure_sccvfl.metrics.noisy`. Floors hold here too: a rate over fewer than `min_group` records of a group takes no
part in a gap, and a pair of groups that fewer records are moved between takes none in net flips. This is decided in
secret; only the fact that they are too few is told (of net flips: that no pair is left).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protocols import ring
from protocols.operations import arithmetic, comparison, series
from protocols.records.releases import Release
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.metrics.copies import Copies, figures_of_judge
from secure_sccvfl.metrics.group_rates import RATES, gaps_of
from secure_sccvfl.privacy.kinds import Facts
from secure_sccvfl.privacy.releases import EXACT_EVALUATION
from secure_sccvfl.training.sharing import decisions, share_groups, share_held, share_label

LOSS_BOUND = 50.0
"""Logits beyond this count as this much in the log loss."""


def enough(rate: str, of: int | str) -> str:
    """The name of the bit that says whether a rate of a group, or a judge's net flips, rest on enough records."""
    return f"enough {rate} {of}"


def metric_names(task: Task, judges: Sequence[str], groups: int) -> tuple[str, ...]:
    """The names of the opened numbers, in order."""
    whole = ["mse", "variance"] if task == "regression" else ["acc", "logloss", "variance"]
    if task == "binary":
        whole += ["positive_rate", *(f"{rate}_gap" for rate in RATES)]
        whole += [enough(rate, group) for rate in RATES for group in range(groups)]
    for judge in judges:
        told = figures_of_judge(judge, task)
        whole += [f"{metric}_{judge}" for metric in told]
        whole += [enough("net", judge)] if "net" in told else []
    return tuple(whole)


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
        if (gap := out.get(f"scg_{judge}")) is not None:
            out[f"scg_norm_{judge}"] = gap / spread if spread > 1e-6 else 0.0
        if out.pop(enough("net", judge), 1.0) < 0.5:
            del out[f"net_{judge}"]
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
            told = figures_of_judge(judge, self.task)
            if "scg" in told:
                found[f"scg_{judge}"] = self._gap(logits, edited, of)
            if shown is not None:
                after = self.decisions(edited)
                found[f"fr_{judge}"] = self._flips(shown, after, of)
                if "net" in told:
                    pairs = self._pairs(groups, of.target, rows, count)
                    found[f"net_{judge}"], found[enough("net", judge)] = self._net_flips(shown, after, of, pairs)
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
        return self.counts_of(self.member(groups, len(shown), count), shown, truth)

    def member(self, groups: AtHolder, rows: int, count: int) -> Words:
        """Shares of the one-hot of s (rows x groups), whole numbers."""
        return share_groups(self.session, groups, self.group_holder, (rows, count))

    def counts_of(self, member: Words, shown: Words, truth: Words) -> Words:
        """The same sums over any shared membership (rows x sets), whole numbers."""
        party = self.session.party
        both = arithmetic.bilinear(party, "mul", shown, truth)
        cells = np.hstack([shown, truth, both])
        products = arithmetic.bilinear(party, "mul", member[:, :, None], cells[:, None, :]).sum(axis=0)
        return np.vstack([member.sum(axis=0), products.T])

    def flipped(self, shown: Words, after: Words, source: np.ndarray) -> Words:
        """Shares of 1 for each edited copy whose decision `after` differs from its record's."""
        before = shown[source]
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
        """Of several classes each against the rest, summed over classes."""
        party = self.session.party
        inside = words_of(self.session.clamp(self.session.wrap(logits, FRACTION_BITS), LOSS_BOUND))
        even = series.evaluate(party, "log_cosh", inside, LOSS_BOUND)
        sign = 2 * truth - (1 if self.session.rank == 0 else 0)
        of_truth = arithmetic.bilinear(party, "mul", sign, inside)
        return self._mean(even - np.left_shift(of_truth, WIDE_BITS - FRACTION_BITS - 1), len(logits))

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
        return self._quotient(np.left_shift(above, FRACTION_BITS), np.left_shift(below + empty, FRACTION_BITS), rows)

    def _quotient(self, above: Words, below: Words, most: int) -> Words:
        """Numbers divided by larger ones, which are above 0 and at most `most`; all FRACTION_BITS."""
        shares = arithmetic.divide(self.session.party, np.stack([above, below]), most)
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

    def _gap(self, logits: Words, edited: Words, of: Copies) -> Words:
        """Weighted mean gap between logits of copies and records."""
        return self._mean(_weights(of) * self.size(edited - logits[of.source]), len(of.weight))

    def _flips(self, shown: Words, after: Words, of: Copies) -> Words:
        """Weighted share of decisions that flip."""
        flipped = self.flipped(shown, after, of.source)
        return self._mean(np.left_shift(_weights(of) * flipped, WIDE_BITS - FRACTION_BITS), len(of.weight))

    def _pairs(self, groups: AtHolder, target: AtHolder, rows: int, count: int) -> Words:
        """Shares of 1 where a record is of one group and moved to another (records x ordered pairs of groups)."""
        chosen = None
        if self.session.rank == self.group_holder:
            if groups is None or target is None:
                raise ValueError("the holder of s needs it, and the groups that a judge moves records to")
            moved = np.flatnonzero((target >= 0) & (target != groups))
            chosen = np.zeros((rows, count * (count - 1)))
            chosen[moved, (groups * (count - 1) + target - (target > groups))[moved]] = 1
        return share_held(self.session, chosen, self.group_holder, (rows, count * (count - 1)), 0)

    def _net_flips(self, shown: Words, after: Words, of: Copies, pairs: Words) -> tuple[Words, Words]:
        """|P(gain) - P(loss)|, averaged over pairs of groups with enough records; and whether there is one."""
        party, (rows, outputs) = self.session.party, shown.shape
        weight = ring.encode(of.weight, FRACTION_BITS)
        change, whole = np.zeros_like(shown), np.zeros(rows, np.int64)
        np.add.at(change, of.source, weight[:, None] * (after - shown[of.source]))
        np.add.at(whole, of.source, weight)
        sums = arithmetic.bilinear(party, "matmul", np.ascontiguousarray(pairs.T), change)
        # A decision that changes leaves one of several classes and enters another: both count there.
        double = 1 if outputs == 1 else 2
        parts = np.stack([self.size(sums).sum(axis=1), double * (pairs * whole[:, None]).sum(axis=0)])
        first = 1 if party.rank == 0 else 0
        known = first - comparison.negative(party, pairs.sum(axis=0) - first * max(self.min_group, 1))
        above, below = arithmetic.bilinear(party, "mul", parts, known[None, :]).sum(axis=1, keepdims=True)
        none = comparison.negative(party, known.sum(keepdims=True) - first)
        rate = self._quotient(above, below + np.left_shift(none, FRACTION_BITS), double * rows)
        return self._lift(rate), np.left_shift(first - none, WIDE_BITS)

    def _mean(self, values: Words, rows: int | None = None) -> Words:
        """Sum over everything, divided by the number of rows."""
        total: Words = values.reshape(-1).sum(keepdims=True)
        return arithmetic.divide(self.session.party, total, len(values) if rows is None else rows)

    @staticmethod
    def _lift(words: Words) -> Words:
        return np.left_shift(words, WIDE_BITS - FRACTION_BITS)


def _weights(of: Copies) -> Words:
    """Public weights of copies as a column, 1 on average, FRACTION_BITS."""
    return ring.encode(of.weight / of.weight.sum() * len(of.weight), FRACTION_BITS)[:, None]
