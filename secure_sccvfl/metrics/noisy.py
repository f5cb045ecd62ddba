"""Noisy evaluation: sums over the held-out records with noise added under MPC, charged and opened once.

Before: logits of test records and of their counterfactual copies are shared; label and s are at their holders; row
numbers and weights of the copies are public. After: every party knows the noisy sums of `Sums` and what follows from
them. Nobody learns a decision, logit, label or group of a record, or an exact sum.

| sum | task | what one record adds |
|---|---|---|
| `right` | classes | 1 if it is decided as its label says |
| `cells` | two classes | 1 to the cell of its group, label and decision |
| `error` | a number | its squared error, at most 1 (of the label's public range) |
| `labels` | several classes | 1 to the cell of its label |
| `label` | a number | its label and the square of it, at most 1 each: two sums |
| `certified` | two classes | 1 to the cell of its group and of whether its decision is certified |
| `certified` | several classes | 1 if its decision is certified |
| `flips MODEL` | classes | the weight of its copies whose decision flips, at most 1 |
| `shift MODEL` | a number | the weighted shift of its copies, at most 1 each |
| `records` | all | 1, where the number of records is secret (`counted`) |

A baseline head has its own `error`, or `right` and `cells`, and that of plain training its own flips or shift.

With hidden alignment a sum is over the records that all parties have: every row is multiplied by its membership bit
first.

The majority follows from the cells, or from `labels` or `label`. A permutation baseline (a counterfactual model under
shuffled s) is one of the models here. Decisions of records and of all copies take one comparison together. Net flip
rates are not released: gains and losses of each pair of groups would double the noise of flips, or add a sum.

Sensitivity. An added record moves a sum by at most 1, and one of the numbers of `cells` or `labels`. A replaced one
moves a sum by at most 1 too, and two numbers of `cells`, `labels` or `certified`: it leaves one for another. Both
numbers of `label` may move. A permutation baseline couples records: groups are shuffled over them, so the group of
one record edits another. Two of its terms change, and it moves by at most 2. The joint l2 norm is the root of the sum
of all squares. Every sum is exact: squares of numbers with 16 bits keep all their 32 bits, and weights of copies
are rounded down. So nothing is added for rounding.

Noise. Label and s must both be hidden. So with `dealer+holder` both holders add an independent noise contribution: a
party without the label or s lacks the dealer's and at least one more. Rounds: those of the comparisons and products,
none for noise. Bytes: one share of the dealer's noise. The sums stay shared until the charge is on disk
at every party.

Floors. A rate of a group is reported only where its noisy denominator lies at least `SURE` deviations above
`min_group`. So it rests on fewer records with probability below .0014. This follows from the noisy sums at no cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch

from secure_sccvfl.accounting.events import Sensitivity
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.discovery.statistics import open_to_all
from secure_sccvfl.metrics.certified import AtEnds, certified
from secure_sccvfl.metrics.exact import SecureEvaluation, Shared, SharedCopies, split, squares
from secure_sccvfl.metrics.rates import CERTIFIED, NULL, RATES, Copies, reported_gaps, wilson
from secure_sccvfl.protocols.alignment.hidden_intersection import MembershipMask
from secure_sccvfl.protocols.alignment.interface import AlignmentError
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.ring import WIDE_BITS
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.releases.catalogue import EVALUATION, PlanFacts
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event

NAME = EVALUATION.charged_as()
SURE = 3.0
NORMAL_95 = 1.959964
LABELS, DECISIONS = 2, 2
MAJORITY = "majority"
"""The baseline that always gives the most frequent answer."""


@dataclass(frozen=True)
class Sums:
    """Which sums are opened, in order: public, the same at every party. majority: also those of that baseline.

    certificate: also numbers of certified records. baselines: other heads with sums of their own; those of the first
    flip.
    """

    task: Task
    groups: int
    models: tuple[str, ...]
    majority: bool = False
    classes: int = 0
    counted: bool = False
    certificate: bool = False
    baselines: tuple[str, ...] = ()

    @property
    def widths(self) -> dict[str, int]:
        if self.task == "regression":
            widths = {"error": 1, "label": 2 * self.majority}
            widths |= {f"shift {model}": 1 for model in self.models}
        else:
            cells = self.groups * LABELS * DECISIONS if self.task == "binary" else 0
            labels = self.classes if self.task == "multiclass" and self.majority else 0
            widths = {"right": 1, "cells": cells, "labels": labels}
            widths |= {f"flips {model}": 1 for model in self.models}
            widths[CERTIFIED] = self.certificate * (2 * self.groups if self.task == "binary" else 1)
        for name in self.baselines:
            widths |= {f"{key} {name}": widths[key] for key in ("error", "right", "cells") if key in widths}
        widths |= {f"{self.change} {name}": 1 for name in self.baselines[:1]}
        widths["records"] = int(self.counted)
        return {name: width for name, width in widths.items() if width}

    @property
    def change(self) -> str:
        """How a counterfactual changes an answer."""
        return "shift" if self.task == "regression" else "flips"

    @property
    def sensitivity(self) -> Sensitivity:
        """Joint l2 sensitivity; the module says why."""
        nulls = (2**2 - 1) * sum(name.partition(" ")[2].startswith(NULL) for name in self.widths)
        added = len(self.widths) + ("label" in self.widths) + nulls
        replaced = sum(min(width, 2) for width in self.widths.values()) + nulls
        return Sensitivity(math.sqrt(replaced), math.sqrt(added), 2.0**-WIDE_BITS)

    def standard_errors(self, deviation: float, rows: int) -> dict[str, float]:
        """The standard error that noise of this deviation in every sum gives each figure of `rows` records.

        For a rate of a group it is that of a group with all records: divide by the group's share. It follows from
        public settings only, so a plan can state it.
        """
        each = deviation / rows
        errors = {"flips": each}
        if self.task == "regression":
            return {"squared error": each, "shift": each}
        if self.task == "binary":
            errors |= {MAJORITY: each * math.sqrt(self.groups), "positive rate of a group": each * math.sqrt(2)}
        if CERTIFIED in self.widths:
            errors[CERTIFIED] = each * math.sqrt(self.widths[CERTIFIED] / 2 if self.task == "binary" else 1)
        return {"acc": each, **errors}

    def release(self, parties: int) -> Release:
        facts = PlanFacts({rank: {} for rank in range(parties)}, sizes={"sums": sum(self.widths.values())})
        (release,) = EVALUATION.releases(facts, detail=", ".join(self.widths))
        return release

    def take_apart(self, opened: np.ndarray) -> dict[str, np.ndarray]:
        cuts = np.cumsum(list(self.widths.values()))[:-1]
        return dict(zip(self.widths, np.split(opened, cuts), strict=True))


def planned_deviation(layout: Sums, level: NoiseLevel, holders: int) -> float:
    """Standard deviation of all noise in every sum, from public settings only. holders: of label and s."""
    event = noised_event(NAME, layout.sensitivity, level, "planned")
    return noise.deviation(level.kind, event.sigma, level.parties, holders)


def fewest(deviation: float, floor: int) -> int:
    """The smallest noisy number of records with reported figures: `SURE` deviations above the floor."""
    return math.ceil(floor + SURE * deviation)


class NoisyEvaluation:
    """One party's steps in one noisy evaluation of shared logits."""

    def __init__(self, secret: SecureEvaluation, charger: Charger) -> None:
        self._secret, self._charger = secret, charger
        self._session: Session = secret.session
        self._holders = {secret.label_holder, secret.group_holder}

    def deviation(self, layout: Sums) -> float:
        """Standard deviation of all noise in every sum; public."""
        level = NoiseLevel(self._charger.multiplier, self._charger.noise, self._session.parties)
        return planned_deviation(layout, level, len(self._holders))

    def sums(
        self,
        layout: Sums,
        logits: Shared,
        label: AtHolder,
        groups: AtHolder,
        copies: SharedCopies,
        membership: MembershipMask | None = None,
        ends: AtEnds | None = None,
        baselines: Mapping[str, tuple[Shared, SharedCopies]] | None = None,
    ) -> dict[str, np.ndarray]:
        """The noisy sums of `layout`, at every party. ends: of the records, for the certificate.

        baselines: logits of other heads, and of them under counterfactuals.
        """
        held = None if membership is None else membership.tensor(self._session)

        def sums_of(layout: Sums, logits: Shared, copies: SharedCopies, ends: AtEnds | None) -> dict[str, Shared]:
            if layout.task == "regression":
                return self._regression(layout, logits, label, copies, held)
            return self._classes(layout, logits, label, groups, copies, held, ends)

        exact_sums = sums_of(layout, logits, copies, ends)
        for name, (own, moved) in (baselines or {}).items():
            changed = {layout.models[0]: moved[layout.models[0]]} if name == layout.baselines[0] else {}
            alone = replace(layout, models=tuple(changed), majority=False, certificate=False, baselines=())
            of_head = sums_of(alone, own, changed, None)
            exact_sums |= {f"{key.partition(' ')[0]} {name}": value for key, value in of_head.items()}
        if held is not None:
            exact_sums["records"] = held.sum()
        exact = crypten.cat([exact_sums[name].reshape(-1) for name in layout.widths])
        paid = self._charger.charge(NAME, layout.sensitivity)
        noisy = exact + self._session.noise(
            self._charger.noise, paid.event.sigma, len(exact), self._holders, WIDE_BITS
        )
        return layout.take_apart(open_to_all(self._session, noisy, NAME, paid.receipt))

    def _classes(
        self,
        layout: Sums,
        logits: Shared,
        label: AtHolder,
        groups: AtHolder,
        copies: SharedCopies,
        held: Shared | None,
        ends: AtEnds | None,
    ) -> dict[str, Shared]:
        secret, rows = self._secret, len(logits)
        every = [logits, *(edited for edited, _ in copies.values())]
        decided, signs = secret.compared(crypten.cat(every), *(() if ends is None else (ends.low, ends.high)))
        sure = [certified(*signs)] if signs else []
        shown, *others = split(decided.reshape(-1), [tuple(one.size()) for one in every])
        truth = secret.truth(label, rows, logits.size(1))
        member = _kept(held, secret.member(groups, rows, layout.groups)) if layout.task == "binary" else None
        sums = {"right": _kept(held, secret.agreement(shown, truth)).sum()}
        if member is not None:
            size, positive, true, hit, *stays = secret.counts_of(member, shown, truth, *sure)
            sums["cells"] = crypten.stack([size - positive - true + hit, positive - hit, true - hit, hit], 1)
            if stays:
                sums[CERTIFIED] = crypten.stack([size - stays[0], stays[0]], 1)
        elif sure:
            sums[CERTIFIED] = _kept(held, sure[0]).sum()
        if "labels" in layout.widths:
            sums["labels"] = _kept(held, truth).sum(0)
        for (model, (_, of)), after in zip(copies.items(), others, strict=True):
            flipped = 1 - secret.agreement(shown[of.source], after)
            counted = _kept(None if held is None else held[of.source], flipped)
            sums[f"flips {model}"] = self._weighted(counted, of)
        return sums

    def _regression(
        self, layout: Sums, logits: Shared, label: AtHolder, copies: SharedCopies, held: Shared | None
    ) -> dict[str, Shared]:
        secret, session = self._secret, self._session
        target = secret.target(label, len(logits))
        off = _kept(held, session.clamp(logits - target, 1.0))
        sums = {"error": squares(session, off).sum(0)}
        if "label" in layout.widths:
            counted = _kept(held, target)
            sums["label"] = crypten.stack([counted.sum(), squares(session, counted).sum()])
        for model, (edited, of) in copies.items():
            size = secret.size(session.clamp(edited - logits[of.source], 1.0))
            sums[f"shift {model}"] = self._weighted(_kept(None if held is None else held[of.source], size), of)
        return sums

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
        """The same with its 95 % interval, from sampling and from noise."""
        noise, rows = NORMAL_95 * self.error, max(round(self.rows), 1)
        low, high = wilson(self.value, rows)
        below, above = math.hypot(self.value - low, noise), math.hypot(high - self.value, noise)
        low, high = max(0.0, self.value - below), min(1.0, self.value + above)
        return {"value": self.value, "noise": noise, "rows": rows, "low": low, "high": high}


