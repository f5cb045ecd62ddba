"""How often roles of the paper's own discovery come again: the comparison, its chance, and the program."""

import json

import pytest

from launch.reproduce import main
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.research.paper import fractions
from secure_sccvfl.research.paper.fractions import agreement

OWNERS = {"a": "bank", "b": "bank", "c": "bureau", "d": "bureau"}


def roles(letters):
    return Roles(dict(zip("abcd", letters, strict=True)))


def test_pairs_are_compared_and_chance_is_taken_within_parties():
    told = agreement([roles("MNMM"), roles("NMMM"), roles("MNMM")], OWNERS)
    assert told["same"] == pytest.approx((0.5 + 1.0 + 0.5) / 3) and told["pairs"] == 3
    assert told["chance"] == pytest.approx((0.5 + 0.5 + 1.0 + 1.0) / 4), "a party whose roles are fixed always agrees"


def test_the_program_writes_roles_fractions_and_how_they_were_made(tmp_path, monkeypatch, capsys):
    for name, value in {"RHO_M": (0.6,), "RHO_P": (0.5,), "DEVELOPMENT": range(700, 701), "DRAWS": 2}.items():
        monkeypatch.setattr(fractions, name, value)
    assert main(["letter-roles", "--dataset", "heart", "--seeds", "2", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "letter-roles.json").read_text())
    assert told["command"] == "python launch/reproduce.py letter-roles --dataset heart --first-seed 0 --seeds 2"
    assert {"date", "versions", "code"} <= set(told) and told["development_seeds"] == [700]
    assert len(told["rows"]) == 6 and all(0 <= row["same"] <= 1 and row["chance"] < 1 for row in told["rows"])
    assert [set(found) for found in told["per_seed"].values()] == [{"0", "1"}] * 2
    assert [(row["rho_m"], row["rho_p"]) for row in told["fractions"]] == [(0.6, 0.5)]
    assert "| 0.6 | 0.5 |" in capsys.readouterr().out
