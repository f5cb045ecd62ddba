"""What `train` and `discover` return: a model of the plaintext engine, and the scores of a simulated discovery.

All columns are in this process. Use it for data that may be pooled, and to try settings before a run under MPC.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits

from secure_sccvfl.api.frames import read_records
from secure_sccvfl.data.features import DataError, refuse
from secure_sccvfl.data.groups import read_codes
from secure_sccvfl.data.party import Party
from secure_sccvfl.evaluation.certified import certified_records, model_contributions
from secure_sccvfl.evaluation.counterfactual_models import OWN, RUN_MODELS, Counterfactuals
from secure_sccvfl.evaluation.coupling_bounds import coupling_scores
from secure_sccvfl.evaluation.methods import (
    Prepared,
    fitted_model,
    majority,
    own_rows,
    predictor_of,
    why_not_additive,
)
from secure_sccvfl.evaluation.pooled import run_counterfactuals
from secure_sccvfl.evaluation.scoring import Predictor, ScoringSet, flat, group_table, logits_of
from secure_sccvfl.metrics.rates import DENOMINATORS, MIN_GROUP, Z95, wilson
from secure_sccvfl.models.certificate import at_first_level, shifts
from secure_sccvfl.policy.card import USES_S
from secure_sccvfl.training.model import probabilities
from secure_sccvfl.training.plain import decisions, log_loss

FLIPS = tuple(f"{figure}_{model}" for model in (*RUN_MODELS, OWN) for figure in ("fr", "fr_null"))
SHOWN = ("acc", "rmse", "logloss", *FLIPS, "positive_rate", "dp_gap", "eo_gap")
GAPS = {"dp_gap": ("positive_rate",), "eo_gap": ("tpr", "fpr")}
"""The rates of groups whose widest difference is the gap."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread: with small matrices more threads are slower, and change the last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Discovered:
    """Which columns depend on s, by noisy statistics, and what these cost.

    `scores`: a line per column, with its party, score, role and how likely another run gives it the same role; the
    highest score first. `epsilon`: what was spent.
    """

    scores: pd.DataFrame
    epsilon: float

    @property
    def roles(self) -> dict[str, str]:
        """The role of every column: M (edited with s), P (a proxy) or N (held fixed)."""
        return dict(self.scores["role"])


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model of the plaintext engine on one split of one data set."""

    ready: Prepared
    id: str = "id"

    def __repr__(self) -> str:
        rows = len(self.ready.config.training_rows(self.ready.split))
        return f"<TrainedModel of {self.ready.data.name}: {rows} training records, lambda {self.ready.model.lam:g}>"

    @property
    def roles(self) -> dict[str, str]:
        """The role of every column: M (edited with s), P (a proxy) or N (held fixed)."""
        return dict(sorted(self.ready.roles.of.items()))

    @property
    def trials(self) -> pd.DataFrame:
        """Every lambda that was tried: loss, spread of the logit, counterfactual gap, on validation records."""
        rows = [
            {"lambda": trial.lam, "loss": seen.loss, "spread": seen.spread, "gap": seen.relative_gap}
            for trial in self.ready.model.trials
            if (seen := trial.validation) is not None
        ]
        return pd.DataFrame(rows, columns=["lambda", "loss", "spread", "gap"]).set_index("lambda").round(4)

    @property
    def epsilon(self) -> float:
        """What the statistics of s have spent, as the Rényi accountant counts it."""
        return self.ready.charges[-1].epsilon_after

    def logits(self, frame: pd.DataFrame) -> np.ndarray:
        """Calibrated logits (records x outputs) of records in one frame that holds the columns of all parties."""
        return self.ready.model.logits(self._parties(frame), self._groups(frame))

    def _parties(self, frame: pd.DataFrame) -> list[Party]:
        """The parties with their columns of these records."""
        tables = read_records([party.features for party in self.ready.data.parties], frame)
        return [
            replace(party, inputs=party.layout.encode(values))
            for party, values in zip(self.ready.parties, tables, strict=True)
        ]

    def _groups(self, frame: pd.DataFrame) -> np.ndarray | None:
        attribute = self.ready.data.protected[0]
        if self.ready.model.aware is None:
            return None
        if lost := [factor.column for factor in attribute.columns if factor.column not in frame]:
            raise DataError(f"{USES_S}: the frame has no column {lost[0]!r}")
        codes, problems = read_codes(attribute.columns, frame.__getitem__)
        refuse("new records", problems, frame.index)
        return codes

    def predict(self, frame: pd.DataFrame) -> pd.Series:
        """The class of each record, or for a regression the share of the label's public range."""
        logits, label = self.logits(frame), self.ready.data.label
        if not label.classes:
            return pd.Series(logits[:, 0], self._index(frame), name="prediction")
        chosen = decisions(logits, self.ready.data.task).astype(int)
        return pd.Series(np.array(label.classes)[chosen], self._index(frame), name="decision")

    def predict_proba(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Calibrated probability of each class for each record."""
        label = self.ready.data.label
        if not label.classes:
            raise ValueError("a regression has no probabilities; use predict")
        chances = probabilities(self.logits(frame), self.ready.data.task)
        return pd.DataFrame(chances, self._index(frame), list(label.classes))

    def certificate(self, frame: pd.DataFrame) -> pd.Series | pd.DataFrame:
        """One bit for each record: True if no values of the mediators can change its decision.

        All values of the public dictionary count, missing ones where it allows them; for every record with False some
        of them change the decision. Without mediators every record has True. Of a regression: a frame with the
        largest possible shifts of each prediction, `shift_down` and `shift_up`, as shares of the label's range.
        CertificateError for models that are not additive in the columns (`head="mlp"`, `aware=True`).

        >>> import secure_sccvfl as scc
        >>> data = scc.load("heart")
        >>> model = scc.train(data, private_model=False, card="shipped")
        >>> certified = model.certificate(data.frame)
        >>> edited = data.frame.assign(thalach=data.frame["thalach"].max())
        >>> bool((model.predict(edited) == model.predict(data.frame))[certified].all())
        True
        """
        with one_thread():
            certificate = self._certificate(self._parties(frame))
        index = self._index(frame)
        if isinstance(certificate, tuple):
            return pd.DataFrame(dict(zip(("shift_down", "shift_up"), certificate, strict=True)), index)
        return pd.Series(certificate, index, name="certified")

    def _certificate(self, parties: Sequence[Party]) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """One bit for each of these records, or of a regression the largest shifts down and up."""
        model, task, edited = self.ready.model, self.ready.data.task, self.ready.roles.edited
        contributions = model_contributions(model, self.ready.parties, edited)
        base = model.logits(
            [replace(party, inputs=at_first_level(party.layout, party.inputs, edited)) for party in parties]
        )
        if task == "regression":
            return shifts(model.logits(parties), base, contributions)
        return certified_records(base, contributions, task)

    def _index(self, frame: pd.DataFrame) -> pd.Index:
        return pd.Index(frame[self.id]) if self.id in frame else frame.index

    def evaluate(self) -> pd.DataFrame:
        """Figures of the test part, each with its 95 % interval, and those of the most frequent answer.

        acc and logloss (rmse for a regression). fr_all, fr_kr_all: share of decisions that flip when a record is
        edited to another group, by two counterfactual models that training never saw. fr_null_all, fr_null_kr_all:
        their permutation baselines, with groups shuffled over the records. fr_own: by the run's own generator.
        dp_gap, eo_gap: widest difference between groups in the share of positive decisions, and in true or false
        positive rates. Their intervals are those of the two groups that differ most. certified: share of decisions
        that no values of the mediators can change (`certificate`), also for each group (`certified[GROUP]`); for a
        regression max_shift_down and max_shift_up, without intervals. certified_tables, fr_bound: decisions that no
        coupling within the released tables can change, and the largest flip rate over these couplings
        (`evaluation.coupling_bounds`); low or high is the same at 95 % with respect to the noise of the tables. They
        are left out where a model has none.
        """
        return self._figures.copy()

    @cached_property
    def _figures(self) -> pd.DataFrame:
        with one_thread():
            scoring, own_edits = self._scoring, self._own_edits
            predictor = predictor_of(self.ready.model, self.ready.parties)
            figures = flat(scoring.score(predictor, own_edits))
            simple = flat(scoring.score(majority(self.ready).predict, own_edits))
            intervals = self._intervals(predictor, figures)
        rows = {
            name: (figures[name], *intervals[name], simple.get(name, math.nan)) for name in SHOWN if name in intervals
        }
        rows |= self._certified_shares()
        return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high", "majority"]).round(4)

    def _certified_shares(self) -> dict[str, tuple[float, float, float, float]]:
        """Lines of `evaluate` about the certificate: value, interval, and the value of the most frequent answer.

        A group of fewer than `MIN_GROUP` test records has no line.
        """
        if why_not_additive(self.ready.model):
            return {}
        test, attribute = self.ready.split.test, self.ready.data.protected[0]
        with one_thread():
            certificate = self._certificate([party.take(test) for party in self.ready.parties])
        if isinstance(certificate, tuple):
            largest = zip(("max_shift_down", "max_shift_up"), certificate, strict=True)
            return {name: (float(shift.max()), math.nan, math.nan, 0.0) for name, shift in largest}
        parts = {"certified": certificate}
        for code, group in enumerate(attribute.groups):
            members = certificate[attribute.codes[test] == code]
            if len(members) >= MIN_GROUP:
                parts[f"certified[{group}]"] = members
        with one_thread():
            bounds = flat(coupling_scores(self.ready, fitted_model(self.ready.model, self.ready)))
        lines = {
            name: (float(bits.mean()), *wilson(float(bits.mean()), len(bits)), 1.0) for name, bits in parts.items()
        }
        if bounds:
            lines["certified_tables"] = (bounds["certified_tables"], bounds["certified_tables_95"], 1.0, 1.0)
            lines["fr_bound"] = (bounds["fr_bound"], 0.0, bounds["fr_bound_95"], 0.0)
        return lines

    @cached_property
    def _scoring(self) -> ScoringSet:
        return run_counterfactuals(self.ready.data, self.ready.split, self.ready.roles, self.ready.seed)

    @cached_property
    def _own_edits(self) -> dict[str, Counterfactuals]:
        """Test records under the run's own generator."""
        if not self.ready.roles.named("M"):
            return {}
        inputs, target = own_rows(self.ready)
        return {OWN: Counterfactuals(OWN, np.arange(len(inputs)), inputs, np.ones(len(inputs)), target)}

    def _intervals(self, predict: Predictor, figures: Mapping[str, float]) -> dict[str, tuple[float, float]]:
        task, test = self.ready.data.task, self.ready.split.test
        label, codes = self.ready.data.label.values[test], self.ready.data.protected[0].codes[test]
        logits = logits_of(predict, self.ready.inputs[test], codes)
        losses = np.array([log_loss(logits[[row]], label[[row]], task) for row in range(len(test))])
        if task == "regression":
            return {"rmse": tuple(math.sqrt(bound) for bound in mean_interval(losses))}  # type: ignore[dict-item]
        out = {name: wilson(figures[name], len(test)) for name in ("acc", "positive_rate") if name in figures}
        out["logloss"] = mean_interval(losses)
        scoring = self._scoring
        for end, models in (("", scoring.counterfactuals), ("_null", scoring.nulls), ("", self._own_edits)):
            for name, edited in models.items():
                metric = f"fr{end}_{name}"
                out[metric] = wilson(figures[metric], len(np.unique(edited.source)))
        if task == "binary":
            groups = group_table(logits, label, codes, task)
            out |= {name: gap_interval(groups, rates) for name, rates in GAPS.items() if name in figures}
        return out


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of a mean that cannot be negative.

    >>> mean_interval(np.array([1.0, 1.0, 1.0]))
    (1.0, 1.0)
    """
    mean, half = float(values.mean()), Z95 * float(values.std(ddof=1)) / math.sqrt(len(values))
    return max(mean - half, 0.0), mean + half


def gap_interval(groups: list[dict[str, float]], rates: tuple[str, ...]) -> tuple[float, float]:
    """Newcombe's 95 % interval of the difference between the two groups that differ most."""
    widest = (-1.0, 0.0, 0.0)
    for rate in rates:
        rates_of_groups = [
            (row[rate], int(row[DENOMINATORS[rate]])) for row in groups if row[DENOMINATORS[rate]] >= MIN_GROUP
        ]
        if len(rates_of_groups) > 1:
            (low, few), (high, many) = min(rates_of_groups), max(rates_of_groups)
            (a, b), (c, d) = wilson(low, few), wilson(high, many)
            gap = high - low
            widest = max(widest, (gap, gap - math.hypot(high - c, b - low), gap + math.hypot(d - high, low - a)))
    return max(widest[1], 0.0), min(widest[2], 1.0)
