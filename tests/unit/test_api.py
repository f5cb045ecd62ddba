"""The public face of the package: light to import, and the same numbers as the library below it."""

import doctest
import importlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import secure_sccvfl as scc
from secure_sccvfl.api.figures import Interval, gap_interval, quotient
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.methods import prepare
from secure_sccvfl.evaluation.scoring import one_thread
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.discovery import Study
from tests.unit.test_frames import make_data

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "pandas", "numpy", "sklearn", "scipy", "crypten")
MODULES = ("functions", "estimator", "figures", "frames", "trained")


def test_importing_the_package_imports_no_library():
    code = f"import sys, secure_sccvfl; print([m for m in {HEAVY} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_every_public_name_is_there():
    assert set(scc.__all__) <= set(dir(scc))
    for name in scc.__all__:
        assert getattr(scc, name)
    with pytest.raises(AttributeError, match="no attribute 'predict'"):
        scc.predict  # noqa: B018


def test_the_version_is_that_of_the_project():
    assert scc.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(f"secure_sccvfl.api.{name}")
    results = doctest.testmod(module)
    assert results.failed == 0
    assert results.attempted > 0


@pytest.fixture(scope="module")
def heart():
    return scc.train(scc.load("heart"), seed=3)


def test_training_is_that_of_the_pooled_evaluation(heart):
    data = scc.load("heart")
    with one_thread():
        config = RunOptions.of({"dataset": "heart"}).train_config().as_alternatives()
        ready = prepare(data.dataset, make_split(data.dataset, "iid", 3), 3, config)
        expected = ready.model.logits(ready.parties)
    assert np.array_equal(heart.logits(data.frame), expected)
    assert heart.roles == dict(ready.roles.of)
    assert ready.model.lam in heart.trials.index and 0 < heart.epsilon <= 8


def test_predictions_follow_the_logits(heart):
    frame = scc.load("heart").frame
    chances = heart.predict_proba(frame)
    assert list(chances.columns) == ["0", "1"] and np.allclose(chances.sum(axis=1), 1)
    assert (heart.predict(frame) == np.where(chances["1"] > 0.5, "1", "0")).all()
    some = frame.sample(20, random_state=0)
    assert heart.predict(some).equals(heart.predict(frame).loc[some["id"]])
    with pytest.raises(DataError, match="no column 'thal'"):
        heart.predict(frame.drop(columns="thal"))


def test_figures_are_those_of_the_test_part(heart):
    data, test = heart.ready.data, heart.ready.split.test
    figures = scc.evaluate(heart)
    right = heart.predict(scc.load("heart").frame).to_numpy()[test].astype(int) == data.label.values[test]
    assert figures.value["acc"] == pytest.approx(right.mean(), abs=1e-4)
    assert figures.majority["acc"] == pytest.approx((data.label.values[test] == 0).mean(), abs=1e-4)
    assert ((figures.low <= figures.value) & (figures.value <= figures.high)).all()
    assert {"logloss", "fr_all", "fr_null_all", "fr_kr_all", "fr_null_kr_all", "fr_own", "dp_gap", "eo_gap"} <= set(
        figures.index
    )


@pytest.mark.parametrize(
    "settings", [{}, {"private_model": False}, {"lambdas": (1.0, 3.0)}, {"lambdas": (3.0,)}], ids=str
)
def test_the_frontier_has_the_figures_of_every_lambda(heart, settings):
    """Of the model's own lambda those of `evaluate`; of another those of a model that takes it."""
    model = scc.train("heart", seed=3, **settings)
    frontier, figures = model.frontier(), model.evaluate()
    wanted = settings.get("lambdas", TrainConfig().lambdas)
    assert tuple(frontier.index) == wanted and set(frontier) == set(figures.index) - {"logloss"}
    assert {"acc", "fr_kr_all", "fr_null_kr_all", "dp_gap", "eo_gap", "certified"} <= set(frontier)
    assert frontier.loc[3.0].to_dict() == figures.value[list(frontier)].to_dict()
    other = scc.train("heart", seed=3, **settings, take_lambda=wanted[0])
    assert frontier.loc[wanted[0]].to_dict() == other.evaluate().value[list(frontier)].to_dict()
    ends = model.frontier(intervals=True)
    assert ends[("fr_kr_all", "high")].to_dict()[3.0] == figures.high["fr_kr_all"]
    assert model.epsilon <= 8


