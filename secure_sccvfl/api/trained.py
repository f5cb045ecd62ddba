"""What `train` and `discover` return: a model of the plaintext engine, and the scores of a simulated discovery.

All columns are in this process. Use it for data that may be pooled, and to try settings before a run under MPC.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from secure_sccvfl.api.figures import (
    Interval,
    Metric,
    along_lambda,
    as_table,
    by_group,
    certified_figures,
    with_intervals,
)
from secure_sccvfl.api.frames import read_records
from secure_sccvfl.data.features import DataError, refuse
from secure_sccvfl.data.groups import read_codes
from secure_sccvfl.data.party import Party
from secure_sccvfl.evaluation.certified import certified_records, model_contributions
from secure_sccvfl.evaluation.counterfactual_models import Counterfactuals
from secure_sccvfl.evaluation.coupling_bounds import coupling_scores
from secure_sccvfl.evaluation.methods import (
    Prepared,
    fitted_model,
    majority,
    own_counterfactuals,
    predictor_of,
    why_not_additive,
)
from secure_sccvfl.evaluation.pooled import run_counterfactuals
from secure_sccvfl.evaluation.scoring import ScoringSet, flat, logits_of, one_thread
from secure_sccvfl.models.certificate import at_first_level, shifts
from secure_sccvfl.policy.card import USES_S
from secure_sccvfl.training.model import Model, probabilities
from secure_sccvfl.training.plain import decisions


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
            certificate = self._certificate(self.ready.model, self._parties(frame))
        index = self._index(frame)
        if isinstance(certificate, tuple):
            return pd.DataFrame(dict(zip(("shift_down", "shift_up"), certificate, strict=True)), index)
        return pd.Series(certificate, index, name="certified")

    def _certificate(self, model: Model, parties: Sequence[Party]) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """One bit for each of these records, or of a regression the largest shifts down and up."""
        task, edited = self.ready.data.task, self.ready.roles.edited
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

    def frontier(self, *, intervals: bool = False) -> pd.DataFrame:
        """The figures of `evaluate` for every lambda that was trained, without training again; a row per lambda.

        `intervals`: three columns for each figure, its value and 95 % interval.

        Without `lambdas`, `train` makes every row of a private model with the noise that a model has which is trained
        alone, for the whole epsilon. It shows what each lambda would give: `epsilon` covers one of these models, not
        a choice among them by their figures. With `lambdas=(1, 3, 8)` all of them are charged and share epsilon, so
        each has more noise; with one lambda the frontier has one row. Of a model that is not private, all rows follow
        from the same tables, and its head is not protected.
        """
        model = self.ready.model
        points = {lam: replace(model, head=head, lam=lam, temperature=1.0) for lam, head in model.frontier}
        with one_thread():
            return along_lambda({lam: self._table(point) for lam, point in points.items()}, intervals)

    def by_group(self, metric: str | Metric = "positive_rate", **settings: Any) -> pd.DataFrame:
        """Any metric of the decisions about the test part for each group of s, as `secure_sccvfl.by_group`."""
        data, test = self.ready.data, self.ready.split.test
        attribute, parties = data.protected[0], [party.take(test) for party in self.ready.parties]
        logits = self.ready.model.logits(parties, attribute.codes[test] if self.ready.model.aware else None)
        groups, label = np.array(attribute.groups)[attribute.codes[test]], data.label.values[test]
        if not data.label.classes:
            return by_group(metric, label, logits[:, 0], sensitive_features=groups, **settings)
        classes = np.array(data.label.classes)
        if data.task == "binary":
            settings.setdefault("positive", classes[1])
        shown = classes[decisions(logits, data.task).astype(int)]
        return by_group(metric, classes[label], shown, sensitive_features=groups, **settings)

    @cached_property
    def _figures(self) -> pd.DataFrame:
        """The figures of the model, with those of the most frequent answer, which cannot be changed."""
        with one_thread():
            simple = flat(self._scoring.score(majority(self.ready).predict, self._own_edits))
            table = self._table(self.ready.model)
        constant = {"fr_bound": 0.0, "max_shift_down": 0.0, "max_shift_up": 0.0}
        others = {name: 1.0 if name.startswith("certified") else constant.get(name, math.nan) for name in table.index}
        return table.assign(majority=pd.Series(others | {k: v for k, v in simple.items() if k in others})).round(4)

    def _table(self, model: Model) -> pd.DataFrame:
        """Figures of this model, or of the same one at another lambda, with intervals."""
        ready, test, attribute = self.ready, self.ready.split.test, self.ready.data.protected[0]
        scoring, predict, codes = self._scoring, predictor_of(model, self.ready.parties), attribute.codes[test]
        figures = flat(scoring.score(predict, self._own_edits))
        logits = logits_of(predict, ready.inputs[test], codes)
        table = with_intervals(scoring, figures, logits, self._own_edits)
        if why_not_additive(model):
            return table
        certificate = self._certificate(model, [party.take(test) for party in ready.parties])
        bounds = flat(coupling_scores(ready, fitted_model(model, ready)))
        tables = {}
        if bounds:
            tables["certified_tables"] = Interval(bounds["certified_tables"], bounds["certified_tables_95"], 1.0)
            tables["fr_bound"] = Interval(bounds["fr_bound"], 0.0, bounds["fr_bound_95"])
        return pd.concat([table, certified_figures(certificate, codes, attribute.groups), as_table(tables)])

    @cached_property
    def _scoring(self) -> ScoringSet:
        return run_counterfactuals(self.ready.data, self.ready.split, self.ready.roles, self.ready.seed)

    @cached_property
    def _own_edits(self) -> dict[str, Counterfactuals]:
        """Test records under the run's own generator."""
        return own_counterfactuals(self.ready)
