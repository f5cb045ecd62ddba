"""The scikit-learn estimator: the library's own checks, and what s changes."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import check_estimator

import secure_sccvfl as scc
from secure_sccvfl.api.estimator import NoGroupsWarning, SCCClassifier

SKIPPED = {"check_array_api_input"}
"""It needs SCIPY_ARRAY_API to be set before scipy is imported."""


class Grouped(SCCClassifier):
    """With an artificial s, so that scikit-learn's checks reach the consistency term too."""

    def fit(self, X, y):
        rows = (X if hasattr(X, "shape") else np.asarray(X)).shape[0]
        return super().fit(X, y, sensitive=np.arange(rows) // 2 % 2)


@pytest.mark.filterwarnings("ignore")  # the checks themselves warn
@pytest.mark.parametrize(
    "estimator", [SCCClassifier(), Grouped(lambdas=(1.0, 8.0), refreshes=0)], ids=["without s", "with s"]
)
def test_the_checks_of_scikit_learn_pass(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    ended = {row["check_name"]: row["status"] for row in results if row["status"] != "passed"}
    assert ended == dict.fromkeys(SKIPPED, "skipped")
    assert len(results) > 40


def records(n=800, seed=0):
    """s moves the first column; the label follows the first and the second."""
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 4))
    X[:, 0] += 1.5 * s
    X[:, 3] += 3.0 * s
    y = np.where(X[:, 0] + X[:, 1] + 0.5 * rng.normal(size=n) > 0.7, "yes", "no")
    return X, y, s


def test_decisions_follow_s_less_when_it_is_given():
    X, y, s = records()
    with pytest.warns(NoGroupsWarning, match="plain classifier"):
        plain = SCCClassifier().fit(X, y)
    fair = SCCClassifier().fit(X, y, sensitive=s)
    moved = X.copy()
    moved[:, 0] += np.where(s == 1, -1.5, 1.5)
    flips = [(model.predict(X) != model.predict(moved)).mean() for model in (plain, fair)]
    assert fair.roles_ is not None and fair.roles_.of["0"] == "M" and plain.roles_ is None
    assert flips[1] < 0.5 * flips[0] and fair.score(X, y) > 0.6


def test_s_may_be_a_column_of_x():
    X, y, s = records()
    frame = pd.DataFrame(X, columns=list("abcd")).assign(s=s)
    by_name = SCCClassifier(sensitive_column="s").fit(frame, y)
    by_place = SCCClassifier(sensitive_column=4).fit(frame.to_numpy(), y)
    apart = SCCClassifier().fit(frame.drop(columns="s"), y, sensitive=s)
    assert np.array_equal(by_name.predict_proba(frame), apart.predict_proba(frame.drop(columns="s")))
    assert by_place.n_features_in_ == 5 and list(by_name.feature_names_in_) == ["a", "b", "c", "d", "s"]
    assert np.array_equal(by_name.predict(frame), by_name.predict(frame.assign(s=1 - frame.s))), "s is no feature"
    with pytest.raises(ValueError, match="no column 't'"):
        SCCClassifier(sensitive_column="t").fit(frame, y)


def test_categories_in_a_frame_are_read():
    data = scc.load("heart")
    X = data.frame.drop(columns="id")
    y = np.array(data.dataset.label.classes)[data.dataset.label.values]
    model = SCCClassifier(lambdas=(4.0,)).fit(X, y, sensitive=data.dataset.protected[0].codes)
    assert model.score(X, y) > 0.7 and model.classes_.tolist() == ["0", "1"]
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.decision_function(X), model.decision_function(X))


