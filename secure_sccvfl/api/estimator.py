"""The method as a scikit-learn estimator, for data in one place."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.pipeline import Pipeline
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from secure_sccvfl.api.figures import along_lambda, as_column, certified_figures, distinct, with_intervals
from secure_sccvfl.api.frames import as_frame, infer_feature
from secure_sccvfl.data.dataset import Dataset, Label, PartyTable, Protected, Task
from secure_sccvfl.data.features import DataError, Feature
from secure_sccvfl.data.groups import MOST_GROUPS
from secure_sccvfl.data.party import Part, Party, make_parties, make_party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.certified import base_logits, certified_records, predictor_contributions
from secure_sccvfl.evaluation.counterfactual_models import MIN_GROUP
from secure_sccvfl.evaluation.methods import with_inputs
from secure_sccvfl.evaluation.pooled import run_counterfactuals
from secure_sccvfl.evaluation.scoring import Predictor, ScoringSet, evaluate, flat, one_thread, stability
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
FLIPS_BY = "kr_all"
"""The counterfactual model of the flip rate."""
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

    def tables(self, table: pd.DataFrame) -> tuple[PartyTable, ...]:
        """Columns assigned to two parties in order. A number outside the range of training is moved to its end."""
        cells = np.column_stack([_read(feature, table[feature.name]) for feature in self.features])
        cuts = [round(len(self.features) * k / PARTIES) for k in range(PARTIES + 1)]
        return tuple(
            PartyTable(f"party-{rank}", self.features[low:high], cells[:, low:high])
            for rank, (low, high) in enumerate(pairwise(cuts))
        )

    def parties(self, table: pd.DataFrame) -> tuple[Party, ...]:
        return tuple(make_party(k, t.name, t.features, t.values) for k, t in enumerate(self.tables(table)))

    def dataset(
        self, table: pd.DataFrame, label: np.ndarray, names: Sequence[str], s: Protected, task: Task
    ) -> Dataset:
        """Records to score as a data set; names: of the classes."""
        tables = self.tables(table)
        return Dataset("X", task, np.arange(len(table)), tables, Label(s.holder, label, tuple(names)), (s,))


@dataclass(frozen=True)
class _Fitted:
    """The model at one lambda."""

    columns: _Columns
    encoders: Mapping[int, Encoder]
    head: Any
    temperature: float
    roles: Roles | None = None

    def logits(self, table: pd.DataFrame) -> np.ndarray:
        return self.of(self.columns.parties(table))

    def of(self, parties: Iterable[Party]) -> np.ndarray:
        encodings = [self.encoders[p.rank](p.inputs) for p in parties]
        return np.asarray(self.head(np.hstack(encodings)) / self.temperature)

    def certificate(self, parties: tuple[Party, ...], task: Task) -> np.ndarray:
        """One bit for each record: no values of the mediators can change its decision."""
        inputs, predict, edited = np.hstack([p.inputs for p in parties]), self.predictor(parties), self.mediators
        contributions = predictor_contributions(predict, parties, edited)
        return certified_records(base_logits(predict, parties, inputs, edited), contributions, task)

    def figures(self, scoring: ScoringSet, data: Dataset) -> pd.DataFrame:
        """Figures of `evaluate` on these records, and the certified share, with intervals."""
        parties = make_parties(data)
        predict, given = self.predictor(parties), (scoring.label, scoring.codes, scoring.task)
        figures = flat(evaluate(predict, scoring.inputs, *given, scoring.counterfactuals, scoring.nulls))
        table = with_intervals(scoring, figures, predict(scoring.inputs), {})
        certificate = self.certificate(parties, scoring.task)
        return pd.concat([table, certified_figures(certificate, scoring.codes, data.protected[0].groups)])

    def predictor(self, parties: tuple[Party, ...]) -> Predictor:
        return lambda inputs: self.of(with_inputs(parties, inputs))

    @property
    def mediators(self) -> tuple[str, ...]:
        if self.roles is None:
            raise ValueError("fit was given no s, so there are no mediators: give it sensitive=")
        return self.roles.edited


class SCCClassifier(ClassifierMixin, BaseEstimator):
    """A classifier whose decisions stay as they are when a protected attribute s is changed counterfactually.

    It trains the head of `secure_sccvfl.train` on the plaintext engine, with all of X in this process. Noisy
    statistics find the columns that depend on s. Some of these are edited with s, and such an edit must not move the
    decision. X is an array of numbers, or a DataFrame, whose other columns are categories. Ranges and categories are
    read off X. Values may be missing (NaN, None) in columns where `fit` saw missing ones: a number then has a flag, a
    category one level more.

    Parameters
    ----------
    epsilon, delta : what the statistics of s may spend. Their noise is seeded: it shows what noise costs, and
        protects nothing.
    lambdas : rising weights of consistency; all are trained.
    take_lambda : the weight that is taken, or the nearest of `lambdas`.
    refreshes : further releases of the statistics before joint training, besides the one during it.
    sensitive_column : the column of X that is s, if `fit` is not given `sensitive`. It is then no feature.
    random_state : seed of the held-out part and of the noise.

    Attributes
    ----------
    roles_ : the role of every column: M (edited with s), P (a proxy) or N (held fixed).
    groups_ : the distinct values of s.
    frontier_ : a row for each of `lambdas`, all of which `fit` has trained: accuracy, flip rates with their
        permutation baselines, gaps between groups and certified shares, as in `TrainedModel.evaluate`, on the fifth
        of the records that is held out (on all if a class is small). Counterfactual models are fitted on these.

    Without s (neither `sensitive` nor `sensitive_column`), `fit` trains the same head without the consistency term
    and warns with `NoGroupsWarning`: that is a plain classifier, and `roles_` and `frontier_` are None.

    `flip_scorer` and `certified_scorer` are scorers for `cross_validate` and `GridSearchCV`.

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

    def fit(
        self, X: Any, y: Any, sensitive: Any = None, *, sensitive_features: Any = None, **others: Any
    ) -> SCCClassifier:
        """Train on all rows of X; a fifth of them serves to choose the temperature and for `frontier_`.

        `sensitive`: s of each row, as any values; every distinct value is a group. `sensitive_features` is another
        name for it, as in fairlearn. `sample_weight` is refused: the noise of the statistics of s is for records that
        count once.
        """
        if others.pop("sample_weight", None) is not None:
            raise ValueError(
                "sample_weight is not supported: the noise of the statistics of s is calibrated for records that "
                "count once; draw the rows of X by their weights instead"
            )
        if others:
            raise TypeError(f"fit takes no {next(iter(others))!r}; available: sensitive, sensitive_features")
        if not isinstance(self.lambdas, (list, tuple, np.ndarray)):
            raise ValueError(f"lambdas must be a list of numbers, not {self.lambdas!r}")
        for name in ("epsilon", "delta", "take_lambda", "refreshes", "lambdas"):
            if any(not isinstance(value, Real) for value in np.ravel(getattr(self, name)).tolist()):
                raise ValueError(f"{name} must be a number, not {getattr(self, name)!r}")
        table, y = self._table(X, y, fitting=True)
        check_classification_targets(y)
        self.classes_, label = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class only, {self.classes_[0]}; two are needed")
        if len(table.columns) < PARTIES:
            raise ValueError(f"n_features={len(table.columns)}: {PARTIES} parties need a column each")
        values = self._sensitive(X, sensitive, sensitive_features, len(y))
        groups = None if values is None else self._groups(values, label)
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
        self.roles_: Roles | None = None
        self.frontier_: pd.DataFrame | None = None
        with one_thread():
            if groups is None:
                warnings.warn("fit without `sensitive`: a plain classifier is trained", NoGroupsWarning, stacklevel=2)
                self._fitted = self._plain(columns, parts, config)
            else:
                self._fitted, heads = self._consistent(columns, parts, config)
                self.roles_ = self._fitted.roles
                held_out, scoring = self._scoring(table.iloc[rows[1]], label[rows[1]], groups[rows[1]])
                points = {lam: replace(self._fitted, head=head, temperature=1.0) for lam, head in heads}
                self.frontier_ = along_lambda({lam: at.figures(scoring, held_out) for lam, at in points.items()})
        return self

    def certificate(self, X: Any) -> np.ndarray:
        """One bit for each row: True if no values of the mediators can change its decision."""
        check_is_fitted(self, "_fitted")
        with one_thread():
            return self._fitted.certificate(self._fitted.columns.parties(self._table(X)[0]), self._task)

    def flip_rate(self, X: Any, sensitive: Any = None, *, sensitive_features: Any = None) -> float:
        """The share of decisions that change when a row is edited to another group.

        The counterfactual model (`kr_all`) is fitted on these rows; training never saw it. With `sensitive_column`, s
        is taken from X.
        """
        check_is_fitted(self, "_fitted")
        if not self._fitted.mediators:
            return 0.0
        table = self._table(X)[0]
        values = self._sensitive(X, sensitive, sensitive_features, len(table))
        if values is None:
            raise ValueError("flips need s of each row: give sensitive=, or name its column, sensitive_column=")
        if not np.isin(values, self.groups_).all():
            odd = values[~np.isin(values, self.groups_)][0]
            raise ValueError(f"sensitive has the value {odd}, which is no group of fit; available: {self.groups_}")
        with one_thread():
            codes = np.searchsorted(self.groups_, values)
            data, scoring = self._scoring(table, np.zeros(len(table), int), codes)
            if not scoring.counterfactuals:
                raise ValueError(
                    f"flips need two groups of {MIN_GROUP} rows each, and these {len(table)} rows have not"
                )
            predict, edited = self._fitted.predictor(make_parties(data)), scoring.counterfactuals[FLIPS_BY]
            return flat(stability(predict, scoring.inputs, edited, self._task, FLIPS_BY))[f"fr_{FLIPS_BY}"]

    def _scoring(self, table: pd.DataFrame, label: np.ndarray, codes: np.ndarray) -> tuple[Dataset, ScoringSet]:
        """These records and their counterfactuals, by models that are fitted on them."""
        names = tuple(map(str, self.groups_))
        s = Protected("s", f"party-{PARTIES - 1}", names, codes)
        columns, classes = self._fitted.columns, [str(name) for name in self.classes_]
        data, every = columns.dataset(table, label, classes, s, self._task), np.arange(len(table))
        roles = self._fitted.roles or Roles({})
        return data, run_counterfactuals(data, Split(every[:0], every[:0], every), roles, self.random_state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

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

    def _consistent(
        self, columns: _Columns, parts: list[Part], config: TrainConfig
    ) -> tuple[_Fitted, tuple[tuple[float, Any], ...]]:
        """The model, and the head of every lambda."""
        plan = SpendingPlan(self.epsilon, self.delta, config.charged, parties=PARTIES)
        statistics = PlainStatistics(GaussianNoise(plan, self.random_state))
        layouts = {party.rank: party.layout for party in parts[0].parties}
        problem = Problem(self._task, self._outputs, parts[0], parts[1], layouts=layouts)
        model = Trainer(PlainEngine(), statistics, problem, config, self.random_state).run()
        fitted = _Fitted(columns, dict(model.encoders), model.head, model.temperature, model.roles)
        return fitted, model.frontier

    def _table(self, X: Any, y: Any = None, fitting: bool = False) -> tuple[pd.DataFrame, Any]:
        """X as a table without s, checked against what `fit` saw; and y when fitting."""
        mixed = isinstance(X, pd.DataFrame) and not all(pd.api.types.is_numeric_dtype(kind) for kind in X.dtypes)
        if isinstance(X, pd.DataFrame):
            as_frame(X, "X")
        finite: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        how: dict[str, Any] = {"skip_check_array": True} if mixed else finite
        if fitting:
            cells, y = validate_data(self, X, y, **how)
        else:
            cells = validate_data(self, X, reset=False, **how)
        if mixed and fitting:
            y = as_column("y", column_or_1d(y, warn=True), len(cells))
        names = [str(name) for name in getattr(self, "feature_names_in_", range(self.n_features_in_))]
        table = pd.DataFrame(cells).set_axis(names, axis=1)
        if self.sensitive_column is not None:
            if str(self.sensitive_column) not in table:
                raise ValueError(f"X has no column {self.sensitive_column!r}, which is to be s")
            table = table.drop(columns=str(self.sensitive_column))
        return table.reset_index(drop=True), y

    def _sensitive(self, X: Any, sensitive: Any, sensitive_features: Any, rows: int) -> np.ndarray | None:
        """s of each row, from the place where it was given."""
        if sensitive is not None and sensitive_features is not None:
            raise ValueError("sensitive and sensitive_features are two names of one argument: give one of them")
        sensitive = sensitive_features if sensitive is None else sensitive
        if sensitive is None and self.sensitive_column is not None:
            name = self.sensitive_column
            sensitive = X[name] if isinstance(X, pd.DataFrame) else np.asarray(X)[:, int(name)]
        return None if sensitive is None else as_column("sensitive", sensitive, rows)

    def _groups(self, values: np.ndarray, label: np.ndarray) -> np.ndarray:
        """s as codes of `groups_`."""
        self.groups_, codes = distinct("sensitive", values)
        if len(self.groups_) < 2:
            raise ValueError(f"sensitive has one group only, {self.groups_[0]}; two are needed")
        if len(self.groups_) > MOST_GROUPS:
            raise ValueError(
                f"sensitive has {len(self.groups_)} groups, at most {MOST_GROUPS} are possible: cut a number first"
            )
        if len({*zip(codes, label, strict=True)}) == len(self.groups_) == len(self.classes_):
            raise ValueError("sensitive is y itself: the label cannot be protected too")
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
        entry = infer_feature(name, column.astype("string"))
        return Feature.of(entry | ({"missing": True} if len(entry["categories"]) < 2 else {}))
    values = _numbers(name, column)
    present = values[~np.isnan(values)]
    gaps = len(present) < len(values)
    edges = np.unique(np.quantile(present, np.linspace(0, 1, 6))) if len(present) else np.zeros(1)
    if len(edges) < 2:
        return Feature(name, "number", float(edges[0]), float(edges[0]) + 1.0, missing=gaps)
    return Feature(
        name, "number", float(edges[0]), float(edges[-1]), tuple(float(edge) for edge in edges), missing=gaps
    )


def _read(feature: Feature, column: pd.Series) -> np.ndarray:
    if feature.kind == "category":
        values, problems = feature.look(column.astype("string"))
        if problems:
            what = problems[0].what.replace("not in the public dictionary", "not among those of fit")
            raise DataError(f"X: column {feature.name!r}: {what}; merge rare values, or fill gaps, before fit")
        return values
    values = _numbers(feature.name, column)
    if np.isnan(values).any() and not feature.missing:
        raise DataError(f"X: column {feature.name!r} has missing values, and had none in fit: fill them in")
    return np.clip(values, feature.low, feature.high)


def _numbers(name: str, column: pd.Series) -> np.ndarray:
    try:
        values = column.to_numpy(float, na_value=np.nan)
    except (TypeError, ValueError):
        raise DataError(f"X: column {name!r} holds text, and was a number in fit: convert it") from None
    if np.isinf(values).any():
        raise DataError(f"X: column {name!r} has an infinite value: put it right, or leave the row out")
    return values


def _final(estimator: Any, X: Any) -> tuple[SCCClassifier, Any]:
    """The classifier at the end of a pipeline, and what it is given."""
    if isinstance(estimator, Pipeline):
        return _final(estimator[-1], estimator[:-1].transform(X))
    if not isinstance(estimator, SCCClassifier):
        raise TypeError(f"this scorer is for SCCClassifier, or a pipeline that ends in it, not for {estimator!r}")
    return estimator, X


def flip_scorer(estimator: Any, X: Any, y: Any = None) -> float:
    """Minus the flip rate on X (larger is better), as a scorer of scikit-learn.

    X has to contain s, which `sensitive_column` names.

    >>> from sklearn.model_selection import cross_validate
    >>> rng = np.random.default_rng(0)
    >>> s = rng.integers(0, 2, 600)
    >>> X = pd.DataFrame({"a": rng.normal(size=600) + s, "b": rng.normal(size=600), "s": s})
    >>> model = SCCClassifier(sensitive_column="s")
    >>> scoring = {"accuracy": "accuracy", "flips": flip_scorer, "certified": certified_scorer}
    >>> scores = cross_validate(model, X, X.a + X.b > 0.5, scoring=scoring, cv=2)
    >>> (scores["test_flips"] <= 0).all() and (scores["test_certified"] <= 1).all()
    np.True_
    """
    model, rows = _final(estimator, X)
    return -model.flip_rate(rows)


def certified_scorer(estimator: Any, X: Any, y: Any = None) -> float:
    """The share of rows whose decision no values of the mediators can change, as a scorer of scikit-learn."""
    model, rows = _final(estimator, X)
    return float(model.certificate(rows).mean())
