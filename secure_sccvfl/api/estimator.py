"""The method as a scikit-learn estimator, for data in one place."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from secure_sccvfl.api.frames import infer_feature
from secure_sccvfl.api.trained import one_thread
from secure_sccvfl.data.dataset import Protected, Task
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.groups import MOST_GROUPS
from secure_sccvfl.data.party import Part, Party, make_party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.models.encoders import Encoder, fit_encoder
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.engine import CURVATURE, Step
from secure_sccvfl.training.model import probabilities
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import Problem, Trainer, calibrated

PARTIES = 2
VALIDATION_SHARE = 0.2
FEWEST_HELD_OUT = 5
"""Records of a class in the validation part. With fewer, training records serve for validation too."""


_GRID_STEPS = 60
"""Steps cost nothing in plaintext, and labels may be rare, or told apart by columns."""


class NoGroupsWarning(UserWarning):
    """`fit` was given no s, so nothing keeps decisions from following it."""


@dataclass(frozen=True)
class _Columns:
    """How cells become input space: the dictionary that was read off the training records."""

    features: tuple[Feature, ...]

    @classmethod
    def read_off(cls, table: pd.DataFrame) -> _Columns:
        return cls(tuple(_feature(name, table[name]) for name in table))

    def parties(self, table: pd.DataFrame) -> tuple[Party, ...]:
        """Columns assigned to two parties in order. A number outside the range of training is moved to its end."""
        cells = np.column_stack([_read(feature, table[feature.name]) for feature in self.features])
        cuts = [round(len(self.features) * k / PARTIES) for k in range(PARTIES + 1)]
        return tuple(
            make_party(rank, f"party-{rank}", self.features[low:high], cells[:, low:high])
            for rank, (low, high) in enumerate(pairwise(cuts))
        )


@dataclass(frozen=True)
class _Fitted:
    columns: _Columns
    encoders: Mapping[int, Encoder]
    head: Any
    temperature: float

    def logits(self, table: pd.DataFrame) -> np.ndarray:
        encodings = [self.encoders[p.rank](p.inputs) for p in self.columns.parties(table)]
        return np.asarray(self.head(np.hstack(encodings)) / self.temperature)


class SCCClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose decisions stay as they are when a protected attribute s is changed counterfactually.

    It trains the head of `secure_sccvfl.train` on the plaintext engine, with all of X in this process. Noisy
    statistics find the columns that depend on s. Some of these are edited with s, and such an edit must not move the
    decision. X is an array of numbers, or a DataFrame, whose other columns are categories. Ranges and categories are
    read off X.

    Parameters
    ----------
    epsilon, delta : what the statistics of s may spend. Their noise is seeded: it shows what noise costs, and
        protects nothing.
    lambdas : rising weights of consistency; all are trained.
    take_lambda : the weight that is taken, or the nearest of `lambdas`.
    refreshes : further releases of the statistics before joint training, besides the one during it.
    sensitive_column : the column of X that is s, if `fit` is not given `sensitive`. It is then no feature.
    random_state : seed of the held-out part and of the noise.

    Without s (neither `sensitive` nor `sensitive_column`), `fit` trains the same head without the consistency term
    and warns with `NoGroupsWarning`: that is a plain classifier.

    All checks of scikit-learn's `check_estimator` pass; they give no s. `check_array_api_input` is skipped unless
    SCIPY_ARRAY_API is set. `check_fit2d_1feature` allows that X with one column is refused, and it is: two parties
    need a column each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> s = rng.integers(0, 2, 400)
    >>> X = np.column_stack([rng.normal(size=400) + s, rng.normal(size=400), rng.normal(size=400)])
    >>> y = X[:, 1] + 0.5 * X[:, 0] > 0.25
    >>> model = SCCClassifier().fit(X, y, sensitive=s)
    >>> model.predict(X[:3]).tolist(), float(model.score(X, y)) > 0.7
    ([False, False, True], True)
    """

    def __init__(
        self,
        epsilon: float = 8.0,
        delta: float = 1e-5,
        lambdas: tuple[float, ...] = TrainConfig().lambdas,
        take_lambda: float = 3.0,
        refreshes: int = TrainConfig().refreshes,
        sensitive_column: str | int | None = None,
        random_state: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.lambdas = lambdas
        self.take_lambda = take_lambda
        self.refreshes = refreshes
        self.sensitive_column = sensitive_column
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sensitive: Any = None) -> SCCClassifier:
        """Train on all rows of X; a fifth of them serves to choose lambda and the temperature.

        `sensitive`: s of each row, as any values; every distinct value is a group.
        """
        table, y = self._table(X, y, fitting=True)
        check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]!r}; two are needed")
        if len(table.columns) < PARTIES:
            raise ValueError(f"n_features={len(table.columns)}: {PARTIES} parties need a column each")
        groups = self._groups(X, sensitive, len(y))
        if groups is not None and np.array_equal(groups, np.unique(y, return_inverse=True)[1]):
            raise ValueError("sensitive is y itself: the label cannot be protected too")
        columns = _Columns.read_off(table)
        parties = columns.parties(table)
        config = TrainConfig(
            lambdas=tuple(self.lambdas),
            take_lambda=self.take_lambda,
            refreshes=self.refreshes,
            grid_steps=_GRID_STEPS,
        )
        rows = self._held_out(label, groups)
        self._task: Task = "binary" if len(self.classes_) == 2 else "multiclass"
        parts = [_part(parties, label, groups, part) for part in rows]
        config = config.with_ridge(parts[0].rows)
        with one_thread():
            if groups is None:
                warnings.warn("fit without `sensitive`: a plain classifier is trained", NoGroupsWarning, stacklevel=2)
                self._fitted = self._plain(columns, parts, config)
                self.roles_: Roles | None = None
            else:
                self._fitted, self.roles_ = self._consistent(columns, parts, config)
        return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated logits: one per row for two classes, else one per class."""
        check_is_fitted(self, "_fitted")
        logits = self._fitted.logits(self._table(X)[0])
        return logits[:, 0] if self._task == "binary" else logits

    def predict(self, X: Any) -> np.ndarray:
        scores = self.decision_function(X)
        return np.asarray(self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probability of each class, in the order of `classes_`."""
        scores = self.decision_function(X)
        return probabilities(scores.reshape(len(scores), -1), self._task)

    @property
    def _outputs(self) -> int:
        return 1 if self._task == "binary" else len(self.classes_)

    def _plain(self, columns: _Columns, parts: list[Part], config: TrainConfig) -> _Fitted:
        """The head without consistency, in as many steps as one lambda has."""
        engine = PlainEngine()
        encoders = {p.rank: fit_encoder(p.layout, p.inputs) for p in parts[0].parties}
        batches = []
        for part in parts:
            encodings = {p.rank: encoders[p.rank](p.inputs) for p in part.parties}
            ridge = {rank: np.full(block.shape[1], config.ridge) for rank, block in encodings.items()}
            batches.append(engine.bind(encodings, part.label, ridge, self._outputs))
        seen = {p.rank: encoders[p.rank](p.inputs) for p in parts[0].parties}
        bound = {rank: CURVATURE[self._task] * block.var(axis=0) + config.ridge for rank, block in seen.items()}
        head = engine.head(batches[0], self._outputs, self._task)
        descent = engine.first_order(batches[0], None, Step(), bound)
        head = engine.steps(head, descent, 2 * config.steps)
        engine.check_range([head], batches[0])
        return _Fitted(columns, encoders, head, calibrated(engine, head, batches[1], self._task))

    def _consistent(self, columns: _Columns, parts: list[Part], config: TrainConfig) -> tuple[_Fitted, Roles]:
        plan = SpendingPlan(self.epsilon, self.delta, config.charged, parties=PARTIES)
        statistics = PlainStatistics(GaussianNoise(plan, self.random_state))
        problem = Problem(self._task, self._outputs, parts[0], parts[1])
        model = Trainer(PlainEngine(), statistics, problem, config, self.random_state).run()
        return _Fitted(columns, dict(model.encoders), model.head, model.temperature), model.roles

    def _table(self, X: Any, y: Any = None, fitting: bool = False) -> tuple[pd.DataFrame, Any]:
        """X as a table without s, checked against what `fit` saw; and y when fitting."""
        mixed = isinstance(X, pd.DataFrame) and not all(pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes)
        how: dict[str, Any] = {"skip_check_array": True} if mixed else {"dtype": np.float64}
        if fitting:
            cells, y = validate_data(self, X, y, **how)
        else:
            cells = validate_data(self, X, reset=False, **how)
        if mixed and fitting:
            y = column_or_1d(y, warn=True)
            check_consistent_length(cells, y)
        names = [str(name) for name in getattr(self, "feature_names_in_", range(self.n_features_in_))]
        table = pd.DataFrame(cells).set_axis(names, axis=1)
        if self.sensitive_column is not None:
            if str(self.sensitive_column) not in table:
                raise ValueError(f"X has no column {self.sensitive_column!r}, which is to be s")
            table = table.drop(columns=str(self.sensitive_column))
        return table.reset_index(drop=True), y

    def _groups(self, X: Any, sensitive: Any, rows: int) -> np.ndarray | None:
        """s as codes, from the place where it was given."""
        if sensitive is None and self.sensitive_column is not None:
            name = self.sensitive_column
            sensitive = X[name] if isinstance(X, pd.DataFrame) else np.asarray(X)[:, int(name)]
        if sensitive is None:
            return None
        values = column_or_1d(sensitive)
        if len(values) != rows:
            raise ValueError(f"sensitive has {len(values)} values for {rows} rows")
        groups, codes = np.unique(values, return_inverse=True)
        if len(groups) < 2:
            raise ValueError(f"sensitive has one group only, {groups[0]!r}; two are needed")
        if len(groups) > MOST_GROUPS:
            raise ValueError(
                f"sensitive has {len(groups)} groups, at most {MOST_GROUPS} are possible: cut a number first"
            )
        return np.asarray(codes)

    def _held_out(self, label: np.ndarray, groups: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Rows to train on and rows to choose on, stratified; all rows for both if a class is small."""
        whole = np.arange(len(label))
        strata = label if groups is None else label * (groups.max() + 1) + groups
        picked = []
        for stratum in np.unique(strata):
            rng = stream(self.random_state, "validation", int(stratum))
            members = rng.permutation(np.flatnonzero(strata == stratum))
            picked.append(members[: int(VALIDATION_SHARE * len(members))])
        chosen = np.sort(np.concatenate(picked))
        if np.bincount(label[chosen], minlength=label.max() + 1).min() < FEWEST_HELD_OUT:
            return whole, whole
        return np.setdiff1d(whole, chosen), chosen


def _part(parties: tuple[Party, ...], label: np.ndarray, groups: np.ndarray | None, rows: np.ndarray) -> Part:
    protected: tuple[Protected, ...] = ()
    if groups is not None:
        names = tuple(str(code) for code in range(groups.max() + 1))
        protected = (Protected("s", parties[-1].name, names, groups),)
    return Part(parties, label, protected).take(rows)


def _feature(name: str, column: pd.Series) -> Feature:
    """A dictionary entry for a column. A number stays a number, however few values it has."""
    if not pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return Feature.of(infer_feature(name, column.astype("string")))
    edges = np.unique(np.quantile(column.to_numpy(float), np.linspace(0, 1, 6)))
    if len(edges) < 2:
        return Feature(name, "number", float(edges[0]), float(edges[0]) + 1.0)
    return Feature(name, "number", float(edges[0]), float(edges[-1]), tuple(float(edge) for edge in edges))


def _read(feature: Feature, column: pd.Series) -> np.ndarray:
    if feature.kind == "category":
        return feature.read(column.astype("string"))
    return np.clip(column.to_numpy(float), feature.low, feature.high)
