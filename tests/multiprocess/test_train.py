"""The whole job through the real programs: run, predict, and go on after a party was killed."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.statistics import PlainStatistics, ReleasedTables
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.reports.verify import verify
from secure_sccvfl.runs.model_files import load_model, save_model
from secure_sccvfl.runs.predict import ELSEWHERE
from secure_sccvfl.training.modes.base import mode_plan
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import train
from tests.multiprocess.programs import ROOT, SHORT, run_mpc
from tests.support.sessions import LONG

BORDER = 1e-3
"""A record whose logit is nearer to 0 may be decided either way in secret: ten times what fixed point is off."""
OPTIONS = {"refreshes": 0, "warmup": 20, "steps": 30, "lambdas": [8.0, 16.0]}


@pytest.fixture
def run(whole_run):
    return whole_run


def logits_of(run, rows):
    """Logits of the model in a run's folder, from all of its shares: what only a test may do."""
    parties = make_parties(pooled("german", 3))
    models = [load_model(run / f"party-{p.rank}" / "model", p.layout) for p in parties]
    encoded = np.hstack([m.encoder(p.inputs[rows]) for m, p in zip(models, parties, strict=True)])
    weight, bias = (combined([getattr(m, k) for m in models]) for k in ("weight", "bias"))
    return ((encoded @ weight + bias) / models[0].temperature)[:, 0]


def test_a_run_leaves_its_report_budget_logs_and_models(run):
    report = json.loads((run / "report.json").read_text())
    for key in (
        "engine",
        "mode",
        "parties",
        "dataset",
        "seed",
        "metrics",
        "baselines",
        "roles",
        "privacy",
        "releases",
    ):
        assert key in report
    assert (report["engine"], report["mode"], report["parties"]) == ("crypten", "sealed", 3)
    assert {
        "acc",
        "logloss",
        "fr_all",
        "fr_null_all",
        "net_all",
        "fr_kr_all",
        "fr_null_kr_all",
        "dp_gap",
        "eo_gap",
    } <= set(report["metrics"])
    assert {"majority", "logistic", "drop_m", "erm"} <= set(report["baselines"])
    for phase in ("alignment", "discovery and warm-up", "counterfactuals", "training", "evaluation", "total"):
        assert set(report["cost"][phase]) >= {"seconds", "rounds", "bytes"}
    data = pooled("german", 3)
    test = make_split(data, "iid", 0).test
    logits = logits_of(run, test)
    right = ((logits > 0) == data.label.values[test]).mean()
    assert report["metrics"]["acc"] == pytest.approx(right, abs=1e-6 + (np.abs(logits) < BORDER).mean())
    budget = json.loads((run / "privacy_budget.json").read_text())
    assert [r["name"] for r in budget["releases"]] == ["sketch-0", "sketch-1", "head", "head output"]
    assert 7.9 < budget["epsilon_rdp"] <= 8
    assert not re.search(r"/tmp|/home|/root|/work", (run / "report.json").read_text())


def test_the_releases_are_the_declared_ones_and_nothing_per_record(run):
    plan = mode_plan(RunOptions().schema(3), RunOptions.of(OPTIONS))
    rows = {561, 139, 300, 561 + 139, 1000}
    for rank in range(3):
        entries = read_chain(run / f"party-{rank}" / "releases.jsonl")
        assert {entry["release"] for entry in entries} <= set(plan.releases)
        assert not any(length in rows for entry in entries for length in entry["shape"])


