"""Estimates follow from measured rows, and say how far off they were on these."""

import json
from dataclasses import replace
from pathlib import Path

from protocols.config import SessionConfig
from secure_sccvfl.runs.member.estimate import FIGURES, MEASURED, estimate
from secure_sccvfl.training.modes.options import RunOptions

ROOT = Path(__file__).resolve().parents[4]


def test_the_basis_is_the_published_measurement() -> None:
    assert json.loads(MEASURED.read_text()) == json.loads((ROOT / "results" / "bench-costs.json").read_text())


def test_more_records_and_parties_cost_more_and_errors_are_told(config: SessionConfig) -> None:
    options = RunOptions.of(config.options)
    schema = options.schema(3)
    small, large = (estimate("train", options, schema, rows) for rows in (1_000, 20_000))
    assert small is not None and large is not None
    assert all(large.total[figure] >= small.total[figure] > 0 for figure in FIGURES)
    assert large.total["bytes"] > 5 * small.total["bytes"]
    phases = {"alignment", "inputs", "discovery and warm-up", "counterfactuals", "late refreshes", "training"}
    assert set(small.phases) == phases
    assert 1 < small.off["bytes"] < 2 and 1 <= small.off["rounds"] < 1.2, "what leaving a row out misses by"
    slow = estimate("train", options, schema, 1_000, round_trip=0.1)
    assert slow is not None and slow.total["seconds"] > small.total["seconds"] + 0.09 * small.total["rounds"]


def test_what_was_not_measured_is_not_estimated(config: SessionConfig) -> None:
    options = RunOptions.of(config.options)
    schema = options.schema(3)
    assert estimate("predict", options, schema, 1_000) is None
    assert estimate("train", options.changed(mode="split"), schema, 1_000) is None
    assert estimate("train", options.changed(evaluation="exact"), schema, 1_000) is None
    assert estimate("train", options, replace(schema, task="multiclass"), 1_000) is None
