"""A finished run: what an audit finds in it, and what it refuses to do."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.protocols.records.chain import HashChain, read_chain
from secure_sccvfl.reports.results import read
from tests.multiprocess.audited import problems
from tests.multiprocess.programs import SHORT


def test_a_run_as_it_ends_can_be_trusted(whole_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(whole_run) == []
    seal = read_chain(whole_run / "audit.jsonl")[-1]["hash"]
    assert main(["audit", "verify", str(whole_run), "--seal", seal[:16]]) == 0
    assert "can be trusted" in capsys.readouterr().out
    assert main(["audit", "verify", str(whole_run), "--seal", "0" * 64]) == 3
    assert "another seal" in capsys.readouterr().out
    assert main(["audit", "log", str(whole_run)]) == 0 and seal in capsys.readouterr().out


def test_the_report_counts_crypten_operations_by_phase(whole_run: Path) -> None:
    """Fusion, products, sigmoid, HSIC, aggregation and comparison."""
    report = read(whole_run)
    called = report.crypten_operations
    assert {"cat", "group_sums", "matmul", "sigmoid", "square", "stack", "sum"} <= called[
        "discovery and warm-up"
    ].keys()
    if all(
        terms.size is not None for terms in report.validity.values()
    ):  # summed if two parties or more have mediators
        assert {"stack", "sum"} <= called["counterfactuals"].keys()
    assert {"cat", "lt", "matmul"} <= called["training"].keys() & called["evaluation"].keys()
    assert all(count > 0 for phase in called.values() for count in phase.values())


LOGS = (
    "party-1/releases.jsonl",
    "party-0/audit.jsonl",
    "party-1/ledger.jsonl",
    "evaluation/party-0/releases.jsonl",
    "examples/party-1/releases.jsonl",
    "audit.jsonl",
)
Damage = Callable[[list[str]], list[str]]
DAMAGES: dict[str, Damage] = {
    "changed": lambda lines: [*lines[:-1], re.sub(r"\d", lambda m: str(9 - int(m[0])), lines[-1], count=1)],
    "dropped": lambda lines: lines[:-1],
    "swapped": lambda lines: [*lines[:-2], *reversed(lines[-2:])] if len(lines) > 1 else [lines[0], lines[0]],
    "added": lambda lines: [*lines, lines[-1]],
}


def test_a_damaged_log_is_found(run: Path) -> None:
    for log, (kind, damage) in itertools.product(LOGS, DAMAGES.items()):
        text = (run / log).read_text()
        damaged = damage(text.splitlines())
        assert damaged != text.splitlines()
        (run / log).write_text("\n".join(damaged) + "\n")
        # Other logs are found damaged without the run's log, too, and so by all checks.
        checks = ("files",) if log == "audit.jsonl" else ("logs", "results", "report", "budget")
        assert any(problems(run, check) for check in checks), (log, kind)
        (run / log).write_text(text)
    assert problems(run) == []


def test_a_line_that_continues_the_chain_is_found_too(run: Path) -> None:
    """Whoever knows how hashes are made can add a line to one party's log, not to what the others have."""
    for name in ("releases.jsonl", "audit.jsonl"):
        HashChain.reopened(run / "party-0" / name).append({"event": "roles", "release": "z", "receivers": [0]})
    assert any("differs" in line for line in problems(run, "logs"))
    assert any("was changed after" in line for line in problems(run, "files"))


def test_a_release_that_was_never_charged_is_found(run: Path) -> None:
    """All parties have it in their logs, so nothing but the ledger tells."""
    line = {"release": "z", "receivers": [0], "shape": [1], "purpose": "test", "event": "sketch of more"}
    for log in run.glob("party-*/releases.jsonl"):
        HashChain.reopened(log).append(line)
    assert problems(run, "logs") == []
    assert problems(run, "budget") == ["release 'z' was never charged"]


def test_a_charge_of_another_run_or_a_charge_twice_pays_for_nothing(run: Path) -> None:
    """In the ledger there is a charge of the same name; it is another run's, or has paid already."""
    entries = read_chain(run / "party-0" / "releases.jsonl")
    paid = next(entry for entry in entries if entry["event"] == "sketch-0")
    line = {k: v for k, v in paid.items() if k not in ("index", "previous", "hash")}
    for log in run.glob("party-*/releases.jsonl"):
        HashChain.reopened(log).extend([{**line, "charge": "another sketch-0"}, {**line, "charge": None}, line])
    assert problems(run, "logs") == []
    name = repr(paid["release"])
    unpaid, twice = f"release {name} was never charged", f"release {name} was made twice for one charge"
    assert problems(run, "budget") == [unpaid, unpaid, twice]


def test_a_changed_or_torn_model_share_is_found(run: Path) -> None:
    path = run / "party-1" / "model" / "model.npz"
    content = path.read_bytes()
    middle = len(content) // 2
    for torn in (content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :], b""):
        path.write_bytes(torn)
        assert any("party-1/model" in line for line in problems(run, "models"))
    path.write_bytes(content)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["weight"][0] += 1
    np.savez(path, **arrays)
    assert any("changed after training" in line for line in problems(run, "models"))