@dataclass(frozen=True)
class _Among:
    """The records that figures are shares of. deviation: of each sum. counted: their number has that noise too."""

    rows: float
    deviation: float
    counted: bool = False

    def share(self, total: float, noises: float = 1.0) -> _Rate:
        """A sum over the records; its noise has `noises` deviations."""
        value = float(total) / self.rows
        return _Rate(min(max(value, 0.0), 1.0), self._error(value, noises))

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

    scales: `share_of_copies` of each counterfactual model. deviation: of the noise in every sum. floor: `min_group`.
    rows: of the table; where records are counted under MPC their noisy number replaces it, and intervals allow
    for its noise. `baselines` has the same figures of the majority, and `baseline_noise` their noise.
    """
    among = _Among(rows, deviation)
    if layout.counted:
        among = _Among(float(sums["records"][0]), deviation, counted=True)
        if among.rows < fewest(deviation, floor):
            raise AlignmentError(
                f"about {max(0, round(among.rows))} test records are common to all parties, and figures need "
                f"{fewest(deviation, floor)} at this noise: bring more records, or train with align = revealed"
            )
    rates, groups = _of_model(layout, sums, among, floor)
    metric = "scg" if layout.task == "regression" else "fr"

    def changed(model: str, of: str) -> _Rate:
        scale = scales[model] * rows
        return among.share(sums[f"{layout.change} {of}"][0] * scale, scale)

    rates |= {f"{metric}_{model}": changed(model, model) for model in scales}
    figures: dict[str, Any] = {"metrics": _values(rates), "noise": _noise(rates), "groups": groups}
    if layout.counted:
        figures["records"] = round(among.rows)
    others, of_groups = {}, {}
    for name in layout.baselines:
        others[name], of_groups[name] = _of_model(layout, sums, among, floor, name)
        still = _Rate(0.0, 0.0)
        others[name][f"{metric}_{layout.models[0]}"] = (
            changed(layout.models[0], name) if name == layout.baselines[0] else still
        )
    if layout.majority:
        others[MAJORITY] = _of_majority(layout, sums, among)
    if others:
        figures["baselines"] = {name: _values(rates) for name, rates in others.items()}
        figures["baseline_noise"] = {name: _noise(rates) for name, rates in others.items()}
    return figures | ({"baseline_groups": of_groups} if layout.task == "binary" and of_groups else {})


def _values(rates: Mapping[str, _Rate]) -> dict[str, float]:
    return {name: rate.value for name, rate in rates.items()}


def _noise(rates: Mapping[str, _Rate]) -> dict[str, float]:
    """Half of each figure's 95 % interval from noise only."""
    return {name: NORMAL_95 * rate.error for name, rate in rates.items()}


