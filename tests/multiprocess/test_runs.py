"""`run_local` and `Run` with real processes."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import secure_sccvfl as scc
from secure_sccvfl.audit.finished_run import FinishedRun
from secure_sccvfl.protocols.errors import ProtocolError
from tests.support.sessions import LONG

SHORT = {"refreshes": 0, "warmup": 20, "steps": 30, "lambdas": [8.0]}
LITTLE_NOISE = {"evaluation_epsilon": 8.0}
"""With it 77 test records are eight deviations above too few, which would end a run."""


@pytest.fixture(scope="module")
def frames_run(tmp_path_factory: pytest.TempPathFactory) -> scc.Run:
    """A run on DataFrames with a declared dictionary."""
    heart = scc.load("heart")
    features = {
        "thalach": {"kind": "number", "low": 60, "high": 220},
        "chol": {"kind": "number", "low": 100, "high": 600},
        "age": {"kind": "number", "low": 25, "high": 80},
        "cp": {"kind": "category", "categories": ["asymptomatic", "atypical ang", "non-anginal", "typical ang"]},
        "fbs": {"kind": "category", "categories": ["0", "1"]},
    }
    label, protected = ("hospital", "y", ["0", "1"]), ("clinic", "s", ["0", "1"])
    data = scc.load("own heart", frames=heart.frames, label=label, protected=protected, features=features)
    steps: list[str] = []
    folder = tmp_path_factory.mktemp("own") / "runs" / "a"
    run = scc.run_local(
        data, folder=folder, progress=lambda step, number, total: steps.append(step), **SHORT, **LITTLE_NOISE
    )
    assert "counterfactuals" in steps
    return run


def test_frames_are_private_files_next_to_the_run(frames_run: scc.Run) -> None:
    runs = frames_run.folder.parent
    assert {path.name for path in runs.iterdir()} == {"a", "a-data", "sccvfl-ledgers"}
    files = sorted((runs / "a-data").iterdir())
    assert [path.name for path in files] == ["data.toml", "party-0.csv", "party-1.csv", "party-2.csv"]
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    assert all(path.name not in (frames_run.folder / "audit.jsonl").read_text() for path in files)


def test_a_run_reports_its_figures_and_its_price(frames_run: scc.Run) -> None:
    assert {"acc", "fr_own", "positive_rate"} <= set(
        frames_run.metrics.index
    ) and "fr_null_own" in frames_run.metrics.index
    assert list(frames_run.baselines.columns) == ["majority"], "a model without mediators would be a second release"
    assert frames_run.baselines.loc["acc"].between(0, 1).all()
    assert (
        (frames_run.metrics.low <= frames_run.metrics.value) & (frames_run.metrics.value <= frames_run.metrics.high)
    ).all()
    assert scc.evaluate(frames_run).equals(frames_run.metrics)
    costs = frames_run.privacy()
    assert costs["training"]["epsilon_rdp"] <= 8 and costs["evaluation"]["epsilon_rdp"] <= 8
    assert frames_run.page.exists() and frames_run.report.dataset == "own heart" and "own heart" in repr(frames_run)
    assert "files" in frames_run.verify()


def test_what_frames_have_spent_is_remembered(frames_run: scc.Run, tmp_path: Path) -> None:
    path = frames_run.folder.parent / "a-data" / "data.toml"
    ledger = str(frames_run.folder.parent / "sccvfl-ledgers")
    with pytest.raises(ProtocolError, match="refused by the ledger"):
        scc.run_local(path, folder=tmp_path / "again", ledger=ledger, **SHORT)


def test_a_changed_run_is_not_trusted(frames_run: scc.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(frames_run.folder, copy)
    text = (copy / "report.json").read_text()
    (copy / "report.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(ProtocolError, match=r"cannot be trusted: .*report\.json"):
        scc.Run.open(copy).verify()
    with pytest.raises(ProtocolError, match="another seal"):
        frames_run.verify(seal="0" * 12)


def test_predictions_under_mpc_are_those_of_the_joined_model(run: Path) -> None:
    """The shares of all parties, put together by the harness, give the same probabilities.

    On a copy of the run: predictions write to its logs, and lock them.
    """
    opened, finished = scc.Run.open(run), FinishedRun.load(run)
    frame = scc.load("german").frame.sample(12, random_state=4)
    rows = frame.index.to_numpy()
    inputs = np.hstack([party.inputs[rows] for party in finished.parties])
    logits = finished.white_box()(torch.tensor(inputs)).numpy()[:, 0]
    chances = opened.predict_proba(frame)
    assert list(chances.index) == list(frame["id"]) and list(chances.columns) == ["0", "1"]
    assert np.abs(chances["1"].to_numpy() - 1 / (1 + np.exp(-logits))).max() < 1e-3
    numbered = opened.predict(frame.drop(columns="id"))
    assert list(numbered.index) == list(frame.index)
    assert (numbered.to_numpy() == np.where(logits > 0, "1", "0")).all()
    changed = frame.copy()
    changed.iloc[0, changed.columns.get_loc("duration")] = 1 + int(changed["duration"].iloc[0]) % 60
    with pytest.warns(
        scc.data.dataset.DataWarning, match=f"{frame['id'].iloc[0]}: was decided before with other values"
    ):
        again = opened.predict_proba(changed)
    assert again.iloc[0].isna().all() and again.iloc[1:].equals(chances.iloc[1:]), "each person is answered once"
    assert {"majority", "erm"} <= set(opened.baselines.columns) and "majority" in opened.metrics
    assert "files" in opened.verify()


def test_attacks_are_made_once_and_say_why_they_fail(frames_run: scc.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(frames_run.folder, copy)
    (copy / "dealer" / "transcript").mkdir(parents=True)
    run = scc.Run.open(copy)
    with pytest.raises(ProtocolError, match="an evaluation needs a training run on benchmark"):
        run.attack()
    (copy / "security.json").write_text(json.dumps({"ok": True}))
    assert run.attack() == {"ok": True}


def printed_by(code: str, folder: Path, *, stdin: bool) -> str:
    """What Python prints for code that has no guard (`if __name__ == "__main__"`), as people write it."""
    (folder / "script.py").write_text(code)
    command, given = [sys.executable, "-" if stdin else "script.py"], code if stdin else None
    ran = subprocess.run(command, cwd=folder, input=given, capture_output=True, text=True, timeout=LONG)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_a_script_is_not_run_again_by_the_processes_that_it_starts(tmp_path: Path) -> None:
    """The whole of a run on public data, with a card that does not decide every column."""
    lines = ["import secure_sccvfl as scc", "from secure_sccvfl.runs.local import whole_run", "print('once')"]
    lines += ["whole_run.SEEDS = 1", f"scc.run_local('heart', 2, 'a', card='shipped', **{SHORT})"]
    assert printed_by("\n".join(lines), tmp_path, stdin=False) == "once\n"
    assert (tmp_path / "a" / "report.html").exists()
    assert scc.Run.open(tmp_path / "a").report.frontier is not None, "further seeds ran in their own processes"


def test_further_seeds_run_where_the_code_comes_from_no_file(tmp_path: Path) -> None:
    """What such a process computes does not matter: another function stands for a training."""
    code = """
from secure_sccvfl.evaluation import frontier
from secure_sccvfl.runs.local.whole_run import plaintext_seeds
from secure_sccvfl.training.modes.options import RunOptions

print("once")
frontier.run_frontier_seed = repr
with plaintext_seeds(RunOptions.of({"dataset": "heart", "pooled": True}), 3, range(1)) as waiting:
    print(waiting[0].result()[:12])
"""
    assert printed_by(code, tmp_path, stdin=True) == "once\nFrontierSeed\n"
