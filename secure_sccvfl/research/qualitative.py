"""The paper's qualitative appendix as data: its methods and ours on one seed of a public data set.

Roles with mutual information, representations, training curves, and single people; `research.qualitative`
writes them down. Every measure has its control next to it: permuted s, or chance.

A picture of two principal components shows little of a representation, and the eye finds groups where there are none.
So each comes with the area under the ROC curve (AUC) of a linear classifier of s, fitted on training records and
tested on held-out ones, on the two components and on the whole representation. 0.5 is chance.

Who is shown is decided by a stated rule that looks at the label and at the score of plain training before any
counterfactual. The size of a counterfactual is the root of the sum of squares of `column_sizes`.
"""

from __future__ import annotations

import datetime
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.patches import Patch
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits

from accounting.charts import percent, tidy
from accounting.plain_text import markdown, plain
from accounting.tables import Table
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset, DataWarning
from secure_sccvfl.data.layout import Layout, one_hot
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import SplitKind, make_split
from secure_sccvfl.evaluation.counterfactual_models import FIRST
from secure_sccvfl.evaluation.examples import AFTER, BEFORE, STILL, column_sizes, heaviest, moves
from secure_sccvfl.evaluation.methods import METHODS, Fitted, Prepared, own_rows, prepare
from secure_sccvfl.evaluation.pooled import information
from secure_sccvfl.evaluation.scoring import Predictor, ScoringSet, fit_counterfactuals, flat, logits_of
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.reports.results import Change, Description, Outcome, decode
from secure_sccvfl.research.paper.networks import TrainedNetwork
from secure_sccvfl.research.tables import saved

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


def mixing(view: Represented, seed: int) -> dict[str, Any]:
    """Points of held-out records on two components, and what a classifier reads of s there and from the whole."""
    train, test, shares = components(view.train, view.test)
    return {
        "width": view.train.shape[1],
        "shares": shares,
        "two": read_s(Represented(train, test, view.train_codes, view.test_codes), seed),
        "whole": read_s(view, seed),
        "points": np.round(test[:MOST_POINTS], 4).tolist(),
        "groups": [int(code) for code in view.test_codes[:MOST_POINTS]],
    }


def read_s(view: Represented, seed: int) -> dict[str, float]:
    """AUC of a linear classifier of s (ridge regression on indicators) on held-out records, with its 95 % interval.

    null, null_high: its mean and 95 % quantile with s permuted over all records. A representation is scaled as a
    whole, not column by column: what the decision takes little from counts little.
    """
    mean, spread = view.train.mean(axis=0), float(np.sqrt(view.train.var(axis=0).mean()))
    if spread <= SPREAD or len(np.unique(view.train_codes)) < 2:
        return dict.fromkeys(("auc", "low", "high", "null", "null_high"), 0.5)
    train, test = ((z - mean) / spread for z in (view.train, view.test))
    count = int(max(view.train_codes.max(), view.test_codes.max())) + 1
    penalty = RIDGE * len(train) * np.eye(train.shape[1])
    readers = test @ np.linalg.solve(train.T @ train + penalty, train.T)  # from targets of training records to scores

    def auc(known: np.ndarray, wanted: np.ndarray) -> float:
        return _auc(readers @ one_hot(known, count), wanted)

    rng = stream(seed, "mixing")
    value = auc(view.train_codes, view.test_codes)
    half = 1.96 * _deviation(value, view.test_codes)
    null = [auc(rng.permutation(view.train_codes), rng.permutation(view.test_codes)) for _ in range(PERMUTATIONS)]
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


matplotlib.use("Agg")


Found = Mapping[str, Any]
ROLES = {
    "P": ("proxy (P)", "tab:red", ".."),
    "M": ("mediator (M)", "tab:green", "xx"),
    "N": ("non-descendant (N)", "tab:blue", "//"),
}
GROUP_MARKS = "osD^v<>p"
TRAINING_CURVES = (
    ("loss", ("train_loss", "validation_loss")),
    ("validation accuracy", ("validation_accuracy",)),
    ("SCG and FR on validation", ("scg", "fr")),
)