def _of_model(
    layout: Sums, sums: Mapping[str, np.ndarray], among: _Among, floor: int, of: str = ""
) -> tuple[dict[str, _Rate], list[dict[str, Any]]]:
    """Figures of the model, or of a baseline, and its rates of groups."""
    if of:
        names = ("error", "right", "cells")
        sums = {name: sums[f"{name} {of}"] for name in names if f"{name} {of}" in sums}
    if layout.task == "regression":
        return {"rmse": among.root(sums["error"][0])}, []
    figures = {"acc": among.share(sums["right"][0])}
    if "cells" not in sums:
        figures |= {CERTIFIED: among.share(sums[CERTIFIED][0])} if CERTIFIED in sums else {}
        return figures, []
    cells = sums["cells"].reshape(layout.groups, LABELS, DECISIONS)
    stays = sums.get(CERTIFIED, np.zeros(0)).reshape(-1, 1, 2)
    if len(stays):
        figures[CERTIFIED] = among.share(stays[:, 0, 1].sum(), math.sqrt(layout.groups))
    figures["positive_rate"] = among.share(cells[:, :, 1].sum(), math.sqrt(layout.groups * LABELS))
    tables = [{"positive_rate": table, "tpr": table[1:], "fpr": table[:1]} for table in cells]
    for table, of_group in zip(tables, stays, strict=False):
        table[CERTIFIED] = of_group
    rates = [_group_rates(table, among.deviation, floor) for table in tables]
    groups = [
        {
            "rates": {name: rate.as_record() for name, rate in group_rates.items()},
            "too_few": [name for name in table if name not in group_rates],
        }
        for table, group_rates in zip(tables, rates, strict=True)
    ]
    return {**figures, **_gaps(rates)}, groups