def test_the_frontier_has_a_row_for_every_lambda():
    X, y, s = records()
    model = SCCClassifier(lambdas=(0.25, 3.0, 16.0)).fit(X, y, sensitive=s)
    assert list(model.frontier_.index) == [0.25, 3.0, 16.0]
    assert {"acc", "fr_all", "fr_null_all", "fr_kr_all", "dp_gap", "eo_gap", "certified"} <= set(model.frontier_)
    assert (
        model.frontier_["fr_kr_all"].is_monotonic_decreasing and model.frontier_["certified"].is_monotonic_increasing
    )
    alone = SCCClassifier(lambdas=(16.0,)).fit(X, y, sensitive=s)
    assert np.allclose(model.frontier_.loc[16.0], alone.frontier_.loc[16.0], atol=0.02)
    held_out = model._held_out((y == "yes").astype(int), s)[1]
    figures = model.frontier_.loc[3.0]
    assert figures["acc"] == pytest.approx(model.score(X[held_out], y[held_out]), abs=1e-4)
    assert figures["fr_kr_all"] == pytest.approx(model.flip_rate(X[held_out], s[held_out]), abs=1e-4)
    assert figures["certified"] == pytest.approx(model.certificate(X[held_out]).mean(), abs=1e-4)


def test_no_values_of_the_mediators_change_a_certified_decision():
    X, y, s = records()
    model = SCCClassifier(lambdas=(16.0,)).fit(X, y, sensitive=s)
    certified, mediators = model.certificate(X), [int(k) for k, role in model.roles_.of.items() if role == "M"]
    assert mediators and 0 < certified.mean() < 1
    reached = np.zeros(len(X), bool)
    for end in (X.min(axis=0), X.max(axis=0)):
        moved = X.copy()
        moved[:, mediators] = end[mediators]
        reached |= model.predict(moved) != model.predict(X)
    assert not reached[certified].any() and reached[~certified].any()


def test_scorers_serve_cross_validation_and_search():
    X, y, s = records()
    frame = pd.DataFrame(X, columns=list("abcd")).assign(s=s)
    scoring = {"flips": scc.flip_scorer, "certified": scc.certified_scorer}
    model = SCCClassifier(sensitive_column="s", lambdas=(0.25, 16.0))
    search = GridSearchCV(model, {"take_lambda": [0.25, 16.0]}, scoring=scoring, refit="flips", cv=2).fit(frame, y)
    assert search.best_params_ == {"take_lambda": 16.0}, "fewer flips are better"
    whole = Pipeline([("same", "passthrough"), ("model", model)])
    scores = cross_validate(whole, frame, y, scoring=scoring, cv=2, error_score="raise")
    assert (scores["test_flips"] <= 0).all() and (
        (scores["test_certified"] > 0) & (scores["test_certified"] < 1)
    ).all()
    fitted = whole.fit(frame, y)
    assert scc.flip_scorer(fitted, frame) == -fitted[-1].flip_rate(frame)


def test_sensitive_features_are_another_name_of_s():
    X, y, s = records()
    one, other = (
        SCCClassifier(lambdas=(4.0,)).fit(X, y, **{name: s}) for name in ("sensitive", "sensitive_features")
    )
    assert np.array_equal(one.decision_function(X), other.decision_function(X))
    assert one.flip_rate(X, s) == other.flip_rate(X, sensitive_features=pd.Series(s))


def test_values_may_be_missing_where_fit_saw_missing_ones():
    X, y, s = records()
    frame = pd.DataFrame(X[:, 1:], columns=list("bcd")).assign(a=X[:, 0], job=np.where(X[:, 2] > 0, "x", "y"))
    missing = np.random.default_rng(1).random(len(X)) < 0.3
    gaps = frame.assign(a=frame.a.mask(missing), job=frame.job.mask(missing))
    model = SCCClassifier(lambdas=(4.0,)).fit(gaps, y, sensitive=s)
    assert model.score(gaps[~missing], y[~missing]) > 0.6
    assert not np.allclose(model.decision_function(gaps.assign(a=np.nan)), model.decision_function(gaps))
    array = np.where(missing[:, None], np.nan, X)
    assert SCCClassifier(lambdas=(4.0,)).fit(array, y, sensitive=s).predict(array).shape == (len(X),)
    for column, values in {"a": np.nan, "job": None}.items():
        with pytest.raises(ValueError, match=f"column '{column}'.* missing"):
            SCCClassifier(lambdas=(4.0,)).fit(frame, y, sensitive=s).predict(frame.assign(**{column: values}))


