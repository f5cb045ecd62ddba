"""Exact figures of the test part, computed under MPC with CrypTen's operators: rates, means and gaps.

Before: the logits of test records and of their edited copies are CrypTen tensors. The label and s are at their
holders. Row numbers and weights of the copies are public. After: every party knows the numbers in `metric_names`, and
no decision, logit, label or group of a record. Means are opened as sums and divided by public numbers.

Steps that need no result of each other share their rounds, whatever the number of counterfactual models:
`in_one_call` evaluates one operator on several tensors, `products` multiplies several pairs. With two classes and two
groups:

| step | rounds |
|---|---|
| variance of the logits: mean and square | 2 |
| ends of the mediators' contributions, for the certificate (`certified`), up to 16 levels | 10 |
| compare: decisions of records, copies and records at both ends, signs of shifts, logits beyond `LOSS_BOUND` | 6 |
| products: decision and label, decisions before and after, sizes of shifts, clamped logits | 1 |
| log cosh of the logits, one product with the label | 2 |
| groups: counts, and whether each or all have enough records | 10 |
| net flips: sums over pairs of groups, their sizes, which pairs have enough records | 9 |
| is any pair left | 6 |
| all quotients: division by the number of rows, reciprocal, product | 68 |
| differences between rates of groups (for more than two groups: and the largest) | 8 |
| means, open | 4 |

Every value that is opened before the last line is hidden by a uniform mask that is used once, inside CrypTen's
operators on our kernels.

Exact figures are not private: two of them about sets that differ by one record reveal that record. They are for
public data, and for consortia that agreed to them beforehand (`evaluation = "exact"`). All others use
`secure_sccvfl.metrics.noisy`. Floors hold here too: a rate over fewer than `min_group` records of a group takes no
part in a gap, and a pair of groups that fewer records are moved between takes none in net flips. This is decided
under MPC; only the fact that they are too few is opened (of net flips: that no pair is left).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import AtHolder
from secure_sccvfl.discovery.statistics import open_to_all
from secure_sccvfl.metrics.certified import AtEnds, certified
from secure_sccvfl.metrics.rates import CERTIFIED, RATES, Copies, figures_of_model, rate_record, reported_gaps
from secure_sccvfl.protocols.records.releases import Release
from secure_sccvfl.protocols.session.runtime import Session, crypten
from secure_sccvfl.releases.catalogue import EXACT_EVALUATION, PlanFacts

LOSS_BOUND = 50.0
"""Logits beyond this count as this much in the log loss."""
UNIT = 1 << 16
"""Public weights are whole multiples of one over this, so that products with them are exact."""


def enough(rate: str, of: int | str) -> str:
    """The name of the bit that says whether a group's rate, or a model's net flip rate, is over enough records."""
    return f"enough {rate} {of}"


def _counts(group: int, certificate: bool) -> dict[str, str]:
    """The names of a group's numbers by rate: positive decisions, certified ones, and records.

    All are 0 if one group is below the floor: its numbers would follow from the totals and the other groups.
    """
    names = ("positive_rate", *([CERTIFIED] if certificate else []), "records")
    return {name: f"{name} in group {group}" for name in names}


def metric_names(task: Task, models: Sequence[str], groups: int, certificate: bool = False) -> tuple[str, ...]:
    """The names of the opened numbers, in order."""
    whole = ["mse", "variance"] if task == "regression" else ["acc", "logloss", "variance"]
    if task == "binary":
        whole += ["positive_rate", *(f"{rate}_gap" for rate in RATES)]
        whole += [enough(rate, group) for rate in RATES for group in range(groups)]
        whole += [name for group in range(groups) for name in _counts(group, certificate).values()]
    for model in models:
        figures = figures_of_model(model, task)
        whole += [f"{metric}_{model}" for metric in figures]
        whole += [enough("net", model)] if "net" in figures else []
    if certificate and task != "regression":
        whole += [CERTIFIED]
    return tuple(whole)


def exact_release(parties: int, task: Task, models: Sequence[str], groups: int, certificate: bool = False) -> Release:
    names = metric_names(task, models, groups, certificate)
    shown = [name for name in names if not name.startswith("enough")]
    facts = PlanFacts({rank: {} for rank in range(parties)}, sizes={"figures": len(names)})
    detail = f"{', '.join(shown)}; which rates rest on too few records"
    (release,) = EXACT_EVALUATION.releases(facts, detail=detail)
    return release


def exact_figures(opened: Mapping[str, float], models: Sequence[str], groups: int) -> dict[str, Any]:
    """Opened numbers in the form of reports: metrics, and the rates of groups that are over too few records."""
    out = dict(opened)
    spread = max(out.pop("variance"), 0.0) ** 0.5
    if "mse" in out:
        out["rmse"] = max(out.pop("mse"), 0.0) ** 0.5
    for model in models:
        if (gap := out.get(f"scg_{model}")) is not None:
            out[f"scg_norm_{model}"] = gap / spread if spread > 1e-6 else 0.0
        if out.pop(enough("net", model), 1.0) < 0.5:
            del out[f"net_{model}"]
    group_notes: list[dict[str, Any]] = []
    if "positive_rate_gap" in out:
        reportable = {rate: [out.pop(enough(rate, g)) > 0.5 for g in range(groups)] for rate in RATES}
        gaps = {rate: gap for rate in RATES for gap in [out.pop(f"{rate}_gap")] if sum(reportable[rate]) > 1}
        group_notes = [{"too_few": [rate for rate in RATES if not reportable[rate][g]]} for g in range(groups)]
        out |= reported_gaps(gaps)
    for group, note in enumerate(group_notes):
        counts = {rate: round(out.pop(name)) for rate, name in _counts(group, CERTIFIED in out).items()}
        if rows := counts.pop("records"):
            note["rates"] = {rate: rate_record(hits, rows) for rate, hits in counts.items()}
        elif CERTIFIED in counts and "positive_rate" in note["too_few"]:
            note["too_few"].append(CERTIFIED)
    return {"metrics": out, "groups": group_notes}


class SecureEvaluation:
    """Evaluates logits (records x outputs, a CrypTen tensor) of one test part."""

    def __init__(
        self, session: Session, task: Task, label_holder: int, group_holder: int, min_group: int = 1
    ) -> None:
        self.session, self.task, self.min_group = session, task, min_group
        self.label_holder, self.group_holder = label_holder, group_holder

    def metrics(
        self,
        logits: Shared,
        label: AtHolder,
        groups: AtHolder,
        count: int,
        copies: SharedCopies,
        ends: AtEnds | None = None,
    ) -> dict[str, float]:
        """`copies`: by counterfactual model, the logits of edited copies. `count`: number of groups.

        ends: of the records, for the certificate.
        """
        rows = len(logits)
        edited = crypten.cat([edited for edited, _ in copies.values()])
        source = np.concatenate([of.source for _, of in copies.values()])
        shift = edited - logits[source]
        figures = _Figures(rows)
        figures.mean("variance", squares(self.session, logits - logits.mean(0)).sum())
        if self.task == "regression":
            figures.mean("mse", squares(self.session, logits - self.target(label, rows)).sum())
            size = self.size(shift)
        else:
            headroom = crypten.stack([logits + LOSS_BOUND, LOSS_BOUND - logits])
            at_ends = () if ends is None else (ends.low, ends.high)
            decided, (negative, outside, *signs) = self.compared(
                crypten.cat([logits, edited]), shift, headroom, *at_ends
            )
            shown, after = decided[:rows], decided[rows:]
            sure = certified(*signs) if signs else None
            truth = self.truth(label, rows, logits.size(1))
            both, same, part, beyond = products(
                (shown, truth), (after, shown[source]), (negative, shift), (outside, headroom)
            )
            size = shift - 2 * part
            figures.rate("acc", _agreement(shown, truth, both).sum())
            self._log_loss(figures, logits - beyond[0] + beyond[1], truth)
            flipped = 1 - _agreement(shown[source], after, same)
            self._groups(figures, shown, truth, both, groups, count, _per_model(after, copies), sure)
            for model, (flips, of) in _per_model(flipped, copies).items():
                figures.weighted(f"fr_{model}", flips, of)
        for model, (sizes, of) in _per_model(size, copies).items():
            if "scg" in figures_of_model(model, self.task):
                figures.weighted(f"scg_{model}", sizes, of)
        return figures.opened(self.session, metric_names(self.task, list(copies), count, ends is not None))

    def compared(self, logits: Shared, *values: Shared) -> tuple[Shared, list[Shared]]:
        """Decisions of these logits, and where these values are negative; of two classes in one comparison."""
        if logits.size(1) > 1:
            return self.decisions(logits), in_one_call(_below_zero, *values) if values else []
        decided, *negative = in_one_call(_below_zero, -logits, *values)
        return decided, negative

    def target(self, label: AtHolder, rows: int) -> Shared:
        """The label of a regression."""
        return self.session.share(_column(label), owner=self.label_holder, shape=(rows, 1))

    def truth(self, label: AtHolder, rows: int, outputs: int) -> Shared:
        """The class as whole numbers: a bit, or a one-hot of several."""
        values = _column(label) if label is None or outputs == 1 else one_hot(label, outputs)
        return self.session.share(values, owner=self.label_holder, shape=(rows, outputs), bits=0)

    def member(self, groups: AtHolder, rows: int, count: int) -> Shared:
        """The one-hot of s (rows x groups), whole numbers."""
        values = None if groups is None else one_hot(groups, count)
        return self.session.share(values, owner=self.group_holder, shape=(rows, count), bits=0)

    def decisions(self, logits: Shared) -> Shared:
        """One-hot of the largest logit, or for a single one the bit [logit > 0]; whole numbers."""
        return logits > 0 if logits.size(1) == 1 else logits.argmax(dim=1, one_hot=True)

    def agreement(self, one: Shared, other: Shared) -> Shared:
        """1 for each row of which two decisions, or a decision and the label, are the same (rows)."""
        return _agreement(one, other, one * other)

    def size(self, values: Shared) -> Shared:
        """Absolute values; one comparison and one product."""
        return values - 2 * ((values < 0) * values)

    def counts_of(self, member: Shared, shown: Shared, truth: Shared, *more: Shared) -> Shared:
        """Sums over any membership (rows x sets): records, positive decisions, positive labels, both (4 x sets).

        more: bits (rows), whose sums come below these.
        """
        cells = crypten.cat([shown, truth, shown * truth, *(bit[:, None] for bit in more)], dim=1)
        return crypten.cat([member.sum(0).reshape(1, -1), cells.t() @ member])

    def _log_loss(self, figures: _Figures, inside: Shared, truth: Shared) -> None:
        """Of several classes each against the rest, summed over classes: log(2 cosh(z / 2)) - (2 y - 1) z / 2."""
        even = self.session.log_cosh(inside, LOSS_BOUND).sum()
        figures.mean("logloss", 2 * even - ((2 * truth - 1) * inside).sum(), 2)

    def _groups(
        self,
        figures: _Figures,
        shown: Shared,
        truth: Shared,
        both: Shared,
        groups: AtHolder,
        count: int,
        after: SharedCopies,
        sure: Shared | None,
    ) -> None:
        """Widest gaps between groups of each rate, and net flips by model, where enough records count.

        sure: the bits of certified records. Their numbers, and those of positive decisions, are opened by group.
        """
        nets = [model for model in after if "net" in figures_of_model(model, self.task)]
        above, below, left = self._net_flips(shown, groups, count, [after[model] for model in nets])
        for number, model in enumerate(nets):
            figures.keep(enough("net", model), left[number])
        reportable = None
        if sure is not None:
            figures.rate(CERTIFIED, sure.sum())
        if self.task == "binary":
            figures.rate("positive_rate", shown.sum())
            member = self.member(groups, len(shown), count)
            bits = [shown, truth, both, *([] if sure is None else [sure[:, None]])]
            positive, true, hit, *stays = crypten.cat(bits, dim=1).t() @ member
            size = member.sum(0)
            numbers = crypten.stack([size, true, size - true])
            reportable = 1 - (numbers < max(self.min_group, 1))
            above = crypten.cat([above, crypten.stack([positive, hit, positive - hit]).reshape(-1)])
            below = crypten.cat([below, (numbers + 1 - reportable).reshape(-1)])
            counted = crypten.stack([positive, *stays, size]) * reportable[0].prod()
            for group in range(count):
                for number, name in enumerate(_counts(group, sure is not None).values()):
                    figures.keep(name, counted[number, group])
        # Numbers are divided by larger ones, which are above 0 and at most this many.
        part, whole = crypten.stack([above, below]) / (len(shown) * _double(shown))
        quotients = part * whole.reciprocal()
        for number, model in enumerate(nets):
            figures.keep(f"net_{model}", quotients[number])
        if reportable is not None:
            rates = quotients[len(nets) :].reshape(len(RATES), count)
            widest = self._widest(rates, reportable)
            for number, rate in enumerate(RATES):
                figures.keep(f"{rate}_gap", widest[number])
                for group in range(count):
                    figures.keep(enough(rate, group), reportable[number, group])

    def _net_flips(
        self, shown: Shared, groups: AtHolder, count: int, copies: Sequence[tuple[Shared, Copies]]
    ) -> tuple[Shared, Shared, Shared]:
        """|P(gain) - P(loss)| as numerators and denominators over pairs of groups with enough records, by model.

        Also whether there is such a pair.
        """
        rows = len(shown)
        pairs = crypten.stack([self._pairs(groups, of.target, rows, count) for _, of in copies])
        change = crypten.stack([_by_record(after - shown[of.source], of, rows) for after, of in copies])
        weight = np.stack([np.bincount(of.source, of.weight, rows) for _, of in copies])
        sums = pairs.transpose(1, 2).matmul(change)
        few, negative = in_one_call(_below_zero, pairs.sum(1) - max(self.min_group, 1), sums)
        part, whole = products((negative, sums), (1 - few, (pairs * weight[:, :, None]).sum(1)))
        (counted,) = products((1 - few, (sums - 2 * part).sum(2)))
        none = (1 - few).sum(1) < 1
        return counted.sum(1), _double(shown) * whole.sum(1) + none, 1 - none

    def _pairs(self, groups: AtHolder, target: AtHolder, rows: int, count: int) -> Shared:
        """1 where a record is of one group and moved to another (records x ordered pairs of groups)."""
        chosen = None
        if self.session.rank == self.group_holder:
            if groups is None or target is None:
                raise ValueError("the holder of s needs it, and the groups that a model moves records to")
            moved = np.flatnonzero((target >= 0) & (target != groups))
            chosen = np.zeros((rows, count * (count - 1)))
            chosen[moved, (groups * (count - 1) + target - (target > groups))[moved]] = 1
        return self.session.share(chosen, owner=self.group_holder, shape=(rows, count * (count - 1)), bits=0)

    def _widest(self, rates: Shared, reportable: Shared) -> Shared:
        """Largest difference between two groups that count, for each rate (rates x groups); 0 if there is no pair."""
        one, other = np.tril_indices(rates.size(1), -1)
        both = reportable[:, one] * reportable[:, other]
        return largest(both * self.size(rates[:, one] - rates[:, other]))


class _Figures:
    """Values to open: means over records, weighted means over copies, and values that are opened as they are."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._sums: dict[str, tuple[Shared, float]] = {}
        self._kept: dict[str, Shared] = {}

    def mean(self, name: str, total: Shared, divisor: float = 1.0) -> None:
        """A sum over records that is divided by their number and by a public divisor."""
        self._sums[name] = total, divisor

    def rate(self, name: str, number: Shared) -> None:
        """A number of records over the number of all records."""
        self.mean(name, number * UNIT, UNIT)

    def weighted(self, name: str, values: Shared, of: Copies) -> None:
        """A mean over copies, with their public weights; the values of a copy are added up."""
        weights = np.rint(of.weight / of.weight.max() * UNIT).astype(np.int64)
        self.mean(
            name,
            (values.reshape(len(weights), -1).sum(1) * torch.from_numpy(weights)).sum(),
            float(weights.sum()) / self._rows,
        )

    def keep(self, name: str, value: Shared) -> None:
        self._kept[name] = value

    def opened(self, session: Session, names: Sequence[str]) -> dict[str, float]:
        """Open all values. Sums with the same fraction are divided in one round."""
        values = dict(self._kept)
        for bits in sorted({session.fraction(total) for total, _ in self._sums.values()}):
            same_fraction = [name for name, (total, _) in self._sums.items() if session.fraction(total) == bits]
            means = crypten.stack([self._sums[name][0] for name in same_fraction]) / self._rows
            values |= {name: means[number] for number, name in enumerate(same_fraction)}
        opened = open_to_all(session, crypten.stack([values[name] for name in names]), EXACT_EVALUATION.name)
        divisors = [self._sums[name][1] if name in self._sums else 1.0 for name in names]
        return dict(zip(names, (opened / divisors).tolist(), strict=True))