def test_heads_that_are_trained_together_are_all_charged():
    """Without `lambdas` each row is a model that is trained alone."""
    for settings, charged, rows in (({"lambdas": (3.0,)}, 1, 1), ({"lambdas": (1.0, 3.0)}, 2, 2), ({}, 1, 9)):
        model = scc.train("heart", seed=3, **settings)
        assert model.ready.budget.head.heads == charged and len(model.frontier()) == rows


def test_figures_by_group_are_those_of_evaluate(heart):
    table, figures = heart.by_group(), heart.evaluate()
    assert table.value["difference"] == pytest.approx(figures.value["dp_gap"], abs=1e-4)
    assert [max(table.low["difference"], 0), table.high["difference"]] == pytest.approx(
        [figures.low["dp_gap"], figures.high["dp_gap"]], abs=1e-4
    )
    assert table.value["overall"] == pytest.approx(figures.value["positive_rate"], abs=1e-4)
    rates = table.loc[list(heart.ready.data.protected[0].groups)]
    assert table.value["ratio"] == pytest.approx(rates.value.min() / rates.value.max())
    assert table.loc["overall", "rows"] == rates["rows"].sum() == len(heart.ready.split.test)
    assert heart.by_group("acc").value["overall"] == pytest.approx(figures.value["acc"], abs=1e-4)


def test_any_metric_has_a_bootstrap_interval_by_group():
    rng = np.random.default_rng(0)
    s, y = rng.integers(0, 3, 900), rng.integers(0, 2, 900)
    shown = np.where(rng.random(900) < np.array([0.9, 0.7, 0.8])[s], y, 1 - y)
    exact = scc.by_group("acc", y, shown, sensitive_features=s)
    drawn = scc.by_group(lambda true, seen: (true == seen).mean(), y, shown, sensitive_features=s)
    assert np.allclose(exact["value"], drawn["value"]) and list(exact.index) == [
        0,
        1,
        2,
        "overall",
        "difference",
        "ratio",
    ]
    # The bootstrap's error is that of 1000 draws: a quarter of the interval's width is far above it.
    assert np.allclose(exact[["low", "high"]], drawn[["low", "high"]], atol=0.03)
    few = scc.by_group("acc", [0, 1] * 20, [0, 1] * 20, sensitive_features=["a"] * 38 + ["b"] * 2)
    assert np.isnan(few.value["b"]) and "difference" not in few.index


def test_the_interval_of_a_ratio_is_fiellers_where_errors_are_normal():
    """Which the method of Donner and Zou gives for symmetric intervals."""
    (a, b), (c, d), z = (0.3, 0.02), (0.5, 0.03), 1.96
    root = np.sqrt((a * c) ** 2 - (a**2 - (z * b) ** 2) * (c**2 - (z * d) ** 2))
    wanted = [(a * c + sign * root) / (c**2 - (z * d) ** 2) for sign in (-1, 1)]
    seen = quotient(Interval(a, a - z * b, a + z * b), Interval(c, c - z * d, c + z * d))
    assert seen == pytest.approx((a / c, *wanted))
    assert quotient(Interval(0.0, 0.0, 0.1), Interval(0.5, 0.4, 0.6)).low == 0.0
    assert np.isinf(quotient(Interval(0.1, 0.0, 0.2), Interval(0.2, 0.0, 0.4)).high)


def test_the_interval_of_a_gap_is_newcombes():
    """The example of his paper: 56 of 70 against 48 of 80, 0.0524 to 0.3339."""
    groups = [{"positive_rate": 56 / 70, "rows": 70}, {"positive_rate": 48 / 80, "rows": 80}]
    assert gap_interval(groups, ("positive_rate",))[1:] == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_discovery_is_that_of_the_library():
    data = scc.load("heart")
    discovery = scc.discover(data, epsilon=4, seed=2, rule="fractions", score="paper")
    noise = GaussianNoise(SpendingPlan(4.0, releases=2), 2)
    expected = Study("heart").scores(PlainStatistics(noise), releases=2)
    assert dict(discovery.scores["score"]) == pytest.approx(expected, abs=1e-4)
    assert discovery.scores["score"].is_monotonic_decreasing and 0 < discovery.epsilon <= 4
    assert set(discovery.roles) == {f.name for f in data.dataset.features}