def test_new_records_are_scored_under_mpc_for_one_receiver(run, tmp_path):
    data = pooled("german", 3)
    rows = make_split(data, "iid", 0).test[:40]
    source = ROOT / "secure_sccvfl" / "data" / "embedded" / "german.csv"
    with source.open() as file:
        table = {row["id"]: row for row in csv.DictReader(file)}
    with (tmp_path / "new.csv").open("w", newline="") as file:
        names = [name for name in next(iter(table.values())) if name not in ("y", "s")]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        table[str(data.ids[rows[0]])]["duration"] = "two years"
        table[str(data.ids[rows[1]])]["housing"] = "A159"
        writer.writerows(table[str(data.ids[row])] for row in rows)
    run_mpc("predict", "--model", run, "--records", "new.csv", "--out", "told", cwd=tmp_path)
    paths = [*tmp_path.glob("told/party-*/predictions.csv")]
    assert [path.parent.name for path in paths] == ["party-0"], "only the receiver has the predictions"
    with paths[0].open() as file:
        decisions = {row["id"]: row["decision"] for row in csv.DictReader(file)}
    expected = dict(zip(data.ids[rows].astype(str), logits_of(run, rows), strict=True))
    refused = [str(data.ids[row]) for row in rows[:2]]
    assert decisions.keys() == expected.keys() - set(refused), "bad records are refused, the rest are scored"
    assert all(decisions[name] == str(int(expected[name] > 0)) for name in decisions if abs(expected[name]) > BORDER)
    log = read_chain(tmp_path / "told" / "party-0" / "releases.jsonl")
    public = [("alignment", [0, 1, 2]), ("columns", [0, 1, 2])]
    opened = [("predictions", [0]), ("refused records", [0])]
    assert [(e["release"], e["receivers"]) for e in log] == [*public, *opened]
    why = {rank: (tmp_path / "told" / f"party-{rank}" / "refused.csv") for rank in range(3)}
    assert why[0].read_text().splitlines() == [
        "id,column,why",
        f"{refused[0]},duration,not a number",
        f"{refused[1]},,{ELSEWHERE}",
    ]
    assert why[1].read_text().splitlines() == ["id,column,why", f"{refused[1]},housing,not in the public dictionary"]
    assert not why[2].exists(), "who neither refused nor receives learns nothing"
    results = [json.loads((tmp_path / "told" / f"party-{rank}" / "result.json").read_text()) for rank in range(3)]
    assert [result["refused"] for result in results] == [2, 1, 0]


def test_a_share_from_another_run_or_a_changed_one_is_refused(run, tmp_path):
    other = tmp_path / "mixed"
    shutil.copytree(run, other)
    path = other / "party-1" / "model" / "model.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "temperature": facts["temperature"] * 2}))
    source = ROOT / "secure_sccvfl" / "data" / "embedded" / "german.csv"
    ran = run_mpc("predict", "--model", other, "--records", source, cwd=tmp_path, code=2)
    assert "party 1: the model in party-1/model was changed after training" in ran.stderr
    model = load_model(run / "party-1" / "model", make_parties(pooled("german", 3))[1].layout)
    save_model(replace(model, run=model.run[::-1]), other / "party-1" / "model")
    ran = run_mpc("predict", "--model", other, "--records", source, cwd=tmp_path, code=1)
    assert "the parts of the model differ: they are of different runs" in ran.stderr


@pytest.mark.chance(1e-9)  # with noise .53 of 561 labels are read; .76 would be told, ten standard errors more
@pytest.mark.parametrize(
    ("mode", "labels_leak"), [pytest.param("split", True, marks=pytest.mark.slow), ("dp", False)]
)
def test_other_modes_state_what_their_gradients_reveal(mode, labels_leak, tmp_path):
    run_mpc("--parties", "3", "--mode", mode, "--no-harness", "--out", "run", *SHORT, cwd=tmp_path)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["mode"] == mode and len(report["label_inference"]) == 3
    for row in report["label_inference"]:
        assert (row["low"] > 0.95) if labels_leak else (row["low"] <= row["chance"] + 0.02)
    names = {"split": "gradient", "dp": "noisy gradient"}
    entries = read_chain(tmp_path / "run" / "party-0" / "releases.jsonl")
    for rank in range(3):
        shown = [entry for entry in entries if entry["release"] == f"{names[mode]} {rank}"]
        assert shown and all(entry["receivers"] == [rank] for entry in shown)
    assert report["privacy"]["epsilon_rdp"] <= 8
    assert not any(verify(tmp_path / "run").values())


MIDDLE = "training (5 of 9)"
"""A line of a party's log that comes in every run: the first lambda, after its first checkpoint."""


TRIES = 10
"""The moment lasts some tenths of a second: on a busy machine a run may be past it before it is seen."""


def kill_and_resume(tmp_path, moment, *options):
    """Kill party 1 when its log says this, see that all stop, and resume."""
    if not any(killed(tmp_path, moment, *options) for _ in range(TRIES)):
        raise AssertionError(f"no run of {TRIES} was killed at {moment!r}")
    assert not (tmp_path / "run" / "report.json").exists()
    refuse_another_seed(tmp_path / "run")
    run_mpc("--resume", "run", "--no-harness", cwd=tmp_path)