def write_qualitative(folder: Path, found: Found, words: Description, command: str) -> str:
    """Write data, tables and plots into a folder; returns the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"experiment": "qualitative", "command": command, "date": datetime.date.today().isoformat()}
    (folder / "results.json").write_text(json.dumps({**facts, **found}, indent=1) + "\n", encoding="utf-8")
    pictures = draw(found, folder)
    text = tables(found, words, pictures)
    text = f"Made by `{command}` on {facts['date']}.\n\n{text}"
    (folder / "results.md").write_text(text, encoding="utf-8")
    return text


def tables(found: Found, words: Description, pictures: Sequence[str] = ()) -> str:
    """All tables, in the order of the paper's appendix."""
    parts = [_mask(found), _representations(found), *(_case(case, words) for case in found["cases"])]
    parts += [_recourse(person, words) for person in found["recourse"]]
    shown = [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures]
    return "\n\n".join(["# Qualitative analysis", *shown, *filter(None, parts)]) + "\n"


def _mask(found: Found) -> str:
    known = found["information"]
    rows = [
        (
            name,
            tidy(known[name]["mi"], 4),
            tidy(known[name]["null"], 4),
            tidy(known[name]["null_high"], 4),
            tidy(found["scores"][name], 3),
            ROLES[found["roles"][name]][0],
        )
        for name in sorted(known, key=lambda name: -known[name]["mi"])
    ]
    text = (
        "Mutual information with s in nats, in plaintext on the training part, from counts over public bins. Next to "
        "it what it is with s permuted: the mean, and what one permutation in twenty exceeds. The score is the noisy "
        "one that roles rest on."
    )
    heads = ("column", "MI", "MI, s permuted", "95 % of permutations below", "score", "role")
    return f"## Roles\n\n{text}\n\n{Table(heads, rows)}"


def _representations(found: Found) -> str:
    rows = [
        (m["method"], str(m["width"]), percent(sum(m["shares"])), _reading(m["two"]), _reading(m["whole"]))
        for m in found["mixing"]
    ]
    heads = ("method", "columns", "variance on two", "AUC, two components", "AUC, whole")
    return (
        "## Representations\n\nAUC of a linear classifier of s, fitted on training records, on test records: on two "
        "principal components and on the whole. 0.5 is chance. In brackets the 95 % interval, then what one "
        f"permutation of s in twenty exceeds. A run under MPC hides this representation.\n\n{Table(heads, rows)}"
    )


def _reading(read: Mapping[str, float]) -> str:
    return (
        f"{tidy(read['auc'], 3)} ({tidy(read['low'], 3)} to {tidy(read['high'], 3)}); "
        f"permuted up to {tidy(read['null_high'], 3)}"
    )


def _moved(moved: Sequence[Mapping[str, Any]], words: Description, most: int = 5) -> str:
    more = f"; {len(moved) - most} more" if len(moved) > most else ""
    shown = [(m["role"], *words.change(decode(Change, m))) for m in moved[:most]]
    return "; ".join(f"{name} ({role}): {old} to {new}" for role, name, old, new in shown) + more


def _said(words: Description, seen: Mapping[str, Any]) -> str:
    return f"{words.decision(decode(Outcome, seen))}, {percent(seen['score'])}"


def _case(case: Mapping[str, Any], words: Description) -> str:
    rows = []
    for name, seen in case["methods"].items():
        own = seen.get("own")
        flips = [
            "" if after is None else "stays" if after["decision"] == seen["before"]["decision"] else "flips"
            for after in (seen["after"], own["after"] if own else None)
        ]
        rows.append(
            (
                name,
                _said(words, seen["before"]),
                _said(words, seen["after"]),
                flips[0],
                *((_said(words, own["after"]), flips[1]) if own else ("", "")),
                f"{tidy(own['size'], 2)} + {tidy(own['size_others'], 2)}" if own else "",
                _moved(own["moved"], words, 3) if own else "",
            )
        )
    heads = ("method", "before", "after, common", "", "after, own", "", "size: mediators + others", "moved most")
    groups = " to ".join(markdown(words.groups[g]) for g in case["groups"])
    text = (
        f"Record {case['id']}, in truth “{markdown(words.classes[case['label']])}”, {groups}. Rule: {case['rule']}. "
        f"The common counterfactual has size {tidy(case['size'], 2)}: "
        f"{markdown(_moved(case['moved'], words))}. Scores: {markdown(words.score)}."
    )
    return f"## Case: {case['case']}\n\n{text}\n\n{Table(heads, rows)}"