def test_a_torn_report_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run's log says that it was finished, so this is a damaged run, not the folder of none."""
    (run / "report.json").write_text("{")
    assert main(["audit", "verify", str(run)]) == 3
    assert "can NOT be trusted: report.json is missing, or cannot be read" in capsys.readouterr().out


def test_a_share_of_another_run_is_found(run: Path) -> None:
    """A share whose own digest is right, but which nobody named."""
    folder = run / "party-1" / "model"
    facts = json.loads((folder / "model.json").read_text())
    facts.pop("digest")
    facts["temperature"] = 2.0
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    with np.load(folder / "model.npz") as file:
        for name in sorted(file.files):
            array = np.ascontiguousarray(file[name])
            digest.update(f"{name}{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
    (folder / "model.json").write_text(json.dumps({**facts, "digest": digest.hexdigest()}))
    lines = problems(run, "models")
    assert len(lines) == 3 and all("is not the one that" in line for line in lines)


CHANGES = (
    ("report.json", '"acc": 0.', '"acc": 0.9', "report"),
    ("report.json", '"role_changes": [', '"role_changes": ["a: N -> M",', "report"),
    ("report.json", '"epsilon_rdp": 7', '"epsilon_rdp": 1', "report"),
    ("privacy_budget.json", '"epsilon_rdp": 7', '"epsilon_rdp": 1', "budget"),
    ("policy_card.json", '"role": "M"', '"role": "N"', "policy"),
    ("party-1/result.json", '"lambda": ', '"lambda": 1', "results"),
    ("evaluation/party-1/result.json", '"acc": 0.', '"acc": 0.9', "results"),
    ("report.html", "Who learned what", "Nobody learned a thing", "files"),
)


def test_a_file_that_does_not_fit_is_found(run: Path) -> None:
    for file, old, new, check in CHANGES:
        text = (run / file).read_text()
        assert old in text
        (run / file).write_text(text.replace(old, new, 1).replace("9,]", "9]").replace('",]', '"]'))
        assert problems(run, check), (file, old)
        (run / file).write_text(text)
    assert problems(run) == []


def test_a_missing_and_an_unknown_file_are_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "party-0" / "releases.jsonl", run / "party-0" / "releases-1.jsonl")
    (run / "party-1" / "checkpoints").rename(run / "party-1" / "old")
    lines = problems(run)
    assert any("the same releases logs" in line for line in lines)
    assert any("is missing" in line for line in lines) and any("in no record" in line for line in lines)
    assert main(["audit", "verify", str(run), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["trusted"] is False


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr().err
    assert len(shown.strip().splitlines()) == 1 and "Traceback" not in shown and "unexpected" not in shown, shown
    return shown


MISTAKES = (
    ("model", "gone", "no model.json in party-0/model: train first, or name the run"),
    ("model", "swapped", "this part of the model is of party 1 of 3: use the own one"),
    ("dataset", "heart", "the model was trained for another description of the data"),
    ("records", "gone.csv", "no file gone.csv with records"),
    ("records", "short.csv", "bank: duration: 'short.csv' has no column 'duration'"),
    ("receiver", 7, "the receiver of predictions must be a party: 0 ("),
)


def test_a_prediction_that_cannot_be_made(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At one party, before it meets the others."""
    here = run.parent
    shutil.copytree(run / "party-1", here / "swapped" / "party-0")
    records = (run / "examples" / "records.csv").read_text()
    (here / "short.csv").write_text(records.replace("duration", "length", 1))
    head = 'parties = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]\njob = "predict"\n[options]\n'
    for number, (option, value, message) in enumerate(MISTAKES):
        options = {"dataset": "german", "model": "run", "records": "run/examples/records.csv", option: value}
        options |= {name: str(here / str(options[name])) for name in ("model", "records")}
        config, out = here / f"{number}.toml", here / f"out-{number}"
        config.write_text(head + "\n".join(f"{name} = {json.dumps(text)}" for name, text in options.items()))
        assert main(["party", "--rank", "0", "--config", str(config), "--out", str(out)]) == 2
        assert message in one_line(capsys)


def test_a_budget_that_is_spent(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        ledger_folder = run.parent / "ledgers" / f"party-{rank}"
        shutil.copytree(run / f"party-{rank}" / "sets", ledger_folder / "sets")
        for file in [*(run / f"party-{rank}").glob("ledger.jsonl*"), run / f"party-{rank}" / "records.key"]:
            shutil.copy(file, ledger_folder)
    again = ["--dataset", "german", "--parties", "3", *SHORT, "--ledger", str(run.parent / "ledgers")]
    again += ["--out", str(run.parent / "again")]
    assert main(["run", *again]) == 1
    line = capsys.readouterr().err.splitlines()[-1]  # after a line for each phase
    assert "sketch-0: refused by the ledger of party 0; epsilon would be" in line
    assert "release nothing more about these records" in line
