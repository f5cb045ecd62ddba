"""The catalogue of everything that may leave a run: the only source of release plans, openings and docs/releases.md.

Each `Kind` says what is opened, to whom, in what shape and how often, about whom, and why it may leave. A value whose
kind is not in `CATALOGUE` cannot be opened. A charged kind needs the receipt of its charge (`charging.py`) and names
the canary that the DP audit tests it with.

To add a released statistic: add its `Kind` here and to `CATALOGUE`, compute it where its values are, and, if it is
charged, add its canary to `secure_sccvfl/audit/canaries.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

from secure_sccvfl.protocols.alignment.interface import COMMON, EQUAL, SIZES, UNION
from secure_sccvfl.protocols.records.releases import ANY, Release

Receivers = Literal["all", "owner", "receiver"]
Basis = Literal["charged", "follows", "public", "exact", "uncharged", "asked"]
Stage = (
    Literal["alignment", "discovery", "inputs", "edits", "head", "validation", "split", "dp"]
    | Literal["evaluation", "exact evaluation", "prediction"]
)
Columns = Mapping[int, Mapping[str, int]]
"""Public: rank -> feature -> number of columns."""
REDRAWS = 32
"""Redraws of each feature's numbers that its owner announces, for the confidence of roles."""


@dataclass(frozen=True)
class PlanFacts:
    """The public facts that a plan of releases follows from, all known before a session starts.

    bins: public bins of each party's features. groups: of each protected attribute. sizes: lengths that only one job
    knows. tables: not empty where cached DP releases of an earlier run are used. may_be_missing: the features whose
    values may be missing. The other fields are options of a run, under their names (`with_settings`).
    """

    bins: Columns
    groups: tuple[int, ...] = ()
    sizes: Mapping[str, int] | None = None
    refreshes: int = 0
    late_refreshes: int = 0
    rule: str = ""
    score: str = ""
    conditional: bool = False
    gain: bool = False
    evaluation: str = ""
    lambdas: tuple[float, ...] = ()
    tables: str = ""
    align: str = "exact"
    private_model: bool = False
    consistency_from: str = ""
    baselines: bool = False
    may_be_missing: tuple[str, ...] = ()
    what_if: bool = False
    reasons: bool = False

    def with_settings(self, *settings: object) -> PlanFacts:
        """The same facts, updated by the fields of these settings that have the same names."""
        names = [f.name for f in fields(self)]
        return replace(self, **{n: getattr(one, n) for one in settings for n in names if hasattr(one, n)})

    def length(self, symbol: str, rank: int | None) -> int:
        """The length that a symbol in a kind's shape stands for; `rank` is the owner where there is one."""
        owner_bins = self.bins.get(rank, {}) if rank is not None else {}
        features = sum(len(names) for names in self.bins.values())
        lengths = {
            "*": ANY,
            "1": 1,
            "2": 2,
            "4": 4,
            "lambdas": len(self.lambdas),
            "parties": len(self.bins),
            "other parties": len(self.bins) - 1,
            "features": features,
            "redraws": REDRAWS * features,
            "may be missing": sum(name in self.may_be_missing for names in self.bins.values() for name in names),
            "own features": len(owner_bins),
            "own bins": sum(owner_bins.values()),
            "own halves": 2 * len(owner_bins),
            "groups": sum(self.groups),
            "attributes": len(self.groups),
            "squares": len(self.groups) + 1,
            **(self.sizes or {}),
        }
        return lengths[symbol if rank is None or f"{symbol} {rank}" not in lengths else f"{symbol} {rank}"]


def once(facts: PlanFacts) -> int:
    return 1