def _below_zero(values: Shared) -> Shared:
    return values < 0


def _agreement(one: Shared, other: Shared, product: Shared) -> Shared:
    """1 for each row where two bits, or two one-hots, are the same."""
    if one.size(1) > 1:
        return product.sum(1)
    return (1 - one - other + 2 * product)[:, 0]


def _double(shown: Shared) -> int:
    """A decision that changes leaves one of several classes and enters another: both count there."""
    return 1 if shown.size(1) == 1 else 2


def _by_record(values: Shared, of: Copies, rows: int) -> Shared:
    """Weighted sums over the copies of each record (records x columns)."""
    weighted = values * of.weight[:, None]
    nothing = (weighted[:1] * 0).expand(rows, weighted.size(1)).clone()
    return nothing.index_add(0, torch.from_numpy(of.source), weighted)


def _per_model(values: Shared, copies: SharedCopies) -> dict[str, tuple[Shared, Copies]]:
    """Values of all copies, by counterfactual model."""
    by_model, at = {}, 0
    for model, (_, of) in copies.items():
        by_model[model] = values[at : at + len(of.source)], of
        at += len(of.source)
    return by_model


def _column(values: AtHolder) -> AtHolder:
    return None if values is None else np.asarray(values).reshape(-1, 1)


Shared = Any
"""A CrypTen tensor. CrypTen has no types for mypy."""
SharedCopies = Mapping[str, tuple[Shared, Copies]]
"""By counterfactual model: logits of copies of test records, and whose copies they are."""


