"""The paper's qualitative appendix as data: its methods and ours on one seed of a public data set.

Roles with mutual information, representations, training curves, and single people; `research.qualitative_tables`
writes them down. Every measure has its control next to it: permuted s, or chance.

A picture of two principal components shows little of a representation, and the eye finds groups where there are none.
So each comes with the area under the ROC curve (AUC) of a linear classifier of s, fitted on training records and
tested on held-out ones, on the two components and on the whole representation. 0.5 is chance.

Who is shown is decided by a stated rule that looks at the label and at the score of plain training before any
counterfactual. The size of a counterfactual is the root of the sum of squares of `column_sizes`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.layout import Layout, one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.counterfactual_models import FIRST
from secure_sccvfl.evaluation.examples import AFTER, BEFORE, STILL, heaviest
from secure_sccvfl.evaluation.explained import column_sizes, moves
from secure_sccvfl.evaluation.information import information
from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.evaluation.metrics import Predictor, flat, logits_of
from secure_sccvfl.evaluation.prepared import Fitted, Prepared, own_rows, prepare
from secure_sccvfl.evaluation.scoring import ScoringSet, fit_counterfactuals
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.research.paper.networks import TrainedNetwork

SHOWN = ("erm_network", "uniform_cf", "policy_blind", "server_consistency", "paper", "scc")
"""The paper's methods and ours, by their names in the tables; the first is plain training."""
OURS, PAPER = "scc", "paper"
GROUP = 1
"""People of the second group are shown, as in the paper."""
PERMUTATIONS = 100
MOST_ROWS, MOST_POINTS = 1000, 400
RIDGE, SPREAD = 0.01, 1e-9


def of_methods(dataset: str, split: SplitKind, seed: int, card: str = "") -> dict[str, Any]:
    """The paper's qualitative analysis on one seed: roles, representations, curves, people. One thread."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore", DataWarning)
        data = load(dataset)
        return analyse(prepare(data, make_split(data, split, seed), seed, card=named_card(card, dataset)))


def analyse(ready: Prepared, names: Sequence[str] = SHOWN) -> dict[str, Any]:
    """The analysis of methods that are trained here."""
    judges = fit_counterfactuals(ready.data, ready.split, ready.roles, ready.seed, (FIRST,))
    fitted = {name: METHODS.get(name)(ready) for name in names}
    rows, attribute = ready.split.train, ready.data.protected[0]
    parties = [party.take(rows) for party in ready.parties]
    known = information(parties, attribute.codes[rows], len(attribute.groups), ready.seed)
    scores = {name: float(value) for name, value in ready.model.finding.scores.items()}
    result: dict[str, Any] = {
        "roles": dict(ready.roles.of),
        "scores": scores,
        "information": known,
        "groups": list(attribute.groups),
        "mixing": fused_mixing(ready, fitted),
        "history": {name: curve for name, method in fitted.items() if (curve := _history(method))},
        "trials": [asdict(trial) for trial in ready.model.trials],
        "lambda": ready.model.lam,
        "methods": {name: _figures(judges, method.predict) for name, method in fitted.items()},
        "cases": [],
        "recourse": [],
    }
    if ready.data.task == "binary" and judges.edits:
        held_out = HeldOut.of(ready, judges)
        subjects = {name: _subject(ready, name, method) for name, method in fitted.items()}
        result["cases"] = cases(held_out, subjects, names[0])
        result["recourse"] = recourse(held_out, subjects[OURS])
    return result


def _history(fitted: Fitted) -> list[dict[str, float | None]]:
    """The training curve of a network, a record for each epoch; None: not defined. Empty for other methods."""
    if not isinstance(fitted.predict, TrainedNetwork):
        return []
    records = [asdict(record) for record in fitted.predict.history]
    return [{key: value if math.isfinite(value) else None for key, value in record.items()} for record in records]


def _figures(judges: ScoringSet, predict: Predictor) -> dict[str, float]:
    """Accuracy, and the flip rate under the first counterfactual model with its permutation baseline."""
    wanted = ("acc", f"fr_{FIRST}", f"fr_null_{FIRST}")
    return {name: value for name, value in flat(judges.score(predict)).items() if name in wanted}


@dataclass(frozen=True)
class Represented:
    """Training and held-out records in one representation, and their groups."""

    train: np.ndarray
    test: np.ndarray
    train_codes: np.ndarray
    test_codes: np.ndarray


def fused_mixing(ready: Prepared, fitted: Mapping[str, Fitted]) -> list[dict[str, Any]]:
    """What the encoders of each method make of the records."""
    return [
        {"method": name, **mixing(_represented(ready, method.fused), ready.seed)}
        for name, method in fitted.items()
        if method.fused is not None
    ]


def _represented(ready: Prepared, encode: Callable[[np.ndarray], np.ndarray]) -> Represented:
    """Training and test records in this representation: at most so many of each, at random."""
    codes, split = ready.data.protected[0].codes, (ready.split.train, ready.split.test)
    parts = [stream(ready.seed, "mixing-rows").permutation(rows)[:MOST_ROWS] for rows in split]
    return Represented(*(encode(ready.inputs[rows]) for rows in parts), *(codes[rows] for rows in parts))


def components(z: np.ndarray, at: np.ndarray, count: int = 2) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Both on the first principal components of z, and the share of z's variance that each of these has."""
    mean = z.mean(axis=0)
    _, size, directions = np.linalg.svd(z - mean, full_matrices=False)
    energy = float((size**2).sum())
    shares = [float(s**2 / energy) if energy > SPREAD else 0.0 for s in size[:count]]
    axes = directions[:count].T
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])  # one sign, run after run
    return (z - mean) @ axes, (at - mean) @ axes, shares


