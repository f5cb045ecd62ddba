"""Points of the frontier."""

from __future__ import annotations

from dataclasses import replace

import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.evaluation import frontier
from secure_sccvfl.evaluation.frontier import BUDGETS, FrontierSeed, run_frontier_seed
from secure_sccvfl.evaluation.methods import default_run
from secure_sccvfl.policy.card import named_card


def test_the_budget_of_the_run_gives_the_point_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other budgets have other noise; a model that is not private has no such points."""
    monkeypatch.setattr(frontier, "BESIDE", ("erm", "drop_m"))
    monkeypatch.setattr(frontier, "KAPPAS", ())
    config, budget = default_run(load("acs12-gender"))
    seed = FrontierSeed("acs12-gender", 3, "iid", 1, config, budget, named_card("shipped", "acs12-gender"))
    of_run = run_frontier_seed(seed)
    assert of_run is not None and budget.epsilon == 8.0
    points = of_run["points"]
    assert {name for name in points if name.startswith("epsilon=")} == {f"epsilon={at:g}" for at in BUDGETS}
    assert points["epsilon=8"] == points["scc"]
    assert len({points[f"epsilon={at:g}"]["logloss"] for at in BUDGETS}) == len(BUDGETS)
    public = run_frontier_seed(replace(seed, config=replace(config, private=False)))
    assert public is not None and not any(name.startswith("epsilon=") for name in public["points"])