def in_one_call(function: Callable[[Shared], Shared], *values: Shared) -> list[Shared]:
    """The function of each tensor, computed on all of them at once: the rounds of one call."""
    result = function(crypten.cat([value.reshape(-1) for value in values]))
    return split(result, [tuple(value.size()) for value in values])


def products(*pairs: tuple[Shared, Shared]) -> list[Shared]:
    """Products of whole numbers with numbers of any fraction; one round, and nothing is rounded.

    The factors of a pair are broadcast. All results have the longest fraction among the second factors.
    """
    shapes = [tuple(torch.broadcast_shapes(a.size(), b.size())) for a, b in pairs]
    factors = zip(*pairs, strict=True)
    left, right = (
        crypten.cat([one.expand(shape).reshape(-1) for one, shape in zip(side, shapes, strict=True)])
        for side in factors
    )
    return split(left * right, shapes)


def split(vector: Shared, shapes: Sequence[tuple[int, ...]]) -> list[Shared]:
    """A vector as tensors of these shapes, one after the other."""
    tensors, at = [], 0
    for shape in shapes:
        end = at + prod(shape)
        tensors.append(vector[at:end].reshape(shape))
        at = end
    return tensors


def squares(session: Session, value: Shared) -> Shared:
    """Squares with twice the fraction: nothing is rounded. One round."""
    whole = session.with_fraction(value, 0)
    return session.with_fraction(whole.square(), 2 * session.fraction(value))


def largest(values: Shared) -> Shared:
    """The largest of each row (rows x values). Each halving takes one comparison and one product."""
    while values.size(1) > 1:
        half = values.size(1) // 2
        one, other, rest = values[:, :half], values[:, half : 2 * half], values[:, 2 * half :]
        more = other - one
        values = crypten.cat([one + (more > 0) * more, rest], dim=1)
    return values[:, 0]