def mixing(seen: Represented, seed: int) -> dict[str, Any]:
    """Points of held-out records on two components, and what a classifier reads of s there and from the whole."""
    train, test, shares = components(seen.train, seen.test)
    return {
        "width": seen.train.shape[1],
        "shares": shares,
        "two": read_s(Represented(train, test, seen.train_codes, seen.test_codes), seed),
        "whole": read_s(seen, seed),
        "points": np.round(test[:MOST_POINTS], 4).tolist(),
        "groups": [int(code) for code in seen.test_codes[:MOST_POINTS]],
    }


def read_s(seen: Represented, seed: int) -> dict[str, float]:
    """AUC of a linear classifier of s (ridge regression on indicators) on held-out records, with its 95 % interval.

    null, null_high: its mean and 95 % quantile with s permuted over all records. A representation is scaled as a
    whole, not column by column: what the decision takes little from counts little.
    """
    mean, spread = seen.train.mean(axis=0), float(np.sqrt(seen.train.var(axis=0).mean()))
    if spread <= SPREAD or len(np.unique(seen.train_codes)) < 2:
        return dict.fromkeys(("auc", "low", "high", "null", "null_high"), 0.5)
    train, test = ((z - mean) / spread for z in (seen.train, seen.test))
    count = int(max(seen.train_codes.max(), seen.test_codes.max())) + 1
    penalty = RIDGE * len(train) * np.eye(train.shape[1])
    readers = test @ np.linalg.solve(train.T @ train + penalty, train.T)  # from targets of training records to scores

    def auc(known: np.ndarray, wanted: np.ndarray) -> float:
        return _auc(readers @ one_hot(known, count), wanted)

    rng = stream(seed, "mixing")
    value = auc(seen.train_codes, seen.test_codes)
    half = 1.96 * _deviation(value, seen.test_codes)
    null = [auc(rng.permutation(seen.train_codes), rng.permutation(seen.test_codes)) for _ in range(PERMUTATIONS)]
    ends = {"low": max(0.0, value - half), "high": min(1.0, value + half)}
    return {"auc": value, **ends, "null": float(np.mean(null)), "null_high": float(np.quantile(null, 0.95))}


