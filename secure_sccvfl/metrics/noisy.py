"""What a model is worth, told with noise: sums over the held-out records, noised in secret, paid for, opened once.

Before: shares of the logits of test records and of their edited copies. The label and s are at their holders. Row
numbers and weights of the copies are public. After: every party knows the noisy sums of `Sums`, and what follows
from them. Nobody knows a decision, logit, label or group of a record, or an exact sum.

| sum | task | what one record adds |
|---|---|---|
| `right` | classes | 1 if it is decided as its label says |
| `cells` | two classes | 1 to the cell of its group, label and decision |
| `error` | a number | its squared error, at most 1 (of the label's public range) |
| `labels` | several classes | 1 to the cell of its label |
| `label` | a number | its label and the square of it, at most 1 each: two sums |
| `right drop_m`, `error drop_m` | all | the same of the head that was trained without mediators and proxies |
| `cells drop_m` | two classes, `controls = full` | the same |
| `flips JUDGE` | classes | the weight of its copies whose decision flips, at most 1 |
| `shift JUDGE` | a number | the weighted shift of its copies, at most 1 each |
| `records` | all | 1, where the number of records is secret (`counted`) |

Where the parties' records overlap in secret, a sum is over those that all have: every row is multiplied by its
secret bit first.

The majority follows from the cells, or from `labels` or `label`. A null control (a judge under shuffled s) is one of
the judges here. Decisions of the model, of the other head and of all copies take one comparison together. Net flips
are not told: gains and losses of each pair of groups would double the noise of flips, or add a sum.

Sensitivity. An added record moves a sum by at most 1, and one of the numbers of `cells` or `labels`. A replaced one
moves a sum by at most 1 too, and two numbers of `cells` or `labels`: it leaves one for another. Both numbers of
`label` may move. A null control couples records: groups are shuffled over them, so the group of one record edits
another. Two of its terms change, and it moves by at most 2. The joint l2 norm is the root of the sum of all squares.
Every sum is exact: squares of numbers with 16 bits are kept with all their 32 bits, and weights of copies are rounded
down. So nothing is added for rounding.

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
import torch

from accounting.events import Sensitivity
from protocols.alignment.presence import Presence
from protocols.alignment.seam import AlignmentError
from protocols.operations import noise
from protocols.records.releases import Release
from protocols.ring import WIDE_BITS
from protocols.session.runtime import Session, crypten
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.metrics.batching import Shared, split, squares
from secure_sccvfl.metrics.copies import NULL, Copies
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.group_rates import RATES, gaps_of
from secure_sccvfl.metrics.intervals import wilson
from secure_sccvfl.releases.catalogue import EVALUATION, Facts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event

NAME = EVALUATION.charged_as()
SURE = 3.0
NORMAL_95 = 1.959964
LABELS, DECISIONS = 2, 2


MAJORITY, DROP_M = "majority", "drop_m"
BASELINES = (MAJORITY, DROP_M)
"""What the model is compared with: always the most frequent answer, and the head without mediators and proxies."""


@dataclass(frozen=True)
class Sums:
    """Which sums are opened, in order: public, the same at every party. full: cells of `drop_m` too."""

    task: Task
    groups: int
    judges: tuple[str, ...]
    baselines: tuple[str, ...] = ()
    classes: int = 0
    full: bool = False
    counted: bool = False

    @property
    def widths(self) -> dict[str, int]:
        dropped = DROP_M in self.baselines
        if self.task == "regression":
            found = {"error": 1, "label": 2 * (MAJORITY in self.baselines), f"error {DROP_M}": int(dropped)}
            found |= {f"shift {judge}": 1 for judge in self.judges}
        else:
            cells = self.groups * LABELS * DECISIONS if self.task == "binary" else 0
            labels = self.classes if self.task == "multiclass" and MAJORITY in self.baselines else 0
            found = {"right": 1, "cells": cells, "labels": labels, f"right {DROP_M}": int(dropped)}
            found |= {f"cells {DROP_M}": cells * dropped * self.full}
            found |= {f"flips {judge}": 1 for judge in self.judges}
        found["records"] = int(self.counted)
        return {name: width for name, width in found.items() if width}

    @property
    def sensitivity(self) -> Sensitivity:
        """Joint l2 sensitivity; the module says why."""
        nulls = (2**2 - 1) * sum(name.partition(" ")[2].startswith(NULL) for name in self.widths)
        added = len(self.widths) + ("label" in self.widths) + nulls
        replaced = sum(min(width, 2) for width in self.widths.values()) + nulls
        return Sensitivity(math.sqrt(replaced), math.sqrt(added), 2.0**-WIDE_BITS)

    def standard_errors(self, deviation: float, rows: int) -> dict[str, float]:
        """What noise of this deviation in every sum adds to each figure of `rows` records: its standard error.

        For a rate of a group the denominator is not known before; it is that of a group with all records, so divide
        by the group's share. These are the prices of a plan: they follow from public settings alone.
        """
        each = deviation / rows
        found = {"flips": each, DROP_M: each} if DROP_M in self.baselines else {"flips": each}
        if self.task == "regression":
            return {"squared error": each, "shift": each}
        if self.task == "binary":
            found |= {MAJORITY: each * math.sqrt(self.groups), "positive rate of a group": each * math.sqrt(2)}
        return {"acc": each, **found}

    def release(self, parties: int) -> Release:
        facts = Facts({rank: {} for rank in range(parties)}, sizes={"sums": sum(self.widths.values())})
        (made,) = EVALUATION.releases(facts, detail=", ".join(self.widths))
        return made

    def take_apart(self, opened: np.ndarray) -> dict[str, np.ndarray]:
        cuts = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(opened, cuts), strict=True))


def planned_deviation(layout: Sums, level: NoiseLevel, holders: int) -> float:
    """Standard deviation of all copies of noise in every sum, from public settings alone. holders: of label and s."""
    event = noised_event(NAME, layout.sensitivity, level, "planned")
    return noise.deviation(level.kind, event.sigma, level.parties, holders)


def fewest(deviation: float, floor: int) -> int:
    """A noisy number of records from which on figures are told: so many are surely above the floor."""
    return math.ceil(floor + SURE * deviation)


class NoisyEvaluation:
    """One party's part in one noisy evaluation of shared logits."""

    def __init__(self, secret: SecureEvaluation, charger: Charger) -> None:
        self._secret, self._charger = secret, charger
        self._session: Session = secret.session
        self._holders = {secret.label_holder, secret.group_holder}

    def deviation(self, layout: Sums) -> float:
        """Standard deviation of all copies of noise in every sum; public."""
        level = NoiseLevel(self._charger.multiplier, self._charger.noise, self._session.parties)
        return planned_deviation(layout, level, len(self._holders))

    def sums(
        self,
        layout: Sums,
        logits: Shared,
        label: AtHolder,
        groups: AtHolder,
        copies: Mapping[str, tuple[Shared, Copies]],
        control: Shared | None = None,
        presence: Presence | None = None,
    ) -> dict[str, np.ndarray]:
        """The noisy sums of `layout`, at every party. control: logits of the head without mediators."""
        held = None if presence is None else presence.marks(self._session)
        if layout.task == "regression":
            made = self._regression(layout, logits, label, copies, control, held)
        else:
            made = self._classes(layout, logits, label, groups, copies, control, held)
        if held is not None:
            made["records"] = held.sum()
        exact = crypten.cat([made[name].reshape(-1) for name in layout.widths])
        paid = self._charger.charge(NAME, layout.sensitivity)
        noisy = exact + self._session.noise(
            self._charger.noise, paid.event.sigma, len(exact), self._holders, WIDE_BITS
        )
        opened = self._session.open(noisy, self._session.declared(NAME), paid.receipt)
        if opened is None:
            raise ValueError("the evaluation must go to every party")
        return layout.take_apart(opened.numpy().astype(float))

    def _classes(
        self,
        layout: Sums,
        logits: Shared,
        label: AtHolder,
        groups: AtHolder,
        copies: Mapping[str, tuple[Shared, Copies]],
        control: Shared | None,
        held: Shared | None,
    ) -> dict[str, Shared]:
        secret, rows = self._secret, len(logits)
        every = [logits, *([] if control is None else [control]), *(edited for edited, _ in copies.values())]
        decided = secret.decisions(crypten.cat(every))
        shown, *others = split(decided, [tuple(one.size()) for one in every])
        truth = secret.truth(label, rows, logits.size(1))
        member = None
        if layout.task == "binary":
            member = _kept(held, secret.member(groups, rows, layout.groups))
        made = self._of_head("", shown, truth, member, held)
        if "labels" in layout.widths:
            made["labels"] = _kept(held, truth).sum(0)
        if control is not None:
            dropped, *others = others
            made |= self._of_head(f" {DROP_M}", dropped, truth, member if layout.full else None, held)
        for (judge, (_, of)), after in zip(copies.items(), others, strict=True):
            flipped = 1 - secret.agreement(shown[of.source], after)
            counted = _kept(None if held is None else held[of.source], flipped)
            made[f"flips {judge}"] = self._weighted(counted, of)
        return made

    def _of_head(
        self, which: str, shown: Shared, truth: Shared, member: Shared | None, held: Shared | None
    ) -> dict[str, Shared]:
        """How often a head is right and, by membership of records in groups, its cells; `which` ends their names."""
        made = {f"right{which}": _kept(held, self._secret.agreement(shown, truth)).sum()}
        if member is not None:
            size, positive, true, hit = self._secret.counts_of(member, shown, truth)
            made[f"cells{which}"] = crypten.stack([size - positive - true + hit, positive - hit, true - hit, hit], 1)
        return made

    def _regression(
        self,
        layout: Sums,
        logits: Shared,
        label: AtHolder,
        copies: Mapping[str, tuple[Shared, Copies]],
        control: Shared | None,
        held: Shared | None,
    ) -> dict[str, Shared]:
        secret, session = self._secret, self._session
        target = secret.target(label, len(logits))
        heads = crypten.cat([logits, *([] if control is None else [control])], dim=1)
        off = _kept(held, session.clamp(heads - target, 1.0))
        error = squares(session, off).sum(0)
        made = {"error": error[:1]}
        if control is not None:
            made[f"error {DROP_M}"] = error[1:]
        if "label" in layout.widths:
            counted = _kept(held, target)
            made["label"] = crypten.stack([counted.sum(), squares(session, counted).sum()])
        for judge, (edited, of) in copies.items():
            size = secret.size(session.clamp(edited - logits[of.source], 1.0))
            made[f"shift {judge}"] = self._weighted(_kept(None if held is None else held[of.source], size), of)
        return made

    def _weighted(self, values: Shared, of: Copies) -> Shared:
        """A sum over copies with public weights, such that those of each record together weigh at most 1.

        Weights are rounded down to 32 fractional bits less those of the values, so the sum has 32 and is exact.
        """
        bits = WIDE_BITS - self._session.fraction(values)
        weights = np.floor(of.weight / _heaviest(of) * 2.0**bits).astype(np.int64)
        return self._session.with_fraction((values.reshape(-1) * torch.from_numpy(weights)).sum(), WIDE_BITS)