def test_conditional_scores_are_found_too():
    discovery = scc.discover("heart", seed=2, conditional=True, refreshes=1)
    assert dict(discovery.scores["score"]) != dict(scc.discover("heart", seed=2, refreshes=1).scores["score"])


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_other_tasks_train_and_predict(task):
    rng = np.random.default_rng(5)
    n = 300
    s, x = rng.integers(0, 2, n), rng.normal(size=n)
    target = x + 0.3 * rng.normal(size=n)
    label = np.digitize(target, [-0.5, 0.5]) if task == "multiclass" else target
    frames = {
        "a": pd.DataFrame({"id": range(n), "x": x, "y": label}),
        "b": pd.DataFrame({"id": range(n), "z": rng.normal(size=n) + s, "s": s}),
    }
    data = scc.load(frames=frames, label=("a", "y"), protected=("b", "s"))
    model = scc.train(data, lambdas=(4.0,))
    assert data.dataset.task == task
    figures = model.evaluate()
    measure, better = ("acc", np.greater) if task == "multiclass" else ("rmse", np.less)
    assert better(figures.value[measure], figures.majority[measure])
    assert len(model.predict(data.frame)) == n
    if task == "regression":
        with pytest.raises(ValueError, match="no probabilities"):
            model.predict_proba(data.frame)


def test_settings_are_checked_by_name_and_value():
    with pytest.raises(ConfigError, match="unknown setting 'mode'"):
        scc.train("heart", mode="split")
    with pytest.raises(ConfigError, match=r"^unknown setting 'lamdas'; did you mean 'lambdas'\?$"):
        scc.train("heart", lamdas=(1.0,))
    with pytest.raises(ConfigError, match="parties must be a whole number from 2 on, not 0"):
        scc.run_local("heart", parties=0)
    with pytest.raises(ConfigError, match="no generator 'big'"):
        scc.train("heart", generator="big")
    with pytest.raises(DataError, match="no data set 'nobody'"):
        scc.load("nobody")