MIXED = pd.DataFrame({"a": np.arange(800.0), "b": ["x", "y"] * 400})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda X, y, s: {"sensitive": np.zeros(800)}, "one group only"),
        (lambda X, y, s: {"sensitive": np.zeros(5)}, "5 values for 800 rows"),
        (lambda X, y, s: {"sensitive": np.where(s, np.nan, 1.0)}, "missing values"),
        (lambda X, y, s: {"sensitive": np.array([1, "a"] * 400, object)}, "mixes texts and numbers"),
        (lambda X, y, s: {"sensitive": X}, r"one value for each record, not the shape \(800, 4\)"),
        (lambda X, y, s: {"sensitive": "a"}, "one value for each record, not 'a'"),
        (lambda X, y, s: {"sensitive": X[:, 0]}, "800 groups"),
        (lambda X, y, s: {"sensitive": y == "no"}, "sensitive is y itself"),
        (lambda X, y, s: {"sensitive_features": s}, "two names of one argument"),
        (lambda X, y, s: {"sample_weight": np.ones(800)}, "sample_weight is not supported"),
        (lambda X, y, s: {"X": MIXED, "y": np.where(s, np.nan, 1.0)}, "y has .* missing values"),
        (lambda X, y, s: {"X": MIXED, "y": y[:5]}, "y has 5 values for 800 rows"),
        (lambda X, y, s: {"X": MIXED.assign(a=np.inf)}, "column 'a' has an infinite value"),
        (lambda X, y, s: {"X": pd.concat([MIXED, MIXED[["b"]]], axis=1)}, "two columns 'b'"),
        (lambda X, y, s: {"X": MIXED.assign(b=[f"text {k}" for k in range(800)])}, "is it free text"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_one_line(wrong, message):
    X, y, s = records()
    with pytest.raises(ValueError, match=message) as refusal:
        SCCClassifier().fit(**{"X": X, "y": y, "sensitive": s, **wrong(X, y, s)})
    assert len(str(refusal.value).splitlines()) == 1


def test_a_wrong_setting_or_argument_is_refused():
    X, y, s = records()
    with pytest.raises(ValueError, match="lambdas must be a list"):
        SCCClassifier(lambdas=3.0).fit(X, y, sensitive=s)
    with pytest.raises(ValueError, match="epsilon must be a number, not '8'"):
        SCCClassifier(epsilon="8").fit(X, y, sensitive=s)
    with pytest.raises(TypeError, match="fit takes no 'groups'"):
        SCCClassifier().fit(X, y, groups=s)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda model: model.predict(MIXED.assign(a="many")), "column 'a' holds text"),
        (lambda model: model.predict(MIXED.assign(b="z")), "column 'b': .* not among those of fit: 'z'"),
        (lambda model: model.flip_rate(MIXED), "flips need s"),
        (lambda model: model.flip_rate(MIXED, np.full(800, 7)), "the value 7, which is no group of fit"),
        (lambda model: model.flip_rate(MIXED, np.zeros(800, int)), "two groups of 5 rows"),
        (lambda model: scc.flip_scorer("model", MIXED), "this scorer is for SCCClassifier"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line(wrong, message):
    _, y, s = records()
    shifted = MIXED.assign(a=MIXED.a + 800 * s)
    model = SCCClassifier(lambdas=(4.0,)).fit(shifted, y, sensitive=s)
    assert model.roles_.of["a"] == "M"
    with pytest.raises((TypeError, ValueError), match=message) as refusal:
        wrong(model)
    assert len(str(refusal.value).splitlines()) == 1


def test_a_plain_classifier_has_no_certificate():
    X, y, _ = records()
    with pytest.warns(NoGroupsWarning):
        model = SCCClassifier().fit(X, y)
    assert model.frontier_ is None
    for refused in (model.certificate, model.flip_rate):
        with pytest.raises(ValueError, match="fit was given no s"):
            refused(X)
