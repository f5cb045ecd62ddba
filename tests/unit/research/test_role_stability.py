"""How often proposed roles come again, also those of the paper: the comparison, and what the program writes."""

import json

import numpy as np
import pytest
from scipy import stats

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.discovery.decisions import RoleAssignment
from secure_sccvfl.launch.reproduce import main
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.research import role_stability
from secure_sccvfl.research.role_stability import (
    BUDGETS,
    SCORES,
    compared,
    jackknife,
    run_settings,
)
from tests.multiprocess.named_files import help_of, unnamed


def assignment(roles, confidence):
    by_column = dict(zip("abcd", roles, strict=True))
    sure = dict(zip("abcd", confidence, strict=True))
    return RoleAssignment(Roles(by_column), {}, {}, proposed=by_column, confidence=sure)


def test_pairs_of_runs_are_compared_column_by_column():
    first, second = assignment("MMNN", (1.0, 0.95, 0.4, 0.3)), assignment("MNNM", (0.95, 0.6, 0.8, 0.2))
    comparison = compared([first, second])
    assert comparison["same"] == 0.5, "two of four columns, seen from either run"
    assert comparison["chance"] == pytest.approx(0.5), "half of the roles are M"
    steps = {(step["above"], step["to"]): step for step in comparison["steps"]}
    sure = steps[0.9, 1.0]
    assert sure["share"] == 3 / 8 and sure["again"] == pytest.approx(2 / 3)
    assert sure["confidence"] == pytest.approx((1 + 0.95 + 0.95) / 3)
    assert sum(step["share"] for step in comparison["steps"]) == 1.0


def test_the_program_writes_roles_and_says_how_they_were_made(tmp_path, capsys):
    assert main(["roles", "--dataset", "heart", "--seeds", "2", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "role-stability.json").read_text())
    assert results["command"] == "python launch/reproduce.py roles --dataset heart --first-seed 0 --seeds 2"
    assert [(row["budget"], row["score"]) for row in results["rows"]] == [(b, s) for b in BUDGETS for s in SCORES]
    assert all(0 < row["same"] <= 1 and set(row["roles"]) == {"0", "1"} for row in results["rows"])
    assert results["date"] and results["versions"]["numpy"] and "commit" in results
    assert "| heart | default run | 8 | 2 | hsic |" in capsys.readouterr().out
    assert unnamed(help_of("reproduce"), tmp_path.iterdir()) == []


def test_the_interval_of_pairs_is_that_of_runs():
    """A mean over pairs of a + b has twice the variance of a mean over runs; pairs taken as independent have less."""
    rng = np.random.default_rng(0)
    widths, means = [], []
    for _ in range(200):
        drawn = rng.normal(size=20)
        pairs = drawn[:, None] + drawn[None, :]
        np.fill_diagonal(pairs, np.nan)
        mean, half = jackknife(pairs)
        means.append(mean)
        widths.append(half / stats.t.ppf(0.975, 19))
    assert np.mean(widths) == pytest.approx(2 / 20**0.5, rel=0.05) == pytest.approx(np.std(means), rel=0.15)
    assert jackknife(np.full((2, 2), 0.5))[0] == 0.5 and np.isnan(jackknife(np.full((2, 2), 0.5))[1])


def test_a_default_run_leaves_less_for_its_tables():
    data = load("heart")
    alone, default = (run_settings(data, budget, "hsic")[1] for budget in BUDGETS)
    assert default.multiplier > 1.3 * alone.multiplier, "a private head takes its share"
    assert default.epsilon == alone.epsilon == 8.0


OWNERS = {"a": "bank", "b": "bank", "c": "bureau", "d": "bureau"}


def test_roles_of_the_paper_are_compared_by_pairs_and_chance_is_taken_within_parties():
    runs = [Roles(dict(zip("abcd", roles, strict=True))) for roles in ("MNMM", "NMMM", "MNMM")]
    agreement = role_stability.agreement(runs, OWNERS)
    assert agreement["same"] == pytest.approx((0.5 + 1.0 + 0.5) / 3) and agreement["pairs"] == 3
    assert agreement["chance"] == pytest.approx((0.5 + 0.5 + 1.0 + 1.0) / 4), (
        "a party whose roles are fixed always agrees"
    )


def test_the_program_writes_roles_of_the_paper_fractions_and_how_they_were_made(tmp_path, monkeypatch, capsys):
    for name, value in {"RHO_M": (0.6,), "RHO_P": (0.5,), "DEVELOPMENT": range(700, 701), "DRAWS": 2}.items():
        monkeypatch.setattr(role_stability, name, value)
    assert main(["letter-roles", "--dataset", "heart", "--seeds", "2", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "letter-roles.json").read_text())
    assert results["command"] == "python launch/reproduce.py letter-roles --dataset heart --first-seed 0 --seeds 2"
    assert unnamed(help_of("reproduce"), tmp_path.iterdir()) == []
    assert {"date", "versions", "code"} <= set(results) and results["development_seeds"] == [700]
    assert len(results["rows"]) == 6 and all(0 <= row["same"] <= 1 and row["chance"] < 1 for row in results["rows"])
    assert [set(by_seed) for by_seed in results["per_seed"].values()] == [{"0", "1"}] * 2
    assert [(row["rho_m"], row["rho_p"]) for row in results["fractions"]] == [(0.6, 0.5)]
    assert "| 0.6 | 0.5 |" in capsys.readouterr().out
