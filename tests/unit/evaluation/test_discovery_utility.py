"""How often proposed roles come again: the comparison itself, and that the program writes it down."""

import json

import pytest

from launch.reproduce import main
from secure_sccvfl.discovery.decisions import Finding
from secure_sccvfl.evaluation.discovery_utility import compared
from secure_sccvfl.policy.roles import Roles


def finding(roles, confidence):
    made = dict(zip("abcd", roles, strict=True))
    sure = dict(zip("abcd", confidence, strict=True))
    return Finding(Roles(made), {}, {}, proposed=made, confidence=sure)


def test_pairs_of_runs_are_compared_column_by_column():
    first, second = finding("MMNN", (1.0, 0.95, 0.4, 0.3)), finding("MNNM", (0.95, 0.6, 0.8, 0.2))
    told = compared([first, second])
    assert told["same"] == 0.5, "two of four columns, seen from either run"
    assert told["chance"] == pytest.approx(0.5), "half of the roles are M"
    steps = {(step["above"], step["to"]): step for step in told["steps"]}
    sure = steps[0.9, 1.0]
    assert sure["share"] == 3 / 8 and sure["again"] == pytest.approx(2 / 3)
    assert sure["confidence"] == pytest.approx((1 + 0.95 + 0.95) / 3)
    assert sum(step["share"] for step in told["steps"]) == 1.0


def test_the_same_roles_always_come_again():
    one = finding("MMNN", (1.0,) * 4)
    told = compared([one, finding("MMNN", (1.0,) * 4)])
    assert told["same"] == 1.0 and told["steps"] == [
        {"above": 0.9, "to": 1.0, "share": 1, "confidence": 1, "again": 1}
    ]


def test_the_program_writes_roles_and_says_how_they_were_made(tmp_path, capsys):
    assert main(["roles", "--dataset", "heart", "--seeds", "2", "--out", str(tmp_path)]) == 0
    told = json.loads((tmp_path / "role-stability.json").read_text())
    assert told["command"] == "python launch/reproduce.py roles --dataset heart --first-seed 0 --seeds 2"
    assert [row["dataset"] for row in told["rows"]] == ["heart"] and 0 < told["rows"][0]["same"] <= 1
    assert "| heart | 2 |" in capsys.readouterr().out