def _recourse(person: Mapping[str, Any], words: Description) -> str:
    groups = " to ".join(markdown(words.groups[g]) for g in person["groups"])
    rows = [
        (name, m["role"], old, new) for m in person["moved"] for name, old, new in [words.change(decode(Change, m))]
    ]
    text = (
        f"Record {person['id']}, {groups}: {markdown(_said(words, person['before']))} before and "
        f"{markdown(_said(words, person['after']))} after the counterfactual of `scc`'s own generator, size "
        f"{tidy(person['size'], 2)}. Other columns moved by {tidy(person['size_others'], 2)}. Held fixed: "
        f"{markdown(', '.join(words.name(name) for name in person['fixed']))}. It says what the other group "
        "tends to have; it is no advice to the person."
    )
    head = f"## Counterfactual of a person decided “{markdown(words.classes[person['before']['decision']])}”"
    return f"{head}\n\n{text}\n\n{Table(('column', 'role', 'from', 'to'), rows)}"


# Plots.


def draw(found: Mapping[str, Any], folder: Path) -> list[str]:
    """All plots into a folder; returns the names of those that there are data for."""
    names = [role_plot(found, folder / "roles.png"), representation_plot(found, folder / "representations.png")]
    if PAPER in found["history"]:
        names.append(training_plot(found["history"][PAPER], PAPER, folder / "training.png"))
    return names


def role_plot(found: Mapping[str, Any], path: Path) -> str:
    """Columns by score, coloured by role; below, mutual information with the level that chance reaches."""
    names = sorted(found["scores"], key=lambda name: -found["scores"][name])
    _, (upper, lower) = plt.subplots(2, 1, figsize=(10, 7), sharex=True)
    known = [found["information"][name] for name in names]
    for axis, values in ((upper, [found["scores"][n] for n in names]), (lower, [k["mi"] for k in known])):
        for place, (name, value) in enumerate(zip(names, values, strict=True)):
            _, colour, hatch = ROLES[found["roles"][name]]
            axis.bar(place, value, color=colour, hatch=hatch, edgecolor="black", alpha=0.6)
    lower.plot(range(len(names)), [k["null_high"] for k in known], "k_", ms=12, label="s permuted, 95 %")
    lower.legend(fontsize=8)
    upper.set(ylabel="noisy score", title="scores and roles")
    lower.set(ylabel="MI(x, s), nats")
    upper.legend(handles=[Patch(color=c, label=word, alpha=0.6) for word, c, _ in ROLES.values()], fontsize=8)
    lower.set_xticks(range(len(names)), [plain(name) for name in names], rotation=90)
    return saved(path)


def representation_plot(found: Mapping[str, Any], path: Path) -> str:
    """Two components of each method's representation, by group, with the AUC of a classifier in the title."""
    views = found["mixing"]
    columns = min(3, len(views))
    rows = -(-len(views) // columns)
    _, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.9 * rows), squeeze=False)
    for axis in axes.flat[len(views) :]:
        axis.axis("off")
    for axis, view in zip(axes.flat, views, strict=False):
        for code, name in enumerate(found["groups"]):
            points = [p for p, g in zip(view["points"], view["groups"], strict=True) if g == code]
            if points:
                mark = GROUP_MARKS[code % len(GROUP_MARKS)]
                axis.plot(*zip(*points, strict=True), mark, ms=3, alpha=0.6, label=plain(f"s = {name}"))
        two, whole = view["two"], view["whole"]
        axis.set_title(
            f"{view['method']}\nAUC of s: two {two['auc']:.2f} (permuted to {two['null_high']:.2f}), "
            f"whole {whole['auc']:.2f}",
            fontsize=8,
        )
    axes[0][0].legend(fontsize=7)
    return saved(path)


def training_plot(curve: list[Mapping[str, Any]], name: str, path: Path) -> str:
    """Loss, validation accuracy, and SCG and flips over epochs."""
    _, axes = plt.subplots(1, len(TRAINING_CURVES), figsize=(12, 3.6))
    for axis, (title, keys) in zip(axes, TRAINING_CURVES, strict=True):
        for key in keys:
            points = [(r["epoch"], r[key]) for r in curve if r.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), label=key)
        axis.set(xlabel="epoch", title=title)
        if axis.lines:
            axis.legend(fontsize=7)
    plt.gcf().suptitle(name, fontsize=9)
    return saved(path)