TABLE = pd.DataFrame({"id": range(60), "amount": range(60), "late": [0, 1, 1] * 20})
OTHER = pd.DataFrame({"id": range(60), "job": ["a", "b", "c"] * 20, "old": [0, 1] * 30})
BOTH = {"bank": TABLE, "firm": OTHER}
HELD = {"label": ("bank", "late"), "protected": ("firm", "old")}
RECORDS = scc.load("heart").frame


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda model: scc.load(frames=[TABLE, OTHER], **HELD), DataError, "be no list"),
        (lambda model: scc.load(frames=TABLE, **HELD), DataError, "be no DataFrame"),
        (
            lambda model: scc.load(frames={**BOTH, "bank": TABLE.to_numpy()}, **HELD),
            DataError,
            "'bank' must be a DataF",
        ),
        (
            lambda model: scc.load(frames={**BOTH, "bank": TABLE[["id", "id", "late"]]}, **HELD),
            DataError,
            "columns 'id'",
        ),
        (lambda model: scc.load(frames=BOTH, **{**HELD, "protected": "old"}), DataError, r"\(party, column\).*'old'"),
        (lambda model: scc.load(frames=BOTH, **{**HELD, "label": "late"}), DataError, r"\(party, column\).*'late'"),
        (lambda model: scc.load(frames=BOTH, **{**HELD, "protected": []}), DataError, "names no attribute"),
        (lambda model: scc.load(frames=BOTH, **HELD, features=["amount"]), DataError, "an entry for each column"),
        (
            lambda model: scc.load(frames=BOTH, **HELD, features={"job": "category"}),
            DataError,
            "an entry for each col",
        ),
        (
            lambda model: scc.load(frames={**BOTH, "firm": OTHER.assign(old=1 - TABLE.late)}, **HELD),
            DataError,
            "'old' is the label",
        ),
        (
            lambda model: scc.load(frames={**BOTH, "bank": TABLE.assign(amount=np.inf)}, **HELD),
            DataError,
            "is infinite",
        ),
        (
            lambda model: scc.load(frames={**BOTH, "bank": TABLE.assign(amount=1)}, **HELD),
            DataError,
            "has one value only",
        ),
        (lambda model: scc.load(frames=BOTH, **{**HELD, "label": {"column": "late"}}), DataError, "names no party"),
        (
            lambda model: scc.load(
                frames=BOTH, **{**HELD, "label": {"party": "bank", "column": "late", "clases": []}}
            ),
            DataError,
            "unknown keys",
        ),
        (
            lambda model: scc.load(frames=BOTH, **{**HELD, "label": ("bank", "late", "01")}),
            DataError,
            "must be a list",
        ),
        (lambda model: scc.load(frames=BOTH, **{**HELD, "protected": 3}), DataError, "not 3"),
        (lambda model: scc.train("heart", lambdas=(float("nan"),)), ConfigError, "lambdas must rise"),
        (lambda model: scc.load(TABLE), DataError, "give tables as frames="),
        (lambda model: scc.train(TABLE), DataError, "not DataFrame"),
        (lambda model: scc.evaluate("heart"), TypeError, "not str"),
        (lambda model: scc.run_local("heart", parties="3"), ConfigError, "whole number"),
        (lambda model: model.predict(RECORDS.to_numpy()), DataError, "not ndarray"),
        (lambda model: model.predict(RECORDS.iloc[0]), DataError, "not Series"),
        (lambda model: model.predict_proba([[1, 2]]), DataError, "not list"),
        (lambda model: model.certificate(None), DataError, "not NoneType"),
        (
            lambda model: model.predict(pd.concat([RECORDS, RECORDS[["thal"]]], axis=1)),
            DataError,
            "two columns 'thal'",
        ),
        (lambda model: model.by_group("accuracy"), ValueError, "available: acc"),
        (lambda model: model.by_group("tpr", positive="2"), ValueError, "is no label"),
        (lambda model: scc.by_group("tpr", [0, 1, 2], [0, 1, 2], sensitive_features=[0, 1, 0]), ValueError, "3 diff"),
        (
            lambda model: scc.by_group("acc", [0, 1], [0, 1, 1], sensitive_features=[0, 1]),
            ValueError,
            "3 values for 2",
        ),
        (lambda model: scc.by_group("acc", [0, 1], ["0", "1"], sensitive_features=[0, 1]), ValueError, "has texts"),
        (lambda model: scc.by_group("acc", [0, 1], [0, 1], sensitive_features=[0, None]), ValueError, "1 missing"),
        (lambda model: scc.by_group("acc", [0, 1], [0, 1], sensitive_features=[[0, 1]] * 2), ValueError, "the shape"),
    ],
)
def test_a_mistake_is_refused_in_one_line(heart, wrong, error, message):
    with pytest.raises(error, match=message) as refusal:
        wrong(heart)
    assert len(str(refusal.value).splitlines()) == 1 and not isinstance(refusal.value, (AttributeError, LookupError))


def test_a_run_is_refused_before_anything_is_written(tmp_path):
    data = make_data(label=("bank", "late"), features=None)
    with pytest.raises(DataError, match="late, amount, job were read off the records"):
        scc.run_local(data, folder=tmp_path / "run")
    with pytest.raises(ConfigError, match="writes shares to disk"):
        scc.run_local(scc.load("heart").write(tmp_path / "data"), folder=tmp_path / "run", transcript=True)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    with pytest.raises(ConfigError, match="is not empty"):
        scc.run_local("heart", folder=tmp_path)


def test_only_a_finished_run_can_be_opened(tmp_path):
    with pytest.raises(ConfigError, match="not the folder of a finished run"):
        scc.Run.open(tmp_path)
    (tmp_path / "report.json").write_text(json.dumps({"run": "0" * 64, "dataset": "heart"}))
    run = scc.Run.open(tmp_path)
    with pytest.raises(ConfigError, match="no transcripts"):
        run.attack()
