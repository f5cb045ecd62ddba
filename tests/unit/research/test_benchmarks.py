"""Benchmarks: what they compute from what was measured, and tiny real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from secure_sccvfl.launch.bench import main
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.research.benchmarks import steps, trainings
from secure_sccvfl.research.benchmarks.measuring import (
    Result,
    Usage,
    compare,
    middle,
    processor_seconds,
    run_stock,
    table_of_systems,
)
from secure_sccvfl.research.benchmarks.steps import Size, least_bytes, run_spu, spu_python
from secure_sccvfl.research.benchmarks.trainings import Point, measured
from secure_sccvfl.training.config import WARM_STEPS, TrainConfig
from tests.multiprocess.named_files import help_of, unnamed

TINY = Size(40, 2)
PEERS, PEERS_NOTE = spu_python(None)


def silent(line: str) -> None:
    pass


COSTS = {"seconds": 1.0, "rounds": 270, "phases": {"counterfactuals": 0.1, "training": 0.5}}


def test_the_grid_has_all_rows_at_the_fewest_columns_then_all_columns_and_the_last_without_noise() -> None:
    points = trainings.width([300, 100], [30, 10])
    assert [point.dataset for point in points] == [f"synthetic:{s}" for s in ("100x10", "300x10", "300x30", "300x30")]
    assert [point.facts["before"] for point in points] == [False, False, False, True]
    assert len(trainings.width([7], [5])) == 1


def test_the_training_in_the_middle_is_taken_and_empty_columns_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((3.0, 1.0, 2.0))
    reference = type("Reference", (), {"seconds": 0.5, "columns": 7})
    monkeypatch.setattr(trainings, "secure", lambda point, folder: {**COSTS, "seconds": next(seconds)})
    monkeypatch.setattr(trainings, "plain", lambda *given, **options: reference)
    result = trainings.measure([Point("german", {"what": "one"})], 3, silent)
    (row,) = result.data["trainings"]
    assert (row["seconds"], row["plain_seconds"], row["columns"], row["what"]) == (2.0, 0.5, 7, "one")
    titles = result.parts[1].titles  # type: ignore[attr-defined]
    assert {"what", "plain s", "columns"} <= set(titles) and not {"classes", "head"} & set(titles)


def test_figures_are_medians_over_blocks_and_repeats() -> None:
    blocks = [{"seconds": [1.0, 5.0], "sent": 3}, {"seconds": [2.0], "sent": 5}]
    assert middle(blocks, "seconds") == 2.0 and middle(blocks, "sent") == 4 and middle(blocks, "other") is None


def test_a_system_that_is_not_installed_is_left_out_with_the_reason(tmp_path: Path) -> None:
    python, reason = spu_python(tmp_path / "python")
    assert python is None and "make peers" in reason
    blind = tmp_path / "blind"
    blind.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    blind.chmod(0o755)
    python, reason = spu_python(blind)
    assert python is None and "No module named 'spu'" in reason


def test_the_help_names_the_files_of_every_benchmark(tmp_path: Path) -> None:
    Result({"rows": []}, ()).publish("the command", 0.0, tmp_path / "bench-ops.json")
    assert unnamed(help_of("bench"), tmp_path.iterdir()) == [] != [*tmp_path.iterdir()]


def test_a_step_takes_one_size_and_a_possible_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["step", "--rows", "100", "200"]) != 0
    assert "one number of rows" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="at least"):
        Size(1, 1)


def test_processor_seconds_and_memory_are_those_of_the_process() -> None:
    tick = os.sysconf("SC_CLK_TCK")
    assert processor_seconds(f"7 (a ) b) S {' '.join(['0'] * 10)} {3 * tick} {2 * tick} 0 0") == 5.0
    busy = "import time\nkept = bytearray(60_000_000)\nwhile time.process_time() < .6: pass\ninput()"
    with subprocess.Popen([sys.executable, "-S", "-c", busy], stdin=subprocess.PIPE, text=True) as child:
        usage = Usage({"child": child.pid})
        deadline = time.monotonic() + 60
        while usage.processor.get("child", 0.0) < 0.3 and time.monotonic() < deadline:
            time.sleep(0.02)
        child.communicate("go on\n")
    assert usage.peaks["child"] > 60_000
    assert usage.processor["child"] >= 0.3


def test_a_sealed_step_of_another_size_is_right_and_sends_little_more_than_it_must() -> None:
    (row,) = steps.ours(1, TINY)
    assert row["max_error"] < 1e-3
    assert least_bytes(TINY) <= row["sent"] < least_bytes(TINY) + 2000
    assert row["dealer"] > 0 and row["memory"] > 50e6


def test_three_classes_have_the_probabilities_of_plaintext() -> None:
    point = Point("synthetic:300x6x3", {"classes": 3}, options={"private_model": False}, checked=True)
    three = measured(point, 1, silent)
    assert three["max_error"] < 0.005
    config = TrainConfig()
    assert three["steps"] == config.total_steps + WARM_STEPS * config.late_refreshes


def test_systems_are_compared_by_medians_with_the_first_ones_job_as_the_unit() -> None:
    row = {"job": "sealed", "rounds": 4.0, "max_error": 0.0}
    systems = {
        "ours": lambda: [{**row, "seconds": [0.5, 0.7], "sent": 8, "dealer": 2, "memory": 1e6}],
        "x": lambda: [{**row, "seconds": 2.4, "loopback": 30.0}, {**row, "job": "sealed gram", "seconds": 1.2}],
    }
    rows = compare(systems, 2, silent)
    assert [(r["job"], r["system"], r["times_ours"], r["bytes_to_peers"]) for r in rows] == [
        ("sealed", "ours", 1.0, 8),
        ("sealed", "x", 4.0, 10),
        ("sealed gram", "x", 2.0, 0),
    ]
    assert "| sealed | x | 2400.000 | 4.00 |" in str(table_of_systems(rows)), "no empty column"


@pytest.mark.slow
def test_stock_crypten_takes_the_same_step() -> None:
    (row,) = run_stock("TFP", "step", repeats=1, rows=40, width=2, cases=["sealed"])
    assert row["max_error"] < 5e-3 and row["memory"] > 50e6


@pytest.mark.slow
@pytest.mark.skipif(PEERS is None, reason=PEERS_NOTE)
def test_spu_takes_the_same_step() -> None:
    assert PEERS is not None
    (row,) = run_spu(PEERS, 1, TINY)
    assert row["max_error"] < 1e-3 and row["sent"] > 0 and row["rounds"] > 4
