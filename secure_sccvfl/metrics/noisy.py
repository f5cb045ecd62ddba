"""What a model is worth, told with noise: sums over the held-out records, noised in secret, paid for, opened once.

Before: shares of the logits of test records and of their edited copies. The label and s are at their holders. Row
numbers and weights of the copies are public. After: every party knows the noisy sums of `Sums`, and what follows
from them. Nobody knows a decision, logit, label or group of a record, or an exact sum.

| sum | task | what one record adds |
|---|---|---|
| `right` | classes | 1 if it is decided as its label says |
| `cells` | two classes | 1 to the cell of its group, label and decision |
| `error` | a number | its squared error, at most 1 (of the label's public range) |
| `flips JUDGE` | classes | the weight of its copies whose decision flips, at most 1 |
| `shift JUDGE` | a number | the weighted shift of its copies, at most 1 each |
| `records` | all | 1, where the number of records is secret (`counted`) |

Where the parties' records overlap in secret, a sum is over those that all have: every row is multiplied by its
secret bit first.

A null control (a judge under shuffled s) is one of the judges here. Net flips are not told: gains and losses of each
pair of groups would double the noise of flips, or add a sum.

Sensitivity. One record adds a vector of non-negative numbers to these sums. Its l2 norm is at most the root of the
number of sums (`cells` count as one, since only one of them moves). So adding or removing a record moves them by
that much. Replacing one moves them by at most sqrt(2) of it: for non-negative u and v, |u - v|^2 <= |u|^2 + |v|^2.
Truncation of squares may add two units in the last place, which `SLACK` allows for.

Noise. Label and s must both be hidden. So with `dealer+holder` both holders add a copy: a party without the label
or s lacks the dealer's copy and at least one more. Rounds: those of the comparisons and products, none for noise.
Bytes: one share of the dealer's copy. The sums stay in shares until the charge is on disk at every party.

Floors. A rate of a group is told only where its noisy denominator lies at least `SURE` deviations above
`min_group`. So it rests on fewer records with chance below .0014. This follows from the noisy sums: it costs
nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from accounting.events import Sensitivity
from protocols.alignment.presence import Presence
from protocols.alignment.seam import AlignmentError
from protocols.operations import arithmetic, noise
from protocols.records.releases import Release
from protocols.ring import FRACTION_BITS, WIDE_BITS, Words
from protocols.session.runtime import Session, words_of
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.metrics.copies import Copies
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.group_rates import RATES, gaps_of
from secure_sccvfl.privacy.charging import Charger
from secure_sccvfl.privacy.kinds import Facts
from secure_sccvfl.privacy.releases import EVALUATION

NAME = EVALUATION.charged_as()
SLACK = 1 + 2.0**-10
SURE = 3.0
NORMAL_95 = 1.959964
LABELS, DECISIONS = 2, 2


@dataclass(frozen=True)
class Sums:
    """Which sums are opened, in order: public, the same at every party."""

    task: Task
    groups: int
    judges: tuple[str, ...]
    counted: bool = False

    @property
    def widths(self) -> dict[str, int]:
        counted = {"records": 1} if self.counted else {}
        if self.task == "regression":
            return {"error": 1, **{f"shift {judge}": 1 for judge in self.judges}, **counted}
        cells = {"cells": self.groups * LABELS * DECISIONS} if self.task == "binary" else {}
        return {"right": 1, **cells, **{f"flips {judge}": 1 for judge in self.judges}, **counted}

    @property
    def sensitivity(self) -> Sensitivity:
        """Joint l2 sensitivity: a record adds nothing negative."""
        return Sensitivity.of_counts(SLACK * math.sqrt(len(self.widths)))

    def release(self, parties: int) -> Release:
        facts = Facts({rank: {} for rank in range(parties)}, sizes={"sums": sum(self.widths.values())})
        (made,) = EVALUATION.releases(facts, detail=", ".join(self.widths))
        return made

    def take_apart(self, opened: np.ndarray) -> dict[str, np.ndarray]:
        cuts = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(opened, cuts), strict=True))


class NoisyEvaluation:
    """One party's part in one noisy evaluation of shared logits."""

    def __init__(self, secret: SecureEvaluation, charger: Charger) -> None:
        self._secret, self._charger = secret, charger
        self._session: Session = secret.session
        self._holders = {secret.label_holder, secret.group_holder}

    def deviation(self, layout: Sums) -> float:
        """Standard deviation of all copies of noise in every sum; public."""
        sigma = self._charger.event(NAME, layout.sensitivity).sigma
        return noise.deviation(self._charger.noise, sigma, self._session.parties, len(self._holders))

    def sums(
        self,
        layout: Sums,
        logits: Words,
        label: AtHolder,
        groups: AtHolder,
        copies: Mapping[str, tuple[Words, Copies]],
        presence: Presence | None = None,
    ) -> dict[str, np.ndarray]:
        """The noisy sums of `layout`, at every party."""
        if layout.task == "regression":
            made = self._regression(logits, label, copies, presence)
        else:
            made = self._classes(layout, logits, label, groups, copies, presence)
        if presence is not None:
            made["records"] = _whole(presence.bits.sum(keepdims=True))
        exact = np.concatenate([made[name] for name in layout.widths])
        paid = self._charger.charge(NAME, layout.sensitivity)
        unit, kind = 2.0**WIDE_BITS, self._charger.noise
        share = noise.noise_share(self._session.party, kind, paid.event.sigma * unit, len(exact), [self._holders])
        noisy = self._session.wrap(exact + share[:, 0], WIDE_BITS)
        opened = self._session.open(noisy, self._session.declared(NAME), paid.receipt)
        if opened is None:
            raise ValueError("the evaluation must go to every party")
        return layout.take_apart(opened.numpy().astype(float))

    def _classes(
        self,
        layout: Sums,
        logits: Words,
        label: AtHolder,
        groups: AtHolder,
        copies: Mapping[str, tuple[Words, Copies]],
        presence: Presence | None,
    ) -> dict[str, Words]:
        secret, rows = self._secret, len(logits)
        shown, truth = secret.decisions(logits), secret.truth(label, rows, logits.shape[1])
        right = self._kept(presence, secret.right(shown, truth))
        made = {"right": _whole(right.sum(keepdims=True).reshape(1))}
        if layout.task == "binary":
            member = self._kept(presence, secret.member(groups, rows, layout.groups))
            size, positive, true, hit = secret.counts_of(member, shown, truth)
            cells = np.stack([size - positive - true + hit, positive - hit, true - hit, hit], axis=1)
            made["cells"] = _whole(cells.reshape(-1))
        for judge, (edited, of) in copies.items():
            flipped = self._kept(presence, secret.flipped(shown, secret.decisions(edited), of.source), of)
            made[f"flips {judge}"] = (_weights(of, WIDE_BITS)[:, None] * flipped).sum().reshape(1)
        return made

    def _kept(self, presence: Presence | None, rows: Words, of: Copies | None = None) -> Words:
        """Rows, or those of copies, that are zero where not all parties have the record."""
        if presence is None:
            return rows
        bits = presence if of is None else Presence(presence.bits[of.source], presence.count)
        return bits.kept(self._session.party, rows)

    def _regression(
        self,
        logits: Words,
        label: AtHolder,
        copies: Mapping[str, tuple[Words, Copies]],
        presence: Presence | None,
    ) -> dict[str, Words]:
        secret, rows = self._secret, len(logits)
        wide = WIDE_BITS - FRACTION_BITS
        off = self._kept(presence, self._clamped(logits - secret.target(label, rows)))
        error = arithmetic.square(self._session.party, off)
        made = {"error": np.left_shift(error.sum().reshape(1), wide)}
        for judge, (edited, of) in copies.items():
            shift = self._kept(presence, secret.size(self._clamped(edited - logits[of.source])), of)
            made[f"shift {judge}"] = (_weights(of, wide)[:, None] * shift).sum().reshape(1)
        return made

    def _clamped(self, values: Words) -> Words:
        return words_of(self._session.clamp(self._session.wrap(values, FRACTION_BITS), 1.0))


