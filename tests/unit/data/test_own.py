"""A data set that is not built in, from a TOML file and CSVs alone, through the pooled plaintext evaluation."""

import json

import numpy as np
import pandas as pd
import pytest

from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.research import experiments
from secure_sccvfl.research.tables import Part, reproduce, short_name
from tests.support.counterfactuals import shorten_autoencoder

LABELS = {
    "binary": 'classes = ["no", "yes"]',
    "multiclass": 'classes = ["low", "mid", "high"]',
    "regression": "low = 0\nhigh = 10",
}


def write(folder, task, n=400):
    """Two shops and a survey: three files, an id, who holds what; nothing else is needed."""
    rng = np.random.default_rng(8)
    region, old = rng.integers(0, 3, n), rng.integers(0, 2, n)
    visits = rng.poisson(3 + 2 * old).clip(0, 30)
    spend = (rng.gamma(2, 50, n) + 40 * (region == 1)).clip(0, 2000).round(2)
    paid = rng.choice(["cash", "card"], n)
    signal = visits / 3 + spend / 150 + rng.normal(0, 0.7, n)
    target = {
        "binary": np.where(signal > np.median(signal), "yes", "no"),
        "multiclass": np.array(["low", "mid", "high"])[np.digitize(signal, np.quantile(signal, [0.33, 0.67]))],
        "regression": signal.clip(0, 10).round(3),
    }[task]
    ids = [f"c{i}" for i in range(n)]
    pd.DataFrame({"id": ids, "spend": spend, "again": target}).to_csv(folder / "shop_a.csv", index=False)
    pd.DataFrame({"id": ids, "visits": visits, "paid": paid}).to_csv(folder / "shop_b.csv", index=False)
    survey = {"id": ids, "region": np.array(["n", "s", "e"])[region], "old": np.where(old, "yes", "no")}
    survey["happy"] = rng.integers(1, 6, n)
    pd.DataFrame(survey).to_csv(folder / "survey.csv", index=False)
    (folder / "shops.toml").write_text(
        f"""
name = "shops"
task = "{task}"
id = "id"
[label]
party = "a"
column = "again"
{LABELS[task]}
[[protected]]
party = "c"
column = "old"
groups = ["no", "yes"]
[[protected]]
party = "c"
column = "region"
groups = ["n", "s", "e"]
[parties.a]
file = "shop_a.csv"
features = [ {{ name = "spend", kind = "number", edges = [0, 50, 100, 200, 400, 2000], unit = "EUR" }} ]
[parties.b]
file = "shop_b.csv"
features = [
  {{ name = "visits", kind = "number", low = 0, high = 30, edges = [0, 2, 4, 6, 10, 30] }},
  {{ name = "paid", kind = "category", categories = ["cash", "card"] }},
]
[parties.c]
file = "survey.csv"
features = [ {{ name = "happy", kind = "category", categories = [1, 2, 3, 4, 5] }} ]
"""
    )
    return str(folder / "shops.toml")


@pytest.mark.parametrize("task", ["binary", "multiclass", "regression"])
def test_own_data_goes_through_the_pooled_evaluation(tmp_path, monkeypatch, task):
    few = {k: METHODS.get(k) for k in ("majority", "logreg", "erm", "drop_m", "scc")}
    monkeypatch.setattr(experiments, "methods_of", lambda experiment: few)
    shorten_autoencoder(monkeypatch)
    part = Part("out", "main", (write(tmp_path, task),), seeds=range(1))
    rows = reproduce(part, tmp_path / "out")
    got = {(r["method"], r["judge"], r["metric"]): r["mean"] for r in rows}
    assert json.loads((tmp_path / "out" / "results.json").read_text())["rows"][0]["dataset"] == "shops"
    assert {m for (_, _, m) in got} >= {"scg_region", "scg_norm_region"}, "both protected attributes are evaluated"
    if task == "regression":
        assert got["erm", None, "rmse"] < 0.8 * got["majority", None, "rmse"]
        assert not any(m == "fr" for (_, _, m) in got)
    else:
        assert got["erm", None, "acc"] > got["majority", None, "acc"] + 0.15
        assert got["scc", "ot", "fr"] <= got["erm", "ot", "fr"]


def test_a_path_never_reaches_the_results():
    assert short_name("some/dir/loans.toml") == "loans"
    assert short_name("acs-income:some/dir/psam.csv") == "acs-income"
    assert short_name("acs-mobility@CA-2018") == "acs-mobility" and short_name("german") == "german"