def killed(tmp_path, moment, *options):
    """Start a run and kill party 1 at this moment; False if the session ended before."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    command = [sys.executable, str(ROOT / "launch" / "run_mpc.py"), "--parties", "3", "--out", "run", *SHORT]
    command += ["--dataset", "german", "--no-harness", "--seed", "3", *options]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    log = tmp_path / "run" / "logs" / "party-1.log"
    end = time.monotonic() + LONG
    while process.poll() is None and time.monotonic() < end and not (log.exists() and moment in log.read_text()):
        time.sleep(0.02)
    pids = []
    if process.poll() is None and time.monotonic() < end:
        pids = [pid for pid in _processes_in(tmp_path) if _name_of(pid) == "party 1"]
    if len(pids) != 1 or (tmp_path / "run" / "party-1" / "result.json").exists():
        process.kill()
        process.communicate()
        return False
    os.kill(pids[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=LONG)
    if process.returncode == 0 or (tmp_path / "run" / "party-1" / "result.json").exists():
        return False
    assert "--resume" in errors
    return True


def _name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has just ended
        return ""


def refuse_another_seed(run):
    """By hand, in the session file: one line, nothing opened, nothing charged."""
    session_text, ledgers = (
        (run / "session.toml").read_text(),
        [path.read_bytes() for path in run.glob("party-*/ledger.*")],
    )
    assert '"seed" = 3' in session_text
    (run / "session.toml").write_text(session_text.replace('"seed" = 3', '"seed" = 4'))
    refused = run_mpc("--resume", "run", "--no-harness", cwd=run.parent, code=2)
    assert "cannot resume: the run began with seed 3, not 4" in refused.stderr.splitlines()[-1]
    assert [path.read_bytes() for path in run.glob("party-*/ledger.*")] == ledgers
    opened = [log for log in run.glob("party-*/releases-1.jsonl") if log.read_text()]
    assert not opened
    for log in run.glob("party-*/releases-1.jsonl"):
        log.unlink()
    (run / "session.toml").write_text(session_text)


@pytest.mark.chance(1e-9)
def test_a_killed_party_stops_all_and_the_run_continues_from_the_checkpoint(tmp_path):
    """Kill in the middle of training; after resuming the run is whole and each release was paid for once.

    test_hosts.py kills a run with a private head; test_dp_mode.py and test_split_training.py stop other modes.

    The model is not private, so that it is known what it must be. There is one lambda, so that its moment comes
    whatever the noise is. Logits of two runs differ by .005: sums of thousands of independent roundings, so .05 is
    far out of their reach.
    """
    kill_and_resume(tmp_path, MIDDLE, "--lambdas", "8", "--no-private-model")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    budget = json.loads((tmp_path / "run" / "privacy_budget.json").read_text())
    assert [r["name"] for r in budget["releases"]] == ["sketch-0", "sketch-1"], "each is charged once"
    audit = read_chain(tmp_path / "run" / "party-0" / "audit-1.jsonl")
    assert "resumed" in {entry["event"] for entry in audit}
    # The same model as a run that nobody disturbed: the plaintext engine on what was released.
    data = pooled("german", 3)
    split, parties = make_split(data, "iid", 3), make_parties(data)
    models = [load_model(tmp_path / "run" / f"party-{p.rank}" / "model", p.layout) for p in parties]
    statistics = PlainStatistics(ReleasedTables.of([m.noisy_tables for m in models]))
    options = RunOptions.of({**OPTIONS, "private_model": False})
    roles, config = Roles(report["roles"]), replace(options.train_config(), lambdas=(8.0,))
    model = train(PlainEngine(), statistics, data, split, config, 3, roles=roles)
    expected = model.logits([p.take(split.test) for p in parties])[:, 0]
    logits = logits_of(tmp_path / "run", split.test)
    # Two temperatures may be as good as equal, and each engine may take another one: compare what comes before it.
    assert np.abs(logits * report["temperature"] - expected * model.temperature).max() <= 0.05
    assert not any(verify(tmp_path / "run").values()), "parties may have stopped a line apart, and still it fits"


def _processes_in(folder):
    """Processes whose working folder this is."""
    ids = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")) == folder:
                ids.append(int(entry.name))
    return ids