def _of_majority(layout: Sums, sums: Mapping[str, np.ndarray], among: _Among) -> dict[str, _Rate]:
    """Figures of always predicting the most frequent label, or the mean. All decisions are equal: no gap."""
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


def _group_rates(tables: Mapping[str, np.ndarray], deviation: float, floor: int) -> dict[str, _Rate]:
    """Rates of one group whose denominators are surely large enough; of each its cells, those that count last."""
    rates = {}
    for name, cells in tables.items():
        total, positive = float(cells.sum()), float(cells[:, 1].sum())
        if total - SURE * deviation * math.sqrt(cells.size) < floor:
            continue
        rate = min(max(positive / total, 0.0), 1.0)
        spread = len(cells) * ((1 - rate) ** 2 + rate**2)
        rates[name] = _Rate(rate, deviation * math.sqrt(spread) / total, total)
    return rates


def _gaps(rates: Sequence[Mapping[str, _Rate]]) -> dict[str, _Rate]:
    """Widest differences between groups. Noise widens them a little on average, which the interval allows for."""
    widest: dict[str, _Rate] = {}
    for name in RATES:
        reported = [group_rates[name] for group_rates in rates if name in group_rates]
        pairs = [_Rate(abs(a.value - b.value), math.hypot(a.error, b.error)) for a, b in combinations(reported, 2)]
        if pairs:
            widest[name] = max(pairs, key=lambda pair: pair.value)
    values, errors = (
        reported_gaps(_values(widest)),
        reported_gaps({name: rate.error for name, rate in widest.items()}),
    )
    return {name: _Rate(value, errors[name]) for name, value in values.items()}
