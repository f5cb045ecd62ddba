"""What a model is worth, in secret: only rates, means and gaps of the held-out part are opened.

Before: shares of the logits of test records and of their edited copies, the label and s at their holders,
public row numbers and weights of the copies. After: every party knows the numbers in `names`; no decision,
logit, label or group of a record. Decisions cost one comparison each, the gaps one division per group.
Small groups: a rate over no record counts as 0 (the plaintext evaluation leaves such a group out).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from protocols import arithmetic, comparison, ring, series
from protocols.releases import Release
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.runtime import Session, words_of
from secure_sccvfl.data import Task
from secure_sccvfl.engine import Held

LOSS_BOUND = 50.0
"""Logits beyond it count as this much in the log loss."""


@dataclass(frozen=True)
class Copies:
    """Edited copies of test records: copy i is of record source[i] and counts weight[i]. Public."""

    source: np.ndarray
    weight: np.ndarray


def metric_names(task: Task, judges: Sequence[str]) -> tuple[str, ...]:
    """What is opened, in order."""
    whole = ["mse", "variance"] if task == "regression" else ["acc", "logloss", "variance"]
    if task == "binary":
        whole += ["positive_rate", "dp_gap", "eo_gap"]
    each = ["scg"] if task == "regression" else ["scg", "fr"]
    return (*whole, *(f"{metric}_{judge}" for judge in judges for metric in each))


def evaluation_release(parties: int, task: Task, judges: Sequence[str]) -> Release:
    names = metric_names(task, judges)
    return Release(
        "evaluation",
        tuple(range(parties)),
        (len(names),),
        f"of the test part: {', '.join(names)}; nothing per record",
    )


class SecureEvaluation:
    """Evaluates shared logits (records x outputs, FRACTION_BITS) of one test part."""

    def __init__(self, session: Session, task: Task, label_holder: int, group_holder: int) -> None:
        self.session, self.task = session, task
        self.label_holder, self.group_holder = label_holder, group_holder

    def metrics(
        self, logits: Words, label: Held, groups: Held, count: int, copies: Mapping[str, tuple[Words, Copies]]
    ) -> dict[str, float]:
        """`copies`: by judge, shares of the logits of edited copies. `count`: number of groups."""
        party, rows = self.session.party, len(logits)
        outputs = logits.shape[1]
        found: dict[str, Words] = {}
        shown: Words | None = None
        if self.task == "regression":
            target = self._held(label, self.label_holder, (rows, 1), FRACTION_BITS)
            found["mse"] = self._mean(arithmetic.square(party, logits - target))
        else:
            shown = self.decisions(logits)
            plain = None
            if label is not None:
                plain = np.asarray(label)[:, None] if outputs == 1 else np.eye(outputs, dtype=np.int64)[label]
            truth = self._held(plain, self.label_holder, (rows, outputs), 0)
            right = arithmetic.bilinear(party, "mul", shown, truth)
            if outputs == 1:
                hits = 2 * right - shown - truth
                if party.rank == 0:
                    hits = hits + 1
            else:
                hits = right
            found["acc"] = self._mean(np.left_shift(hits, WIDE_BITS), rows)
            found["logloss"] = self._log_loss(logits, truth)
        found["variance"] = self._variance(logits)
        if self.task == "binary" and shown is not None:
            found["positive_rate"] = self._mean(np.left_shift(shown, WIDE_BITS), rows)
            found |= self._gaps(shown, truth, groups, count)
        for judge, (edited, of) in copies.items():
            found |= {f"{k}_{judge}": v for k, v in self._stability(logits, shown, edited, of).items()}
        names = metric_names(self.task, list(copies))
        opened = self.session.open(
            self.session.wrap(np.concatenate([found[name] for name in names]), WIDE_BITS),
            self.session.declared("evaluation"),
        )
        if opened is None:
            raise ValueError("the evaluation must go to every party")
        return dict(zip(names, opened.tolist(), strict=True))

    def decisions(self, logits: Words) -> Words:
        """One-hot of the largest logit, or for a single one the bit [logit > 0]; whole numbers."""
        if logits.shape[1] == 1:
            return comparison.negative(self.session.party, -logits)
        chosen = self.session.wrap(logits, FRACTION_BITS).argmax(dim=1, one_hot=True)
        words = words_of(chosen)
        bits = int(chosen.encoder._precision_bits)
        return arithmetic.truncate(self.session.party, words, bits) if bits else words

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

    def _gaps(self, shown: Words, truth: Words, groups: Held, count: int) -> dict[str, Words]:
        """Widest differences between groups: of the positive rate, and of true or false positive rates."""
        party, rows = self.session.party, len(shown)
        one_hot = None if groups is None else np.eye(count, dtype=np.int64)[groups]
        member = self._held(one_hot, self.group_holder, (rows, count), 0)
        both = arithmetic.bilinear(party, "mul", shown, truth)
        cells = np.hstack([shown, truth, both])
        products = arithmetic.bilinear(party, "mul", member[:, :, None], cells[:, None, :]).sum(axis=0)
        size = member.sum(axis=0)
        positive, true, hit = products.T
        above = np.stack([positive, hit, positive - hit])
        below = np.stack([size, true, size - true])
        rates = self._ratio(above, below, rows)
        wide = [self._widest(row) for row in rates]
        worst = self._widest_of(wide[1], wide[2])
        return {"dp_gap": self._lift(wide[0]), "eo_gap": self._lift(worst)}

    def _ratio(self, above: Words, below: Words, rows: int) -> Words:
        """Counts divided by counts, FRACTION_BITS; over an empty cell 0."""
        party = self.session.party
        empty = comparison.negative(party, below - (1 if party.rank == 0 else 0))
        shares = arithmetic.divide(party, np.left_shift(np.stack([above, below + empty]), FRACTION_BITS), rows)
        part, whole = (self.session.wrap(words, FRACTION_BITS) for words in shares)
        return words_of(part * whole.reciprocal())

    def _widest(self, rates: Words) -> Words:
        """Largest pairwise difference."""
        above, below = np.tril_indices(len(rates), -1)
        gaps = rates[above] - rates[below]
        party = self.session.party
        sizes = gaps - 2 * arithmetic.bilinear(party, "mul", comparison.negative(party, gaps), gaps)
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
        party = self.session.party
        gap = edited - logits[of.source]
        size = gap - 2 * arithmetic.bilinear(party, "mul", comparison.negative(party, gap), gap)
        weight = ring.encode(of.weight / of.weight.sum() * len(of.weight), FRACTION_BITS)[:, None]
        found = {"scg": self._mean(weight * size, len(of.weight))}
        if shown is not None:
            after, before = self.decisions(edited), shown[of.source]
            same = arithmetic.bilinear(party, "mul", after, before)
            flipped = after + before - 2 * same if shown.shape[1] == 1 else -same.sum(axis=1, keepdims=True)
            if shown.shape[1] > 1 and party.rank == 0:
                flipped = flipped + 1
            found["fr"] = self._mean(np.left_shift(weight * flipped, WIDE_BITS - FRACTION_BITS), len(of.weight))
        return found

    def _mean(self, values: Words, rows: int | None = None) -> Words:
        """Sum over everything, divided by the number of rows."""
        total: Words = values.reshape(-1).sum(keepdims=True)
        return arithmetic.divide(self.session.party, total, len(values) if rows is None else rows)

    @staticmethod
    def _lift(words: Words) -> Words:
        return np.left_shift(words, WIDE_BITS - FRACTION_BITS)

    def _held(self, values: Held, owner: int, shape: tuple[int, ...], bits: int) -> Words:
        shares = self.session.party.zero_share(shape)
        if self.session.rank == owner:
            if values is None:
                raise ValueError("the holder of the label or of s needs it")
            shares += ring.encode(np.asarray(values).reshape(shape), bits)
        return shares
