"""The scikit-learn estimator: the library's own checks, and what s changes."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
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


def test_settings_are_those_of_scikit_learn():
    model = SCCClassifier(epsilon=2.0).set_params(random_state=7)
    assert clone(model).get_params() == model.get_params()
    assert model.get_params()["epsilon"] == 2.0


@pytest.mark.parametrize(
    ("sensitive", "message"), [(np.zeros(800), "one group only"), (np.zeros(5), "5 values for 800 rows")]
)
def test_an_s_that_cannot_be_is_refused(sensitive, message):
    X, y, _ = records()
    with pytest.raises(ValueError, match=message):
        SCCClassifier().fit(X, y, sensitive=sensitive)