def _auc(scores: np.ndarray, codes: np.ndarray) -> float:
    """Two groups: of the second. More: the mean over groups, each against the others."""
    areas = []
    for group in range(scores.shape[1])[-1 if scores.shape[1] == 2 else 0 :]:
        own = codes == group
        if 0 < own.sum() < len(own):
            above = rankdata(scores[:, group])[own].sum() - own.sum() * (own.sum() + 1) / 2
            areas.append(float(above / (own.sum() * (~own).sum())))
    return float(np.mean(areas)) if areas else 0.5


def _deviation(auc: float, codes: np.ndarray) -> float:
    """Standard deviation of an AUC by Hanley and McNeil; for several groups, of the smallest against the others."""
    counts = np.bincount(codes)
    few = int(counts[counts > 0].min())
    many = len(codes) - few
    if many == 0:
        return 0.0
    one, two = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (few - 1) * (one - auc**2) + (many - 1) * (two - auc**2)
    return float(np.sqrt(max(variance, 0.0) / (few * many)))


@dataclass(frozen=True)
class Rule:
    """Who is shown: the label, the decision of plain training (None: any), and the order among those."""

    name: str
    label: int
    decision: int | None
    first: Callable[[np.ndarray], np.ndarray]
    words: str


RULES = (
    Rule(
        "clearly accepted",
        0,
        0,
        lambda p: np.abs(p - np.median(p)),
        "y = 0, decided 0 by plain training: the one in the middle by score",
    ),
    Rule(
        "ambiguous",
        0,
        None,
        lambda p: np.abs(p - 0.5),
        "y = 0: the one whose score under plain training is nearest 50 %",
    ),
    Rule("high risk", 1, 1, lambda p: -p, "y = 1, decided 1 by plain training: the one with the highest score"),
)


@dataclass(frozen=True)
class Subject:
    """A method: what predicts, and its own counterfactuals of all test records with their groups, if it makes any."""

    predict: Predictor
    own: np.ndarray | None = None
    toward: np.ndarray | None = None

    def own_logit(self, row: int) -> float:
        """After the method's own counterfactual of one record."""
        if self.own is None or self.toward is None:
            raise ValueError("this method makes no counterfactuals")
        return float(logits_of(self.predict, self.own[row : row + 1], self.toward[row : row + 1])[0, 0])