def _kept(held: Shared | None, rows: Shared) -> Shared:
    """Rows that are zero where not all parties have the record; `held`: 1 where they have it."""
    if held is None:
        return rows
    return held.reshape(-1, *[1] * (rows.dim() - 1)) * rows


def _heaviest(of: Copies) -> float:
    """The largest total weight of one record's copies."""
    return float(np.bincount(of.source, weights=of.weight).max())


def share_of_copies(of: Copies) -> float:
    """The factor that turns a sum over copies into their weighted mean."""
    return _heaviest(of) / float(of.weight.sum())


@dataclass(frozen=True)
class _Rate:
    """A ratio of noisy counts, and the standard error that the noise gives it. rows: its noisy denominator."""

    value: float
    error: float
    rows: float = 0.0

    def as_record(self) -> dict[str, float]:
        """With its 95 % interval: from the number of records, and from noise."""
        noise, rows = NORMAL_95 * self.error, max(round(self.rows), 1)
        low, high = wilson(self.value, rows)
        below, above = math.hypot(self.value - low, noise), math.hypot(high - self.value, noise)
        told = {"value": self.value, "noise": noise, "rows": rows}
        return {**told, "low": max(0.0, self.value - below), "high": min(1.0, self.value + above)}


@dataclass(frozen=True)
class _Among:
    """What figures are shares of: this many records. deviation: of each sum. counted: their number has it too."""

    rows: float
    deviation: float
    counted: bool = False

    def share(self, total: float, noises: float = 1.0) -> _Rate:
        """A sum over the records; its noise has `noises` deviations."""
        value = float(total) / self.rows
        return _limited(value, self._error(value, noises))

    def root(self, total: float) -> _Rate:
        value = float(total) / self.rows
        return _root(value, self._error(value, 1.0))

    def _error(self, value: float, noises: float) -> float:
        return self.deviation * math.hypot(noises, value * self.counted) / self.rows


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
    table; where records are counted in secret their noisy number takes its place, and intervals allow for its noise.
    `baselines` has the same figures of what the model is compared with, and `baseline_noise` their noise.
    """
    among = _Among(rows, deviation)
    if layout.counted:
        among = _Among(float(sums["records"][0]), deviation, counted=True)
        if among.rows < fewest(deviation, floor):
            raise AlignmentError(
                f"about {max(0, round(among.rows))} test records are common to all parties, and figures need "
                f"{fewest(deviation, floor)} at this noise: bring more records, or train with align = revealed"
            )
    found, groups = _of_model(layout, sums, "", among, floor)
    for judge, scale in scales.items():
        name, metric = ("shift", "scg") if layout.task == "regression" else ("flips", "fr")
        found[f"{metric}_{judge}"] = among.share(sums[f"{name} {judge}"][0] * scale * rows, scale * rows)
    told: dict[str, Any] = {
        "metrics": {name: rate.value for name, rate in found.items()},
        "noise": {name: NORMAL_95 * rate.error for name, rate in found.items()},
        "groups": groups,
        **({"records": round(among.rows)} if layout.counted else {}),
    }
    if layout.baselines:
        others = {MAJORITY: _of_majority(layout, sums, among)} if MAJORITY in layout.baselines else {}
        if DROP_M in layout.baselines:
            others[DROP_M] = _of_model(layout, sums, f" {DROP_M}", among, floor)[0]
        told["baselines"] = {k: {name: rate.value for name, rate in own.items()} for k, own in others.items()}
        told["baseline_noise"] = {
            k: {name: NORMAL_95 * rate.error for name, rate in own.items()} for k, own in others.items()
        }
    return told


def _of_model(
    layout: Sums, sums: Mapping[str, np.ndarray], which: str, among: _Among, floor: int
) -> tuple[dict[str, _Rate], list[dict[str, Any]]]:
    """Figures of the model, or of another head whose sums end in `which`, and its rates of groups."""
    if layout.task == "regression":
        return {"rmse": among.root(sums[f"error{which}"][0])}, []
    found = {"acc": among.share(sums[f"right{which}"][0])}
    if f"cells{which}" not in sums:
        return found, []
    cells = sums[f"cells{which}"].reshape(layout.groups, LABELS, DECISIONS)
    found["positive_rate"] = among.share(cells[:, :, 1].sum(), math.sqrt(layout.groups * LABELS))
    rates = [_group_rates(table, among.deviation, floor) for table in cells]
    groups = [
        {
            "rates": {name: rate.as_record() for name, rate in own.items()},
            "too_few": [name for name in RATES if name not in own],
        }
        for own in rates
    ]
    return {**found, **_gaps(rates)}, groups


def _of_majority(layout: Sums, sums: Mapping[str, np.ndarray], among: _Among) -> dict[str, _Rate]:
    """Always giving the most frequent label of these records, or their mean. Decides the same for all: no gap."""
    if layout.task == "regression":
        mean, square = (float(value) / among.rows for value in sums["label"])
        moved = math.hypot(1.0, 2 * mean, (square - 2 * mean**2) * among.counted)
        return {"rmse": _root(square - mean**2, moved * among.deviation / among.rows)}
    if layout.task == "multiclass":
        return {"acc": among.share(sums["labels"].max())}
    cells = sums["cells"].reshape(layout.groups, LABELS, DECISIONS).sum(axis=(0, 2))
    ones = (float(cells[1] - cells[0]) + among.rows) / 2  # all records are counted, so half of the noise cancels
    still = {name: _Rate(0.0, 0.0) for name in ("dp_gap", "eo_gap")}
    return {"acc": among.share(max(ones, among.rows - ones), math.sqrt(layout.groups)), **still}


def _root(squared: float, error: float) -> _Rate:
    root = math.sqrt(max(squared, 0.0))
    return _Rate(root, min(error / max(2 * root, 1e-12), math.sqrt(error)))


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
        told[name] = _Rate(rate, deviation * math.sqrt(spread) / total, total)
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