def _whole(counts: Words) -> Words:
    return np.left_shift(counts, WIDE_BITS)


def _heaviest(of: Copies) -> float:
    """The largest total weight of one record's copies."""
    return float(np.bincount(of.source, weights=of.weight).max())


def _weights(of: Copies, bits: int) -> Words:
    """Public weights such that the copies of each record together weigh at most 1."""
    weights: Words = np.floor(of.weight / _heaviest(of) * 2.0**bits).astype(np.int64)
    return weights


def share_of_copies(of: Copies) -> float:
    """The factor that turns a sum over copies into their weighted mean."""
    return _heaviest(of) / float(of.weight.sum())


@dataclass(frozen=True)
class _Rate:
    """A ratio of noisy counts, and the standard error that the noise gives it."""

    value: float
    error: float

    def as_record(self) -> dict[str, float]:
        return {"value": self.value, "noise": NORMAL_95 * self.error}


def figures_of(
    layout: Sums,
    sums: Mapping[str, np.ndarray],
    scales: Mapping[str, float],
    deviation: float,
    rows: float,
    floor: int,
) -> dict[str, Any]:
    """Reports' figures from noisy sums: metrics, half of the 95 % interval that noise adds, and rates of groups.

    scales: `share_of_copies` of each judge. deviation: of the noise in every sum. floor: `min_group`. rows: of the
    table; where records are counted in secret their noisy number takes its place.
    """
    found: dict[str, _Rate] = {}
    if layout.counted:
        known = float(sums["records"][0])
        if known - SURE * deviation < floor:
            raise AlignmentError(
                f"about {max(0, round(known))} test records are common to all parties: too few for a rate"
            )
        scales, rows = {judge: scale * rows / known for judge, scale in scales.items()}, known
    if layout.task == "regression":
        squared = max(float(sums["error"][0]) / rows, 0.0)
        root = math.sqrt(squared)
        error = deviation / rows
        found["rmse"] = _Rate(root, min(error / max(2 * root, 1e-12), math.sqrt(error)))
    else:
        found["acc"] = _limited(float(sums["right"][0]) / rows, deviation / rows)
    groups: list[dict[str, Any]] = []
    if "cells" in sums:
        cells = sums["cells"].reshape(layout.groups, LABELS, DECISIONS)
        error = deviation * math.sqrt(layout.groups * LABELS) / rows
        found["positive_rate"] = _limited(float(cells[:, :, 1].sum()) / rows, error)
        rates = [_group_rates(table, deviation, floor) for table in cells]
        groups = [
            {
                "rates": {name: rate.as_record() for name, rate in own.items()},
                "too_few": [name for name in RATES if name not in own],
            }
            for own in rates
        ]
        found |= _gaps(rates)
    for judge, scale in scales.items():
        name, metric = ("shift", "scg") if layout.task == "regression" else ("flips", "fr")
        found[f"{metric}_{judge}"] = _limited(float(sums[f"{name} {judge}"][0]) * scale, deviation * scale)
    return {
        "metrics": {name: rate.value for name, rate in found.items()},
        "noise": {name: NORMAL_95 * rate.error for name, rate in found.items()},
        "groups": groups,
        **({"records": round(rows)} if layout.counted else {}),
    }