@dataclass(frozen=True)
class HeldOut:
    """The test part in input space, and the first counterfactual model's change of each record, by its index."""

    data: Dataset
    roles: Roles
    inputs: np.ndarray
    edited: Mapping[int, tuple[np.ndarray, int]]

    @classmethod
    def of(cls, ready: Prepared, judges: ScoringSet) -> HeldOut:
        edited = judges.edits[FIRST]
        copies = {row: (edited.inputs[copy], int(edited.target[copy])) for row, copy in heaviest(edited).items()}
        return cls(ready.data.take(ready.split.test), ready.roles, judges.inputs, copies)

    @property
    def layout(self) -> Layout:
        return Layout.of(self.data.features)

    @property
    def codes(self) -> np.ndarray:
        return self.data.protected[0].codes

    def change(self, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
        """A counterfactual of one record: its size over mediators and over other columns, what moved and stayed."""
        layout, edited = self.layout, self.roles.edited
        moved = moves(layout, self.roles, before, after)
        names = {m["feature"] for m in moved}
        others = [name for name in layout.names if name not in edited]
        return {
            "size": float(edit_sizes(layout, edited, before[None], after[None])[0]),
            "size_others": float(edit_sizes(layout, others, before[None], after[None])[0]),
            "moved": moved,
            "fixed": [name for name in self.roles.named("N") if name not in names],
        }

    def outcome(self, logit: float) -> dict[str, Any]:
        """Decision of two classes, the probability of the second, and the logit."""
        decision = self.data.label.classes[int(logit > 0)]
        return {"decision": decision, "score": float(1 / (1 + np.exp(-logit))), "logit": float(logit)}

    def groups(self, *codes: int) -> list[str]:
        return [self.data.protected[0].groups[code] for code in codes]


def edit_sizes(layout: Layout, names: Sequence[str], before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The size of each record's change over these columns."""
    chosen = np.isin(layout.names, list(names))
    total: np.ndarray = np.sqrt((column_sizes(layout, before, after)[:, chosen] ** 2).sum(axis=1))
    return total


def chosen(held_out: HeldOut, plain: np.ndarray) -> list[tuple[Rule, int]]:
    """One test record for each rule that somebody fits; `plain`: logits of plain training."""
    moved = np.zeros(len(held_out.inputs), bool)
    for row, (after, _) in held_out.edited.items():
        moved[row] = np.abs(after - held_out.inputs[row]).max() > STILL
    people: list[tuple[Rule, int]] = []
    for rule in RULES:
        fits = moved & (held_out.codes == GROUP) & (held_out.data.label.values == rule.label)
        if rule.decision is not None:
            fits &= (plain[:, 0] > 0) == bool(rule.decision)
        rows = np.setdiff1d(np.flatnonzero(fits), [row for _, row in people])
        if len(rows):
            order = rule.first(1 / (1 + np.exp(-plain[rows, 0])))
            people.append((rule, int(rows[np.argmin(order)])))
    return people


def cases(held_out: HeldOut, subjects: Mapping[str, Subject], plain: str) -> list[dict[str, Any]]:
    """Each chosen person under every method: the common counterfactual, and the method's own."""
    studies = []
    for rule, row in chosen(held_out, logits_of(subjects[plain].predict, held_out.inputs, held_out.codes)):
        before, (after, target) = held_out.inputs[row], held_out.edited[row]
        codes = np.array([held_out.codes[row], target])
        methods: dict[str, Any] = {}
        for name, subject in subjects.items():
            old, new = logits_of(subject.predict, np.stack([before, after]), codes)[:, 0]
            methods[name] = {BEFORE: held_out.outcome(old), AFTER: held_out.outcome(new)}
            if subject.own is not None:
                own = {AFTER: held_out.outcome(subject.own_logit(row)), **held_out.change(before, subject.own[row])}
                methods[name]["own"] = own
        studies.append(
            {
                "case": rule.name,
                "rule": rule.words,
                "id": str(held_out.data.ids[row]),
                "label": held_out.data.label.classes[int(held_out.data.label.values[row])],
                "groups": held_out.groups(*codes),
                **held_out.change(before, after),
                "methods": methods,
            }
        )
    return studies


def recourse(held_out: HeldOut, subject: Subject) -> list[dict[str, Any]]:
    """Two people of the second group, decided 0 and 1, and the method's own counterfactual of them.

    Of each decision the one in the middle by size, among those that change.
    """
    if subject.own is None or subject.toward is None:
        return []
    logits = logits_of(subject.predict, held_out.inputs, held_out.codes)[:, 0]
    size = edit_sizes(held_out.layout, held_out.roles.edited, held_out.inputs, subject.own)
    people = []
    for decision in (0, 1):
        rows = np.flatnonzero((held_out.codes == GROUP) & (size > STILL) & ((logits > 0) == bool(decision)))
        if not len(rows):
            continue
        row = int(rows[np.argsort(size[rows], kind="stable")[len(rows) // 2]])
        people.append(
            {
                "id": str(held_out.data.ids[row]),
                "groups": held_out.groups(GROUP, int(subject.toward[row])),
                BEFORE: held_out.outcome(float(logits[row])),
                AFTER: held_out.outcome(subject.own_logit(row)),
                **held_out.change(held_out.inputs[row], subject.own[row]),
            }
        )
    return people


def _subject(ready: Prepared, name: str, fitted: Fitted) -> Subject:
    """A method with its own counterfactuals: of its network, or of the default run's generator."""
    own, toward = own_rows(ready)
    if name != OURS:
        return Subject(fitted.predict, fitted.own(ready.split.test) if fitted.own is not None else None, toward)
    return Subject(fitted.predict, own, toward)
