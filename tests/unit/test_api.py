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
from protocols.config import ConfigError
from secure_sccvfl.api.trained import gap_interval, one_thread
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics
from secure_sccvfl.evaluation.methods import prepare
from secure_sccvfl.releases.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.discovery import Study
from tests.unit.test_frames import make_data

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "pandas", "numpy", "sklearn", "scipy", "crypten")
MODULES = ("functions", "estimator", "frames", "trained")


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


def test_the_interval_of_a_gap_is_newcombes():
    """The example of his paper: 56 of 70 against 48 of 80, 0.0524 to 0.3339."""
    groups = [{"positive_rate": 56 / 70, "rows": 70}, {"positive_rate": 48 / 80, "rows": 80}]
    assert gap_interval(groups, ("positive_rate",)) == pytest.approx((0.0524, 0.3339), abs=1e-4)


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
    with pytest.raises(ConfigError, match="no setting 'mode'"):
        scc.train("heart", mode="split")
    with pytest.raises(ConfigError, match="no generator 'big'"):
        scc.train("heart", generator="big")
    with pytest.raises(DataError, match="no data set 'nobody'"):
        scc.load("nobody")


def test_a_policy_card_fixes_roles():
    assert scc.train("heart", lambdas=(4.0,), card="shipped").roles != scc.train("heart", lambdas=(4.0,)).roles


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