_ABOUT: Mapping[Stage, str] = {
    "alignment": "all records: which parties hold them",
    "discovery": "training records: s and the columns of the owner",
    "inputs": "nobody: the public description",
    "edits": "training records: s and the columns of the owner",
    "head": "training records: x, label and s",
    "validation": "validation records: x, label and s",
    "split": "training records: x, label and s",
    "dp": "training records: label, x of P",
    "evaluation": "test records: x, label and s",
    "exact evaluation": "test records: x, label and s",
    "prediction": "new records: columns of all parties",
}
_RECEIVER: Mapping[Receivers, str] = {"all": "all parties", "owner": "party P", "receiver": "the receiver"}
_EPSILON: Mapping[Basis, str] = {
    "charged": "training ledger",
    "follows": "no further cost: computed from {}",
    "public": "none needed: public",
    "exact": "none: for public data, or if all parties agree before training",
    "uncharged": "none",
    "asked": "none: one answer for each person and model, counted",
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of value that leaves the computation.

    title: its name in plans and logs; K stands for a number and P for a party. to: all parties, the owner of the
    columns it is about, or one chosen receiver. shape: a symbol of `PlanFacts.length` for each dimension. basis: why
    it may leave. what: a short description, for reports. purpose: its declaration in plans and logs. about: which
    records and columns (default: by stage). why: conditions and reasons, for docs/releases.md. charge: the event that
    pays for a charged kind (default: the title without the party), and `pays` its part of a release's declaration
    where charges are numbered and releases are not. canary: of a charged kind, its class in
    `secure_sccvfl.audit.canaries`. follows: kinds that it is computed from. numbers: how many numbered
    releases there are (title with K). times: how often each is made; 0 where the settings of a run leave it out.
    """

    title: str
    to: Receivers = "all"
    stage: Stage
    shape: tuple[str, ...] = ("*",)
    basis: Basis
    what: str
    purpose: str
    why: str
    about: str = ""
    charge: str | None = None
    pays: str | None = None
    canary: str = ""
    follows: tuple[str, ...] = ()
    numbers: Callable[[PlanFacts], int] = once
    times: Callable[[PlanFacts], int] = once

    def __post_init__(self) -> None:
        object.__setattr__(self, "about", self.about or _ABOUT[self.stage])
        if self.basis == "charged" and self.charge is None:
            object.__setattr__(self, "charge", self.title.removesuffix(" for party P"))
        if (self.basis == "charged") != bool(self.charge) or (self.basis == "charged") != bool(self.canary):
            raise ValueError(f"{self.title}: a charged release, and no other, has a charge and a canary")
        if (self.basis == "follows") != bool(self.follows):
            raise ValueError(f"{self.title}: a release that follows from others, and no other, names them")

    @property
    def receiver(self) -> str:
        return _RECEIVER[self.to]

    @property
    def epsilon(self) -> str:
        """What it costs, in words."""
        if self.basis == "charged" and self.stage == "evaluation":
            return "evaluation ledger"
        return _EPSILON[self.basis].format(", ".join(self.follows))

    @property
    def name(self) -> str:
        """The title without the number and the party."""
        return re.sub(r"-K| for party P| P$", "", self.title)

    def titled(self, rank: int | None = None, number: int | None = None) -> str:
        """The name of one release in plans and logs."""
        title = self.title if number is None else self.title.replace("-K", f"-{number}")
        return title if rank is None else re.sub(r"P$", str(rank), title)

    def charged_as(self, number: int | None = None) -> str:
        """The name of the charge that pays for a release of this kind."""
        if self.charge is None:
            raise ValueError(f"a release of kind {self.name!r} is not charged")
        return self.charge if number is None else self.charge.replace("-K", f"-{number}")

    def releases(
        self, facts: PlanFacts, *, receiver: int | None = None, times: int | None = None, detail: str = ""
    ) -> list[Release]:
        """All releases of this kind in a plan. `detail` is added to the purpose."""
        times = self.times(facts) if times is None else times
        if times < 1:
            return []
        numbers: Iterable[int | None] = range(self.numbers(facts)) if "-K" in self.title else (None,)
        owners: Iterable[int | None] = [r for r in facts.bins if facts.bins[r]] if self.to == "owner" else (None,)
        return [self._release(facts, r, k, receiver, times, detail) for k in numbers for r in owners]

    def _release(
        self, facts: PlanFacts, rank: int | None, number: int | None, receiver: int | None, times: int, detail: str
    ) -> Release:
        to = tuple(facts.bins) if self.to == "all" else (rank if receiver is None else receiver,)
        if None in to:
            raise ValueError(f"a release of kind {self.name!r} needs a receiver")
        paid = None if self.charge is None else self.charged_as(number) if self.pays is None else self.pays
        return Release(
            self.titled(rank, number),
            tuple(one for one in to if one is not None),
            tuple(facts.length(symbol, rank) for symbol in self.shape),
            f"{self.purpose}{detail}",
            event=paid,
            times=times,
        )

    def is_name(self, name: str) -> bool:
        """Whether a release with this name is of this kind."""
        pattern = re.escape(self.title).replace("\\-K", r"-\d+")
        return re.fullmatch(re.sub(r"P$", r"\\d+", pattern), name) is not None

    def number_of(self, charge: str) -> int | None:
        """The number in the name of a charge of this kind (inverse of `charged_as`); None for other names."""
        if self.charge is None or "-K" not in self.charge:
            return None
        match = re.fullmatch(re.escape(self.charge).replace("\\-K", r"-(\d+)"), charge)
        return None if match is None else int(match[1])


_alignment = partial(Kind, stage="alignment", basis="uncharged")
_statistic = partial(Kind, to="owner", stage="discovery", basis="charged")
_computed = partial(Kind, stage="discovery", basis="follows", follows=("sketch",))
_announcement = partial(_computed, purpose="follows from noisy releases that were paid for")
_announced_size = partial(Kind, stage="inputs", shape=("parties",), basis="public")
_edit_check = partial(Kind, stage="edits", basis="follows", follows=("sketch",))
_head = partial(Kind, stage="head", basis="charged", times=lambda facts: int(facts.private_model))
_exact = partial(Kind, stage="validation", basis="exact")
_answer = partial(Kind, to="receiver", stage="prediction", basis="asked")


def _table_releases(facts: PlanFacts) -> int:
    return facts.refreshes + facts.late_refreshes + 1


def _edit_rounds(facts: PlanFacts) -> int:
    """How often counterfactuals are made: before joint training, and after each later release of the tables."""
    return 1 + facts.late_refreshes


def _uncached(facts: PlanFacts) -> bool:
    """Whether statistics of s are released, instead of using cached DP releases of an earlier run."""
    return not facts.tables


def _scored(facts: PlanFacts) -> bool:
    """Whether tables are scored by their owners, not under MPC, and not by conditional evidence alone."""
    return facts.score not in ("hsic", "conditional")


def _announced(facts: PlanFacts) -> int:
    """Numbers of each feature that its owner announces: with the rule "tri-partition" HSIC and probability gap."""
    return (2 if facts.rule == "tri-partition" else 1) if _scored(facts) else 0


def _projected(facts: PlanFacts) -> int:
    """How often scores are computed under MPC."""
    return _table_releases(facts) if facts.score == "hsic" else 0


ALIGNMENT = _alignment(
    title=EQUAL,
    shape=("other parties",),
    what="check: do all hold the same records?",
    purpose="does each other party hold the records of the first, in the same order",
    why="with `align = exact`: one bit for each party except the first; a 0 stops the run",
    times=lambda facts: int(facts.align == "exact"),
)
PLACES = _alignment(
    title=UNION,
    what="number of different records of all parties",
    purpose="the size of the common table, the same for all",
    why="with `align = hidden`: the number of different records of all parties, in the training and in the "
    "validation part. Two runs that differ in one record reveal whether another party holds it (`align_bounds` hides "
    "both numbers)",
    times=lambda facts: 2 * int(facts.align == "hidden"),
)
LIST_SIZES = _alignment(
    title=SIZES,
    what="number of records of each party",
    purpose="sizes of the lists that are compared",
    why="with `align = revealed`",
    times=lambda facts: int(facts.align == "revealed"),
)
COMMON_RECORDS = _alignment(
    title=COMMON,
    what="which records all parties hold",
    purpose="the records that all parties hold, each by its own ids",
    why="with `align = revealed`: each party learns which of its own records these are",
    times=lambda facts: int(facts.align == "revealed"),
)
FIRST_COUNT = Kind(
    title="first count",
    stage="discovery",
    shape=("1",),
    basis="charged",
    what="rough noisy number of common records",
    purpose="noisy number of common records, before anything else is computed on them",
    about="all records: which of them all parties hold",
    why="with `align = hidden`: five times the noise multiplier of a table, so a twenty-fifth of its privacy cost. "
    "Too few records stop the run before anything else is charged",
    canary="FirstCountCanary",
    times=lambda facts: int(facts.align == "hidden" and _uncached(facts)),
)
NOISY_TABLES = _statistic(
    title="sketch-K for party P",
    shape=("own bins", "groups"),
    what="noisy tables of its own columns by group",
    purpose="noisy tables of its features with s, to their owner alone",
    why="counts of each of P's features by group of s, with discrete Gaussian noise",
    canary="TableCanary",
    numbers=_table_releases,
    times=lambda facts: int(_uncached(facts)),
)
PRESENT = _computed(
    title="records",
    shape=("1",),
    what="noisy number of common records",
    purpose="follows from noisy tables that were paid for",
    about="all records: which of them all parties hold",
    why="with `align = hidden`: the sum of all noisy tables; too few records stop the run",
    times=lambda facts: int(facts.align == "hidden" and _uncached(facts)),
)
RESIDUALS = _statistic(
    title="residuals for party P",
    shape=("own features", "attributes"),
    what="noisy dependence of each of its columns on the group, given its other columns",
    purpose="noisy dependence of its residuals with s, to their owner alone",
    why="with `conditional` (off by default): one noisy number per feature",
    canary="ResidualsCanary",
    times=lambda facts: int(facts.conditional and _uncached(facts)),
)
RISK_GAINS = _statistic(
    title="risk gains for party P",
    shape=("own halves", "groups"),
    what="noisy sums of each of its columns' residuals, given its other columns, by group",
    purpose="noisy sums of its residuals by group, to their owner alone",
    why="with `gain` (off by default): sums by group of (1 + r) / 2 and (1 - r) / 2 of each feature's residual r, "
    "with discrete Gaussian noise",
    canary="GainsCanary",
    times=lambda facts: int(facts.gain and _uncached(facts)),
)
GROUP_SIZES = _computed(
    title="group sizes",
    shape=("groups",),
    what="noisy group sizes",
    purpose="sums of all noisy tables by group; follow from noisy tables that were paid for",
    why="the sum of all noisy tables by group of s; again after each repeated release of the tables",
    times=_projected,
)
HSIC = _computed(
    title="hsic",
    shape=("features", "squares"),
    what="dependence of each column on the group",
    purpose="computed under MPC from noisy tables that were paid for, and from nothing else",
    why="computed under MPC: the sum of squares of each feature's noisy table with the group shares projected out, "
    "and that of its sums by bin. Every party derives p-values, confidence and roles from them. Again after each "
    "repeated release. With another `score`, owners announce scores, p-values and redraws instead",
    times=_projected,
)
SCORES = _announcement(
    title="scores",
    shape=("features",),
    what="dependence of each column on the group",
    why="with `score = stable` or `paper`: announced by the owner, from the noisy counts. With `rule = "
    "tri-partition`: HSIC and probability gap of the table, one after the other",
    times=lambda facts: _table_releases(facts) * _announced(facts),
)
P_VALUES = _announcement(
    title="p-values",
    shape=("features",),
    what="p-value of each column's dependence on the group",
    why="with `rule = fdr`: from the same noisy counts",
    times=lambda facts: _table_releases(facts) if facts.rule == "fdr" and _scored(facts) else 0,
)
RESIDUAL_SCORES = _announcement(
    title="residual-scores",
    shape=("features",),
    what="dependence of each column on the group, given the owner's other columns",
    why="with `conditional`: from the noisy residuals",
    follows=("residuals",),
    times=lambda facts: int(facts.conditional),
)
GAINS = _announcement(
    title="gains",
    shape=("features",),
    what="how much the group improves the prediction of each column by the others",
    why="with `gain`: from the noisy sums of residuals",
    follows=("risk gains",),
    times=lambda facts: int(facts.gain),
)
REDRAWN_CONDITIONAL = _announcement(
    title="redrawn-conditional",
    shape=("redraws",),
    what="redraws of conditional scores, for the confidence of roles",
    why="with `conditional`, and with `gain`: 32 redraws of each feature's number within the known noise",
    follows=("residuals", "risk gains"),
    times=lambda facts: int(facts.conditional) + int(facts.gain),
)
REDRAWN_SCORES = _announcement(
    title="redrawn-scores",
    shape=("redraws",),
    what="redraws of each column's dependence on the group, for the confidence of roles",
    why="32 redraws of each feature's score within the known noise, after the last release; the confidence of each "
    "proposed role follows from them. Assume that they reveal the noisy counts to all parties; the privacy cost "
    "covers that",
    times=_announced,
)
REDRAWN_P_VALUES = _announcement(
    title="redrawn-p-values",
    shape=("redraws",),
    what="redraws of each p-value, for the confidence of roles",
    why="with `rule = fdr`: 32 redraws of each p-value",
    times=lambda facts: int(facts.rule == "fdr" and _scored(facts)),
)
MISSING_P_VALUES = _announcement(
    title="missing-p-values",
    shape=("may be missing",),
    what="p-value of the dependence of each column's missing values on the group",
    why="where values may be missing: from the row of missing values in the same noisy counts",
    times=lambda facts: int(facts.length("may be missing", None) > 0),
)
COLUMNS = _announced_size(
    title="columns",
    what="number of encoded columns of each party",
    purpose="announced: encoded columns of each party, by the public dictionary",
    why="by the public dictionary, in mode `aware` also by the card's roles",
)
FEATURES = _announced_size(
    title="features",
    what="number of columns of each party",
    purpose="announced: features of each party, by the public dictionary",
    why="by the public dictionary",
)
MOVED_FIXED = _edit_check(
    title="moved-fixed",
    what="check: does a counterfactual change a fixed column?",
    purpose="announced: 1 if an edit moved a fixed feature; follows from noisy tables that were charged",
    why="1 if a trial counterfactual changes a fixed feature, which stops the run; again after each repeated release",
    times=_edit_rounds,
)
MOVED_EDITED = _edit_check(
    title="moved-edited",
    what="check: does a counterfactual change each mediator?",
    purpose="announced: 1 if an edit moves a mediator; follows from noisy tables that were charged",
    why="0 turns the mediator into N; again after each repeated release. With `consistency_from = records` and no "
    "private model: whether that of some training record does; not charged",
    times=_edit_rounds,
)
VALIDITY = _edit_check(
    title="validity",
    shape=("4",),
    what="how far counterfactuals move columns, on average",
    purpose="sums over the parties that edit: how far edits move fixed features, leave the public range, move "
    "mediators; and how many parties these are",
    why="averages under the noisy tables. If two parties have mediators, each can subtract its own part; if one has, "
    "nothing is opened. With `consistency_from = records` and no private model: over the training records; not "
    "charged",
    times=lambda facts: len(facts.groups),
)
GUARD_LENGTH = Kind(
    title="guard-length",
    stage="head",
    shape=("2",),
    basis="follows",
    what="strength of the proxy penalty",
    purpose="sum over parties of the sizes of their guard directions; follows from noisy tables that were charged",
    about="training records: s and the columns of the owner",
    why="if there are proxies: computed from the noisy counts, with the number of parties; again after each repeated "
    "release",
    follows=("sketch",),
    times=lambda facts: len(facts.groups) * _edit_rounds(facts),
)
GRAM = _head(
    title="gram",
    shape=("*", "*"),
    what="noisy sum over training records of how counterfactuals move columns together",
    purpose="noisy Gram matrix of the training records' edits, from which the consistency penalty follows",
    about="training records: s and the mediators of all parties",
    why="with `consistency_from = records` and `private_model`: the sum over training records of the products of "
    "their counterfactual changes, in the columns of mediators, with discrete Gaussian noise",
    canary="GramCanary",
    times=lambda facts: int(facts.private_model and facts.consistency_from == "records"),
)
HEAD = _head(
    title="head",
    what="the model, in the decisions and figures that follow from it",
    purpose="the weights of the model, with noise in the training objective; never opened themselves",
    why="with `private_model` (the default). The weights are never opened, but charged as if they were. So "
    "decisions, scores and figures are post-processing with respect to training records (objective perturbation, "
    "docs/privacy-accounting.md)",
    canary="HeadCanary",
)
HEAD_OUTPUT = _head(
    title="head output",
    what="the finite precision of the model",
    purpose="noise on the finished weights, which covers their distance from the exact minimum",
    why="with `private_model`: covers the distance of the weights from the exact minimum (fixed-point arithmetic)",
    canary="HeadOutputCanary",
)
BASELINE_HEADS = _head(
    title="head of baselines",
    what="two models to compare with; they cost the model about .001 to .007 of its accuracy (benchmarks)",
    purpose="the weights of plain training and of the model without the mediators, with noise in the training "
    "objective; never opened themselves",
    why="with `evaluation.baselines`: plain training and the model without the mediators, trained and charged as the "
    "model is, from a part of its share of epsilon",
    canary="BaselineHeadCanary",
    times=lambda facts: int(facts.private_model and facts.baselines),
)
BASELINE_OUTPUT = _head(
    title="head output of baselines",
    what="the finite precision of the models to compare with",
    purpose="noise on the finished weights of the baselines, which covers their distance from the exact minimum",
    why="with `evaluation.baselines`: covers the distance of their weights from the exact minimum",
    canary="BaselineOutputCanary",
    times=lambda facts: int(facts.private_model and facts.baselines),
)
RANGE_CHECK = Kind(
    title="range check",
    stage="head",
    shape=("1",),
    basis="uncharged",
    what="check: is a score out of range of the arithmetic, or has training not converged?",
    purpose="one bit: some logit is out of range, or some head not at its optimum (it must be 0, or the run stops)",
    about="training records: x and label",
    why="one number for all lambdas, and one for each baseline, of finished heads only; 0, or the run stops. With "
    "`private_model`: how many heads have weights that are too long, or have not converged. The first follows from "
    "the private weights; the second is 0 unless training fails to converge. Without: one bit, whether some logit of "
    "a training record (with exact evaluation also of a validation record) is out of range or training has not "
    "converged. In `split`: of logits only, after the warm-up, every ten steps from then on, and before each "
    "repeated release",
    times=lambda facts: 1 + 2 * facts.baselines,
)
VALIDATION_SUMMARY = _exact(
    title="validation summary",
    shape=("lambdas", "4"),
    what="loss, consistency gap and spread of logits for each lambda",
    purpose="not private: mean loss, variance of the logit, mean squared gap and, with a flip target, share of "
    "flips under own edits of the validation part, for each lambda",
    why="only with `evaluation = exact`; the last number is always 0",
    times=lambda facts: int(facts.evaluation == "exact" and len(facts.lambdas) > facts.private_model),
)
TEMPERATURE_CHOICE = _exact(
    title="temperature choice",
    shape=("temperatures",),
    what="the best temperature for calibration",
    purpose="not private: bits that give the temperature that calibrates validation records best",
    why="only with `evaluation = exact` and without `private_model`: which of 25 temperatures calibrates best, as 24 "
    "bits (whether the validation loss rises from each to the next)",
    times=lambda facts: int(facts.evaluation == "exact" and not facts.private_model),
)
EVALUATION = Kind(
    title="evaluation",
    stage="evaluation",
    shape=("sums",),
    basis="charged",
    what="test results, this page's figures",
    purpose="noisy sums over the test records: ",
    why="sums over test records: correct decisions; records by group, label and decision; flips under each "
    "counterfactual model and its permutation baseline (regression: squared errors and shifts); certified records by "
    "group (`evaluation.certificate`). Epsilon 4 at delta 1e-5 for four evaluations of the same records "
    "(`evaluation_epsilon`, `evaluation_delta`, `evaluations`) for any number of sums: more sums mean more noise. "
    "Once for a model. With `align = hidden` also the number of these records",
    canary="EvaluationCanary",
)
EXACT_EVALUATION = Kind(
    title="evaluation",
    stage="exact evaluation",
    shape=("figures",),
    basis="exact",
    what="test results, this page's figures",
    purpose="exact figures of the test part, not private: ",
    why="with `evaluation = exact`: exact rates, means and gaps of the test records; flip rates and net flip rates "
    "under each counterfactual model and its permutation baseline; certified records; if every group has "
    "`min_group` records, how many of each have a positive decision and are certified; which rates are over too few "
    "records",
)
PREDICTIONS = _answer(
    title="predictions",
    shape=("records", "*"),
    what="scores of the example records",
    purpose="of new records, as asked for: ",
    why="decision of each new record (its logit with `--scores`; with `--certificate` one more bit, whether no "
    "values of the mediators change it), once for each person and model, for at most as many people as all parties "
    "approved (`predictions`). On public benchmark data also the logits of 24 test records before and after a "
    "counterfactual change, for the page. In mode `aware` the decision also depends on s of the record. With `align "
    "= hidden`: a bit for each record, whether all parties hold it, and the decision if it is 1",
)
OTHER_GROUPS = _answer(
    title="decisions in other groups",
    shape=("records", "other groups"),
    what="decisions about new people if they were in another group",
    purpose="of new records, as asked for: the decision in every other group, by a majority of draws of the "
    "mediators from released tables; no group is named, but a decision that differs can tell s",
    about="new records: s and columns of all parties",
    why="with `--what-if`: for each other group of s the majority decision of five draws of the mediators, in the "
    "order of the groups after the person's own, so none is named. The direction of a decision that differs can "
    "still reveal the group, because mediators move one way from each group. Counted with the decision",
    times=lambda facts: int(facts.what_if),
)
REASON_NAMES = _answer(
    title="reasons",
    shape=("records", "weighed"),
    what="which columns weigh most for and against decisions about new people",
    purpose="of new records, as asked for: the names of the three columns of any party that weigh most for the "
    "decision, and of those against it",
    why="with `--reasons` (off by default): at most three names for each decision and three against it, of columns "
    "of any party; no order, no weight and no value. Counted with the decision",
    times=lambda facts: int(facts.reasons),
)
REFUSED_RECORDS = _answer(
    title="refused records",
    shape=("records",),
    what="which new records a party could not read, or which were decided before",
    purpose="for each new record: 1 if some party cannot read a cell of it, or gave other values when it was "
    "decided before; 2 if some party has it on record as decided",
    why="the refusing party stays hidden; the decision of such a record is opened as 0",
)
GRADIENT = Kind(
    title="gradient P",
    to="owner",
    stage="split",
    basis="uncharged",
    what="gradients of its own part, which reveal the labels and s",
    purpose="split learning: the loss gradient in the party's own activations; it reveals the labels, and s with "
    "consistency",
    why="`split`, every step. It reveals the label of nearly every training record (the report says how many), and "
    "s in steps with consistency",
)
EDITING_PARTIES = Kind(
    title="editing parties",
    stage="split",
    basis="follows",
    what="who has mediators",
    purpose="who has mediators, which follows from the public roles",
    about="nobody: the public roles",
    why="`split`: follows from the roles; again after each repeated release",
    follows=("hsic", "scores"),
    times=_edit_rounds,
)
EARLY_STOPPING = Kind(
    title="early stopping",
    stage="split",
    shape=("1",),
    basis="exact",
    what="whether training continues, after each step",
    purpose="not private: one bit: the validation objective got better in one of the last steps",
    about="validation records: x, label and s",
    why="`split` with method `paper`, only with `evaluation = exact`: after each step, whether log loss, gap and "
    "flip rate of the validation part, added up, improved within the paper's patience",
)
NOISY_GRADIENT = Kind(
    title="noisy gradient P",
    to="owner",
    stage="dp",
    shape=("parameters",),
    basis="charged",
    what="noisy gradients of its own encoder",
    purpose="dp encoders: sum over records of clipped gradients times residuals, noised in secret",
    why="`dp`, ten steps (`--dp-steps`): the sum over records (with `--dp-sampling` over a secret sample of them) "
    "of P's clipped gradients times the residuals, with discrete Gaussian noise",
    charge="dp gradient-K",
    pays="dp gradient",
    canary="GradientCanary",
)
CATALOGUE: tuple[Kind, ...] = (
    *(ALIGNMENT, PLACES, LIST_SIZES, COMMON_RECORDS, FIRST_COUNT, NOISY_TABLES, PRESENT, RESIDUALS, RISK_GAINS),
    *(GROUP_SIZES, HSIC, SCORES, P_VALUES, RESIDUAL_SCORES, GAINS, REDRAWN_CONDITIONAL, REDRAWN_SCORES),
    *(REDRAWN_P_VALUES, MISSING_P_VALUES, COLUMNS, FEATURES, MOVED_FIXED, MOVED_EDITED, VALIDITY, GUARD_LENGTH),
    *(GRAM, HEAD, HEAD_OUTPUT, BASELINE_HEADS, BASELINE_OUTPUT, RANGE_CHECK, VALIDATION_SUMMARY),
    *(TEMPERATURE_CHOICE, EVALUATION, EXACT_EVALUATION),
    *(PREDICTIONS, OTHER_GROUPS, REASON_NAMES, REFUSED_RECORDS, GRADIENT, EDITING_PARTIES, EARLY_STOPPING),
    NOISY_GRADIENT,
)
"""Every kind, in the order of plans."""


def plan_of(facts: PlanFacts, *stages: Stage) -> list[Release]:
    """Every release of these stages."""
    return [release for kind in CATALOGUE if kind.stage in stages for release in kind.releases(facts)]


def statistics_charges(*settings: object) -> tuple[str, ...]:
    """The charges that a run with these settings makes for statistics of s, in the order of plans."""
    facts = PlanFacts({0: {"some feature": 1}}, (2,)).with_settings(*settings)
    events = [release.event for release in plan_of(facts, "discovery") if release.event is not None]
    return tuple(dict.fromkeys(events))


def charged_statistics(*settings: object) -> int:
    """How many charges a run with these settings makes for statistics of s: its budget is planned for them."""
    return len(statistics_charges(*settings))


def kind_of(name: str, *, charged: bool) -> Kind | None:
    """The kind of a release in a log, or None if an older version made it."""
    kinds = [kind for kind in CATALOGUE if kind.is_name(name)]
    return next(iter(sorted(kinds, key=lambda kind: (kind.charge is not None) != charged)), None)


def charge_number(charge: str) -> int:
    """The number of a numbered charge, such as that of a repeated release; 0 for charges without one."""
    return next((k for kind in CATALOGUE if (k := kind.number_of(charge)) is not None), 0)


def owner_title(charge: str, rank: int) -> str:
    """The name of the part of a statistic that goes to one owner of columns."""
    return f"{charge} for party {rank}"