def _limited(value: float, error: float) -> _Rate:
    return _Rate(min(max(value, 0.0), 1.0), error)


def _group_rates(table: np.ndarray, deviation: float, floor: int) -> dict[str, _Rate]:
    """Rates of one group (label x decision) whose denominators are surely large enough."""
    among = {"positive_rate": table, "tpr": table[1:], "fpr": table[:1]}
    told = {}
    for name in RATES:
        cells = among[name]
        total, positive = float(cells.sum()), float(cells[:, 1].sum())
        if total - SURE * deviation * math.sqrt(cells.size) < floor:
            continue
        rate = min(max(positive / total, 0.0), 1.0)
        spread = len(cells) * ((1 - rate) ** 2 + rate**2)
        told[name] = _Rate(rate, deviation * math.sqrt(spread) / total)
    return told


def _gaps(rates: Sequence[Mapping[str, _Rate]]) -> dict[str, _Rate]:
    """Widest differences between groups. Noise widens them a little on average, which the interval allows for."""
    widest: dict[str, _Rate] = {}
    for name in RATES:
        known = [own[name] for own in rates if name in own]
        pairs = [_Rate(abs(a.value - b.value), math.hypot(a.error, b.error)) for a, b in combinations(known, 2)]
        if pairs:
            widest[name] = max(pairs, key=lambda pair: pair.value)
    values = gaps_of({name: rate.value for name, rate in widest.items()})
    errors = gaps_of({name: rate.error for name, rate in widest.items()})
    return {name: _Rate(value, errors[name]) for name, value in values.items()}
