"""Benchmarks of size, classes and distance: what they compute from what was measured, and tiny real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launch.bench import main
from protocols.config import ConfigError
from secure_sccvfl.research.benchmarks.peers.aby3 import run_spu, spu_python
from secure_sccvfl.research.benchmarks.steps import step_table
from secure_sccvfl.research.benchmarks.steps.step import Size, least_bytes
from secure_sccvfl.research.benchmarks.systems import run_stock
from secure_sccvfl.research.benchmarks.trainings import classes, wan, width
from secure_sccvfl.research.benchmarks.usage import Usage, processor_seconds
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.schedule import WARM_STEPS

TINY = Size(40, 2)
PEERS, PEERS_NOTE = spu_python(None)


def silent(line: str) -> None:
    pass


def training(rows: int, features: int, **other: Any) -> dict[str, Any]:
    """A row whose seconds grow with rows, and bytes with rows and features."""
    measured = {"seconds": rows / 100, "plain_seconds": 0.1, "rounds": 270, "processor": 1.0, "party_mb": 300}
    sizes = {"bytes": rows * features, "dealer_bytes": rows * features, "dealer_mb": 280}
    phases = {"phases": {"counterfactuals": 0.1, "training": 0.5}, "before": False, "columns": 5 * features}
    return {"rows": rows, "features": features, **measured, **sizes, **phases, **other}


GRID = [training(100, 10), training(300, 10), training(300, 30), training(300, 30, before=True, seconds=1e6)]


def test_the_grid_has_every_row_at_the_fewest_columns_and_every_column_at_the_most_rows() -> None:
    assert width.points([300, 100], [30, 10]) == [(100, 10), (300, 10), (300, 30)]
    assert width.points([7], [5]) == [(7, 5)]


def test_growth_is_told_along_each_axis_and_without_the_leak() -> None:
    rows, features = width.growth(GRID)
    assert rows == "rows times 3.0 (100 to 300): seconds times 3.0, bytes times 3.0, memory of a party times 1.0."
    assert features.endswith("(10 to 30): seconds times 1.0, bytes times 3.0, memory of a party times 1.0.")
    assert width.growth(GRID[:1]) == []


def test_the_plot_is_the_same_for_the_same_rows_and_needs_two_points_of_each_axis(tmp_path: Path) -> None:
    assert all(width.plot(GRID, tmp_path / name) for name in ("one.svg", "two.svg"))
    assert (tmp_path / "one.svg").read_text() == (tmp_path / "two.svg").read_text()
    assert not width.plot(GRID[:2], tmp_path / "none.svg") and not (tmp_path / "none.svg").exists()


def test_a_system_that_is_not_installed_is_left_out_with_the_reason(tmp_path: Path) -> None:
    python, reason = spu_python(tmp_path / "python")
    assert python is None and "make peers" in reason
    blind = tmp_path / "blind"
    blind.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    blind.chmod(0o755)
    python, reason = spu_python(blind)
    assert python is None and "No module named 'spu'" in reason


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


@pytest.fixture(scope="module")
def step() -> dict[str, Any]:
    return step_table.ours("sealed", 1, TINY)[0]


def test_a_sealed_step_of_another_size_is_right_and_sends_little_more_than_it_must(step: dict[str, Any]) -> None:
    assert step["max_error"] < 1e-3
    assert least_bytes("sealed", TINY) <= step["sent"] < least_bytes("sealed", TINY) + 2000
    assert step["dealer"] > 0 and step["memory"] > 50e6


def test_three_classes_have_the_probabilities_of_plaintext() -> None:
    three = classes.training(300, 6, 3, silent)
    assert three["max_error"] < 0.005
    config = TrainConfig()
    assert three["steps"] == config.total_steps + WARM_STEPS * config.late_refreshes
    text = classes.markdown(300, 6, {"trainings": [three, three], "steps": _steps()}, "command", "SPU 0")
    assert f"| 3 | {three['seconds']:.2f} |" in text and "| 1.00 |" in text


def _steps() -> list[dict[str, Any]]:
    shared = {"job": "sealed", "rows": 40, "columns": 6, "processor": 0.1, "rounds": 4, "bytes_to_peers": 8}
    more = {"least_bytes": None, "bytes_dealer": 1, "peak_memory": 1e6, "max_error": 0.0}
    return [
        {**shared, **more, "system": "ours-sealed", "seconds": 0.5},
        {**shared, **more, "system": "x", "seconds": 2},
    ]


def test_tables_show_ratios_to_ours_and_what_is_computed_only() -> None:
    assert "| x | 2000.00 | 4.00 |" in width.markdown({"trainings": GRID, "steps": _steps()}, "command", "SPU 0")
    rows = [{"system": "s", "round_trip_ms": ms, "seconds": 1.0, "rounds": 4, "computed": ms > 0} for ms in (0, 20)]
    told = {"round_trip_ms": 0, **training(9, 9)}
    text = wan.markdown("german", {"trainings": [told], "steps": rows}, "command", "SPU 0")
    assert "| s | 0 | 1000.0 | 4 |" in text and "| s | 20 | at least 1000.0 | 4 |" in text


@pytest.mark.slow
def test_stock_crypten_takes_the_same_step() -> None:
    (row,) = run_stock("TFP", 1, "step", "--rows", "40", "--width", "2", "--cases", "sealed")
    assert row["max_error"] < 5e-3 and row["memory"] > 50e6


@pytest.mark.slow
@pytest.mark.skipif(PEERS is None, reason=PEERS_NOTE)
def test_spu_takes_the_same_step_near_and_far() -> None:
    assert PEERS is not None
    near, far = (run_spu(PEERS, 1, TINY, delay)[0] for delay in (0.0, 0.01))
    assert near["max_error"] < 1e-3 and far["max_error"] < 1e-3
    assert near["sent"] == far["sent"] > 0 and near["rounds"] > 4
