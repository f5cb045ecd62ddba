"""Rows over seeds: differences paired by seed, flips as a share of plain training's."""

import numpy as np
import pytest

from secure_sccvfl.reports.tables import markdown
from secure_sccvfl.research.tables import summarise

ACC = {"drop_m": [0.70, 0.72, 0.68], "scc": [0.72, 0.73, 0.71], "erm": [0.69, 0.71, 0.70]}
FLIPS = {"erm": [0.10, 0.06, 0.08], "scc": [0.01, 0.02, 0.03]}


def seed(number):
    scores = [{"method": m, "judge": None, "metric": "acc", "value": v[number]} for m, v in ACC.items()]
    scores += [{"method": m, "judge": "all", "metric": "fr", "value": v[number]} for m, v in FLIPS.items()]
    return {"job": {"dataset": "german", "split": "iid", "seed": number}, "scores": scores}


def rows_of(seeds):
    rows = summarise(map(seed, seeds))
    return rows, {(r["method"], r["metric"]): r for r in rows}


def test_a_difference_is_paired_by_seed_and_may_be_negative():
    _, found = rows_of(range(3))
    ours, plain = found["scc", "acc_vs_drop_m"], found["erm", "acc_vs_drop_m"]
    apart = np.subtract(ACC["scc"], ACC["drop_m"])
    half = 4.302653 * apart.std(ddof=1) / np.sqrt(3)  # t of two degrees of freedom
    assert (ours["mean"], ours["low"], ours["high"]) == pytest.approx((0.02, 0.02 - half, 0.02 + half))
    assert ours["high"] - ours["low"] < found["scc", "acc"]["high"] - found["scc", "acc"]["low"], "pairing helps"
    assert plain["low"] < 0 < plain["high"] and ("drop_m", "acc_vs_drop_m") not in found


def test_flips_are_told_as_a_share_of_plain_training():
    _, found = rows_of(range(3))
    cut = found["scc", "fr_cut"]
    assert cut["mean"] == pytest.approx(0.75) and cut["low"] < 0.75 < cut["high"] <= 1.0
    assert ("erm", "fr_cut") not in found
    half = 4.302653 * np.std(np.subtract(FLIPS["scc"], 0.25 * np.array(FLIPS["erm"])), ddof=1) / np.sqrt(3) / 0.08
    assert cut["low"] == pytest.approx(0.75 - half)


def test_a_seed_that_lacks_the_yardstick_is_left_out_of_the_difference():
    results = [seed(number) for number in range(3)]
    results[2]["scores"] = [s for s in results[2]["scores"] if s["method"] != "drop_m"]
    found = {(r["method"], r["metric"]): r for r in summarise(results)}
    assert found["scc", "acc_vs_drop_m"]["seeds"] == 2 and found["scc", "acc"]["seeds"] == 3
    assert found["scc", "acc_vs_drop_m"]["mean"] == pytest.approx(0.015)


def test_the_table_shows_both():
    rows, _ = rows_of(range(3))
    text = markdown("main", rows)
    head = next(line for line in text.splitlines() if line.startswith("| method"))
    assert head.startswith("| method | acc | acc_vs_drop_m | fr [all] | fr_cut [all] |")
    line = [line for line in text.splitlines() if line.startswith("| scc")][-1]
    assert "| +0.020 (-0.005 to +0.045) |" in line and "| 75 % (" in line


def test_the_deviation_over_seeds_is_told():
    _, found = rows_of(range(3))
    assert found["scc", "acc"]["sd"] == pytest.approx(np.std(ACC["scc"], ddof=1))
    assert found["scc", "acc_vs_drop_m"]["sd"] == pytest.approx(np.std([0.02, 0.01, 0.03], ddof=1))
    assert found["scc", "fr_cut"]["sd"] is None
    assert rows_of(range(1))[1]["scc", "acc"]["sd"] == 0.0
