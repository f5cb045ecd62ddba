"""A finished run as its readers have it: the page, the policy card, the log, and what an audit finds."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from accounting.ledger import read_ledger
from launch.cli import main
from protocols.records.chain import HashChain, read_chain
from secure_sccvfl.policy.card import read_card
from secure_sccvfl.report.attacks import attack_panels, attack_story, missed
from secure_sccvfl.report.page import render
from secure_sccvfl.report.policy_card import write_card
from secure_sccvfl.report.results import find_warnings
from secure_sccvfl.report.run_log import record
from secure_sccvfl.report.verify import verify
from tests.multiprocess.programs import SHORT
from tests.support.harness import LONG
from tests.unit.report.literal import frontier

SECTIONS = (
    "warnings",
    "metrics",
    "roles",
    "examples",
    "privacy",
    "attacks",
    "learned",
    "training",
    "cost",
    "trust",
)
BENCHMARK = ("representations", "people")
"""Sections that only public data have."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(whole_run, tmp_path / "run")
    return tmp_path / "run"


def problems(run: Path, *checks: str) -> list[str]:
    found = verify(run)
    return [line for name, lines in found.items() for line in lines if not checks or name in checks]


def test_a_run_as_it_ends_can_be_trusted(whole_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problems(whole_run) == []
    seal = read_chain(whole_run / "audit.jsonl")[-1]["hash"]
    assert main(["audit", "verify", str(whole_run), "--seal", seal[:16]]) == 0
    assert "can be trusted" in capsys.readouterr().out
    assert main(["audit", "verify", str(whole_run), "--seal", "0" * 64]) == 3
    assert "another seal" in capsys.readouterr().out
    assert main(["audit", "log", str(whole_run)]) == 0 and seal in capsys.readouterr().out


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


@pytest.mark.parametrize("log", LOGS)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_log_is_found(run: Path, log: str, kind: str) -> None:
    lines = (run / log).read_text().splitlines()
    damaged = DAMAGES[kind](lines)
    assert damaged != lines
    (run / log).write_text("\n".join(damaged) + "\n")
    assert problems(run)
    if log != "audit.jsonl":  # found without the run's own log too, by the other logs alone
        assert problems(run, "logs", "results", "report", "budget")


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


def test_a_changed_model_share_is_found(run: Path) -> None:
    path = run / "party-1" / "model" / "model.npz"
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["weight"][0] += 1
    np.savez(path, **arrays)
    assert any("changed after training" in line for line in problems(run, "models"))


@pytest.mark.parametrize("damage", ["one bit", "emptied"])
def test_a_torn_model_share_is_found(run: Path, damage: str) -> None:
    path = run / "party-1" / "model" / "model.npz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content) if damage == "one bit" else b"")
    assert any("party-1/model" in line for line in problems(run, "models"))


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
    found = problems(run, "models")
    assert len(found) == 3 and all("is not the one that" in line for line in found)


@pytest.mark.parametrize(
    ("file", "old", "new", "check"),
    [
        ("report.json", '"acc": 0.', '"acc": 0.9', "report"),
        ("report.json", '"role_changes": [', '"role_changes": ["a: N -> M",', "report"),
        ("report.json", '"epsilon_rdp": 7', '"epsilon_rdp": 1', "report"),
        ("privacy_budget.json", '"epsilon_rdp": 7', '"epsilon_rdp": 1', "budget"),
        ("policy_card.json", '"role": "M"', '"role": "N"', "policy"),
        ("party-1/result.json", '"lambda": ', '"lambda": 1', "results"),
        ("evaluation/party-1/result.json", '"acc": 0.', '"acc": 0.9', "results"),
        ("report.html", "Who learned what", "Nobody learned a thing", "files"),
    ],
)
def test_a_file_that_does_not_fit_is_found(run: Path, file: str, old: str, new: str, check: str) -> None:
    text = (run / file).read_text()
    assert old in text
    (run / file).write_text(text.replace(old, new, 1).replace("9,]", "9]").replace('",]', '"]'))
    assert problems(run, check)


def test_a_missing_and_an_unknown_file_are_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "party-0" / "releases.jsonl", run / "party-0" / "releases-1.jsonl")
    (run / "party-1" / "checkpoints").rename(run / "party-1" / "old")
    found = problems(run)
    assert any("the same releases logs" in line for line in found)
    assert any("is missing" in line for line in found) and any("in no record" in line for line in found)
    assert main(["audit", "verify", str(run), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["trusted"] is False


def test_appeal_review_and_diff(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    card = run / "policy_card.json"
    shutil.copy(card, run.parent / "old.json")
    feature, decision = next((k, d) for k, d in read_card(card).decisions.items() if d.role == "M")
    assert decision.reason and "score" in decision.words_of_evidence and "epsilon" in decision.words_of_evidence
    said = ["--who", "an applicant", "--text", "not my choice", "--wants", "N"]
    assert main(["policy", "appeal", str(run), "--feature", feature, *said]) == 0
    assert f"appeal 1 about {feature} is open" in capsys.readouterr().err
    assert f"appeal 1 about {feature} is open" in unescape((run / "report.html").read_text())
    answer = ["--who", "the board", "--text", "agreed: no ground for a decision", "--due", "2020-01-31"]
    heard = ["--role", "N", "--evidence", "stakeholder: hearing of applicants", "--relation", "none that is known"]
    assert main(["policy", "review", str(run), "--appeal", "1", *heard, *answer]) == 0
    page = unescape((run / "report.html").read_text())
    assert (
        "the review was due on 2020-01-31" in page
        and "appeal 1 about" not in page
        and "hearing of applicants" in page
    )
    shown = capsys.readouterr()
    assert "the review was due on 2020-01-31" in shown.err and "is open" not in shown.err
    assert main(["policy", "diff", str(run.parent / "old.json"), str(run), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["changed"] == {feature: ["M", "N"]} and told["to"] == "2"
    assert [e["event"] for e in read_chain(run / "audit.jsonl")] == ["finished", "appeal", "review"]
    assert problems(run) == []
    assert main(["policy", "approve", str(run), "--as", "bank"]) == 0
    capsys.readouterr()
    assert main(["policy", "verify", str(run)]) == 0 and "holds: bank" in capsys.readouterr().out
    assert problems(run) == [] and read_chain(run / "audit.jsonl")[-1]["event"] == "approve"
    card.write_text(card.read_text().replace("hearing of applicants", "hearing of nobody"))
    assert main(["policy", "verify", str(run)]) == 3 and "BROKEN: bank" in capsys.readouterr().out
    assert problems(run, "files") == ["policy_card.json was changed after it was recorded"]
    assert main(["policy", "review", str(run), "--appeal", "1", *answer]) == 2
    assert "no open appeal '1'" in capsys.readouterr().err


def test_a_review_runs_discovery_again_and_the_run_still_fits_together(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In secret, with the run's settings; what it proposes is beside what was proposed before."""
    said = ["--who", "the board", "--text", "as before"]
    assert main(["policy", "review", str(run), "--because", "regular", "--dataset", "german", *said]) == 0
    card = read_card(run / "policy_card.json")
    event = card.events[-1]
    assert event["because"] == "regular" and "reviews/1: 1000 records of german, epsilon " in event["discovery"]
    result = json.loads((run / "reviews" / "1" / "party-0" / "result.json").read_text())
    before = json.loads((run / "report.json").read_text())
    moved = {k for k, v in result["proposed"].items() if before["proposed"][k] != v}
    assert set(event["deltas"]) == moved
    for name, delta in event["deltas"].items():
        assert delta["proposed"] == [before["proposed"][name], result["proposed"][name]]
        assert delta["score"] == [before["scores"][name], result["scores"][name]]
    assert {k: d.proposed for k, d in card.decisions.items()} == result["proposed"]
    assert {k: d.role for k, d in card.decisions.items()} == before["roles"], "people decide"
    charged = [e for e in read_chain(run / "reviews" / "1" / "party-0" / "releases.jsonl") if e["event"] is not None]
    paid = read_ledger(run / "reviews" / "1" / "party-0" / "ledger.jsonl")[0]
    assert charged and len(paid) > 1, "a rerun is charged"
    assert problems(run) == []
    (run / "reviews" / "1" / "party-1" / "result.json").write_text("{}")
    assert problems(run, "files") == ["reviews/1/party-1/result.json was changed after it was recorded"]
    capsys.readouterr()
    assert main(["policy", "review", str(run), "--discovery", str(run / "reviews" / "1"), *said]) == 0
    assert read_card(run / "policy_card.json").events[-1]["deltas"] == {}


def test_the_record_of_a_decision_names_card_mask_and_approval(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the training; or of the run's card if that was approved since. A card with other roles is refused."""
    told = json.loads((run / "report.json").read_text())
    with (run / "examples" / "party-0" / "predictions.csv").open() as file:
        assert {(r["card"], r["mask"], r["approved"]) for r in csv.DictReader(file)} == {("none", told["mask"], "no")}
    assert main(["policy", "approve", str(run), "--as", "bank"]) == 0
    records, card = str(run / "examples" / "records.csv"), run / "policy_card.json"
    given = ["predict", "--model", str(run), "--records", records, "--card", str(card), "--json"]
    assert main([*given, "--out", str(run.parent / "told")]) == 0
    with (run.parent / "told" / "party-0" / "predictions.csv").open() as file:
        (named,) = {(r["card"], r["mask"], r["approved"]) for r in csv.DictReader(file)}
    assert named == ("1", told["mask"], read_card(card).approved_on) and read_card(card).approved_on
    text = card.read_text().replace('"role": "M"', '"role": "P"', 1)
    card.write_text(text.replace('"evidence": [', '"evidence": ["x",'))
    capsys.readouterr()
    assert main([*given, "--out", str(run.parent / "other")]) == 2
    assert "the card has other roles than the model" in capsys.readouterr().out


def test_status_finds_what_makes_a_review_due(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "status", str(run), "--dataset", "german", "--party", "0"]) == 0
    shown = capsys.readouterr().out
    assert "no review is due" in shown and "no record that the old one does not have" in shown
    assert main(["policy", "status", str(run), "--dataset", "heart", "--json"]) == 0
    due = json.loads(capsys.readouterr().out)["due"]
    assert "schema: new column chol" in due and "schema: column housing is gone" in due
    assert main(["policy", "appeal", str(run), "--feature", "housing", "--who", "me", "--text", "no"]) == 0
    capsys.readouterr()
    assert main(["policy", "status", str(run)]) == 0
    assert "appeal: 1 about housing is open" in capsys.readouterr().out


def test_a_card_of_an_earlier_run_may_have_changed_roles(run: Path) -> None:
    """Reviews before a run are no changes since it."""
    card = read_card(run / "policy_card.json")
    name, decision = next((k, d) for k, d in card.decisions.items() if d.role == "M")
    event = {"kind": "review", "number": "1", "date": "2026-01-31", "who": "x", "text": "y"}
    made = replace(card, events=({**event, "feature": name, "change": f"N -> {decision.role}"},))
    for follows, fits in (({"version": "1", "events": "1"}, True), ({}, False)):
        write_card(run, replace(made, follows=follows))
        assert (problems(run, "policy") == []) is fits


def test_leakage_goes_to_the_log_and_the_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = {"chance": 0.5, "control": 0.52, "gain": 0.01, "gain_low": -0.02, "gain_high": 0.04}
    rows = [
        {"attack": "aia", "view": view, "strength": s, "rate": 0.5, "low": 0.45, "high": 0.55, **base}
        for view in ("dealer", "party-1 <alone>")
        for s in (1, 2)
    ]
    (run / "security.json").write_text(json.dumps({"rows": rows}))
    assert any("security.json is in no record" in line for line in problems(run, "files"))
    record(run, "leakage", {"highest": 0.5}, [run / "security.json"])
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert (
        "Guessing the protected attribute" in page and "party-1 &lt;alone&gt;" in page and "Not run yet" not in page
    )
    assert problems(run) == []
    assert main(["report", str(run), "--party", "1"]) == 0
    assert (run / "party-1" / "report.html").exists() and problems(run) == []


def test_attacks_in_plain_words() -> None:
    """The outcome first, who the attacker is, what no secrecy would cost; a leak is told."""
    base = {"attack": "aia", "strength": None, "low": 0.45, "high": 0.7, "chance": 0.5, "control": 0.5, "gain": 0.0}
    ours = [
        {**base, "view": view, "rate": 0.5, "promise": "no gain", "leak": False}
        for view in ("label holder bank", "parties bank+bureau", "network")
    ]
    server = {
        **base,
        "view": "plaintext server: fused z of the paper",
        "rate": 0.66,
        "promise": "shown",
        "leak": None,
    }
    audit = {"samples": 800, "epsilon_low": 1.5, "epsilon_high": 3.0, "holds": True}
    security = {"rows": [*ours, server], "dp_audit": audit}
    first, second, third = attack_story(security)
    assert first.startswith("No leak was found: in 3 comparisons") and "rate of 66.0 %" in second
    assert "at least 1.50; 3.00 is promised as the most. That promise holds." in third
    audits = {"sketch": audit, "risk gains": {**audit, "holds": False}}
    *_, held, broken = attack_story({"rows": ours, "dp_audits": audits})
    assert "(sketch)" in held and "(risk gains)" in broken and broken.endswith("The promise is broken.")
    chart = attack_panels(security)[0]["charts"][0][2]
    for name in ("bank, which has the labels", "bank and bureau together", "no secrecy: a server as in the paper"):
        assert f">{name}</text>" in chart
    ours[1]["leak"] = True
    assert attack_story(security)[0].startswith("Something leaked that should not have: bank and bureau together")
    check = {"kind": "target", "value": 0.56, "limit": 0.55}
    checks = [
        {"check": f"aia: {view} tells nothing", "holds": view == "dealer", **check} for view in ("dealer", "network")
    ]
    (line,) = missed({"checks": checks})
    assert "attribute: no gain for who reads the network: 0.560 was found, at most 0.550" in line
    assert attack_panels(None) == [] and attack_story(None) == [] and missed(None) == []


def test_warnings_in_plain_words(whole_run: Path) -> None:
    report = json.loads((whole_run / "report.json").read_text())
    report["metrics"] |= {"acc": 0.69, "positive_rate": 0.001}
    report["baselines"] = {"majority": {"acc": 0.7}, "drop_m": {"acc": 0.9}}
    report["judges"] = {name: {"failed": []} for name in report["judges"]}
    report.pop("frontier", None)
    seen = {"rate": 1.0, "low": 0.99, "high": 1.0, "chance": 0.7}
    report["label_inference"] = [{"party": rank, **seen} for rank in range(3)]
    majority, dropped, same, *labels = find_warnings(report)
    assert "(69.0 % right against 70.0 %, which its 95 % interval, 63.6 % to 74.0 %, includes)" in majority
    assert "(69.0 % right against 90.0 %)" in dropped and "positive: 0.1 %" in same
    assert [line.split(",")[1].split()[0] for line in labels] == ["employer", "bureau"]  # bank has the labels


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    shown = capsys.readouterr().err
    assert len(shown.strip().splitlines()) == 1 and "Traceback" not in shown and "unexpected" not in shown, shown
    return shown


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("model", "gone", "no model.json in party-0/model: train first, or name the run"),
        ("model", "swapped", "this part of the model is of party 1 of 3: use the own one"),
        ("dataset", "heart", "the model was trained for another description of the data"),
        ("records", "gone.csv", "no file gone.csv with records"),
        ("records", "short.csv", "bank: duration: 'short.csv' has no column 'duration'"),
        ("records", "wild.csv", "values outside the public range 250..20000: 9e+09 (at"),
        ("receiver", 7, "the receiver of predictions must be a party, not 7"),
    ],
)
def test_a_prediction_that_cannot_be_made(
    run: Path, capsys: pytest.CaptureFixture[str], option: str, value: str | int, told: str
) -> None:
    """At one party, before it meets the others."""
    here = run.parent
    shutil.copytree(run / "party-1", here / "swapped" / "party-0")
    records = (run / "examples" / "records.csv").read_text()
    (here / "short.csv").write_text(records.replace("duration", "length", 1))
    wild = pd.read_csv(run / "examples" / "records.csv", dtype=str, keep_default_na=False)
    wild.assign(credit_amount="9000000000").to_csv(here / "wild.csv", index=False)  # no record can be read
    options = {"dataset": "german", "model": "run", "records": "run/examples/records.csv", option: value}
    for name in ("model", "records"):
        options[name] = str(here / str(options[name]))
    lines = [f"{name} = {json.dumps(told)}" for name, told in options.items()]
    text = 'parties = ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]\njob = "predict"\n[options]\n' + "\n".join(lines)
    (here / "predict.toml").write_text(text)
    assert main(["party", "--rank", "0", "--config", str(here / "predict.toml"), "--out", str(here / "out")]) == 2
    assert told in one_line(capsys)


def test_a_budget_that_is_spent(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        place = run.parent / "ledgers" / f"party-{rank}"
        shutil.copytree(run / f"party-{rank}" / "sets", place / "sets")
        for file in [*(run / f"party-{rank}").glob("ledger.jsonl*"), run / f"party-{rank}" / "records.key"]:
            shutil.copy(file, place)
    again = ["--dataset", "german", "--parties", "3", *SHORT, "--ledger", str(run.parent / "ledgers")]
    again += ["--out", str(run.parent / "again")]
    assert main(["run", *again]) == 1
    line = one_line(capsys)
    assert "sketch-0: refused by the ledger of party 0; epsilon would be" in line
    assert "release nothing more about these records" in line


class Sections(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        if tag == "section":
            self.ids.append(str(told["id"]))
        for name in ("src", "href"):
            target = told.get(name) or ""
            if target and not target.startswith(("#", "data:")):
                self.fetched.append(target)


def test_the_page_is_whole_and_needs_nothing_else(whole_run: Path) -> None:
    page, report = (whole_run / "report.html").read_text(), json.loads((whole_run / "report.json").read_text())
    seen = Sections()
    seen.feed(page)
    shown = [*SECTIONS, *BENCHMARK, *(["frontier"] if "frontier" in report else [])]
    assert sorted(seen.ids) == sorted(shown) and seen.fetched == []
    assert "url(" not in page and "@import" not in page
    rate = 100 * report["metrics"]["acc"]
    told = (
        f"The model is right for {rate:.1f} % of them (95 % interval",
        "always giving the most frequent answer for",
    )
    charts = ("Right decisions", "Difference between groups", "Before and after", "Gap", "Spread")
    learned = ("Knew before: its 7 columns and the label. Was told, alone:", "contents are encrypted")
    spent = ("all processes on one machine", "from the dealer")
    for said in ("good credit", "younger than 25", "Not run yet", report["run"], report["data"]["about"], *spent):
        assert said in page
    for said in (*told, *learned, *(f'aria-label="{name}"' for name in charts), *report["warnings"]):
        assert said.replace("'", "&#39;") in page
    assert page.count('class="point') == report["examples"]["drawn"]
    for model in report["models"].values():
        assert model in page
    for example in report["examples"]["shown"]:
        assert f"record {example['id']}" in page
    assert str(whole_run) not in page


def test_columns_representations_and_people_with_their_controls(whole_run: Path) -> None:
    """Every figure of the new sections comes from report.json, and none stands without its control."""
    page, report = (whole_run / "report.html").read_text(), json.loads((whole_run / "report.json").read_text())
    found = report["qualitative"]
    for column, known in found["information"].items():
        assert f"{column.replace('_', ' ')}: score" in page and f"{known['mi']:.4f}" in page
        assert f"{known['null_high']:.4f}" in page
    assert page.count("shuffled: up to") == sum(3 if "logits" in m else 2 for m in found["mixing"])
    assert page.count('class="record"') == sum(len(m["points"]) for m in found["mixing"])
    decided = {e["id"]: e for e in report["examples"]["people"]}
    assert len(decided) >= report["examples"]["drawn"] and len(found["cases"]) == 3
    for case in found["cases"]:
        assert f"record {case['id']} · {case['rule']}" in page
        own = f"({100 * decided[case['id']]['after']['score']:.1f}\N{NO-BREAK SPACE}%)"
        assert own in page, "the run's own decision"
    assert not re.search(r"-0\.0+\b", page)


def test_a_page_without_pooled_data_has_nothing_new(run: Path) -> None:
    """Reports of earlier versions and of a consortium have no such data; neither has a run without a harness."""
    report = json.loads((run / "report.json").read_text())
    report.pop("qualitative")
    report["examples"].pop("people")
    (run / "report.json").write_text(json.dumps(report))
    page = render(run)
    seen = Sections()
    seen.feed(page)
    assert not set(seen.ids) & set(BENCHMARK) and 'href="#people"' not in page and "mutual information" not in page


def with_frontier(run: Path, found: dict[str, object] | None) -> str:
    """The page of a run whose report has this frontier, or none."""
    report = json.loads((run / "report.json").read_text())
    report.pop("frontier", None)
    (run / "report.json").write_text(json.dumps(report if found is None else {**report, "frontier": found}))
    return render(run)


def test_the_frontier_is_the_first_picture_where_there_is_one(run: Path) -> None:
    plain = with_frontier(run, None)
    assert 'id="frontier"' not in plain and 'href="#frontier"' not in plain
    page = with_frontier(run, frontier())
    seen = Sections()
    seen.feed(page)
    assert seen.ids[:3] == ["warnings", "frontier", "metrics"] and seen.fetched == []
    assert page.index('aria-label="Accuracy against flips"') < page.index('aria-label="Right decisions"')
    rule = frontier()["rule"].removesuffix(".")
    for said in ("Means and 95 % intervals over 8 seeds", "λ = 4 (this run)", rule, 'href="#frontier"'):
        assert said in page
    for place in ("first judge", "second judge"):
        assert f"Decisions that flip, {place}" in plain and f"flips, groups shuffled ({place})" in plain
    assert "Can the judges be trusted on these data?" in plain


def seen_in_browser(text: str, folder: Path, width: int, theme: str) -> tuple[dict[str, object], list[str]]:
    """What headless Chromium makes of a page at this width, and what it writes to its console."""
    probe = (
        "var d=this.contentDocument,r=d.documentElement;document.body.dataset.seen=JSON.stringify({"
        "theme:r.dataset.theme,wide:r.scrollWidth,back:getComputedStyle(d.body).backgroundColor,"
        "clipped:[...d.querySelectorAll('svg.chart text')].filter(t=>{var a=t.getBoundingClientRect(),"
        "b=t.ownerSVGElement.getBoundingClientRect();return a.width&&(a.left<b.left-1||a.right>b.right+1"
        "||a.bottom>b.bottom+1)}).map(t=>t.textContent),"
        "cut:[...d.querySelectorAll('#learned .scroll,#cost .scroll,#roles .scroll,.methods')]"
        ".filter(s=>s.scrollWidth>s.clientWidth).length,"
        "low:[...d.querySelectorAll('section')].filter(s=>s.offsetHeight<40).length})"
    )
    frame = folder / "frame.html"
    size = f"width:{width}px;height:2000px"  # a frame, since a window cannot be as narrow as a phone
    frame.write_text(
        f'<body><iframe style="{size};border:0" onload="{escape(probe)}" srcdoc="{escape(text)}"></iframe></body>'
    )
    quiet = ["--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    ran = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", *quiet),
            f"--user-data-dir={folder / 'profile'}",
            "--window-size=1300,2000",
            *(["--blink-settings=preferredColorScheme=0"] if theme == "dark" else []),
            "--virtual-time-budget=2000",
            "--dump-dom",
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    found = re.search(r'data-seen="([^"]*)"', ran.stdout)
    assert found is not None, ran.stderr
    return json.loads(unescape(found[1])), [line for line in ran.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "theme", "back"), [(1200, "light", "246, 247, 249"), (375, "dark", "16, 21, 27")])
def test_the_page_in_a_browser(whole_run: Path, tmp_path: Path, width: int, theme: str, back: str) -> None:
    """No error in the console, every section laid out, nothing too wide or cut off, the theme as asked for."""
    seen, console = seen_in_browser((whole_run / "report.html").read_text(), tmp_path, width, theme)
    assert seen == {"theme": theme, "wide": width, "back": f"rgb({back})", "low": 0, "cut": 0, "clipped": []}
    assert console == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "theme"), [(1200, "light"), (375, "dark")])
def test_the_frontier_in_a_browser(run: Path, tmp_path: Path, width: int, theme: str) -> None:
    seen, console = seen_in_browser(with_frontier(run, frontier()), tmp_path, width, theme)
    assert (seen["theme"], seen["wide"], seen["low"], seen["cut"]) == (theme, width, 0, 0)
    assert console == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_the_browser_test_sees_a_broken_page(whole_run: Path, tmp_path: Path) -> None:
    broken = '<section id="x"></section><div style="width:900px">wide</div><script>gone()</script>'
    broken += '<svg class="chart" viewBox="0 0 99 9"><text x="80" y="8">a long label</text></svg></body>'
    page = (whole_run / "report.html").read_text().replace("</body>", broken)
    seen, console = seen_in_browser(page, tmp_path, 375, "light")
    assert seen["wide"] == 900 and seen["low"] == 1 and "gone is not defined" in console[0]
    assert "a long label" in seen["clipped"]


def test_the_page_with_three_groups_and_figures_near_zero(run: Path) -> None:
    """The words fit more than two groups, no placeholder is left, and nothing is minus zero."""
    report = json.loads((run / "report.json").read_text())
    first = report["data"]["protected"][0]
    first["labels"], first["groups"] = [*first["labels"], "born elsewhere"], [*first["groups"], "third"]
    report["groups"] = [*report["groups"], *report["groups"][-1:]]
    report["metrics"] |= {name: -1e-5 for name in report["metrics"] if name.startswith("net_")}
    report["scores"] |= dict.fromkeys(list(report["scores"])[:2], -1e-5)
    (run / "report.json").write_text(json.dumps(report))
    text = re.sub(r"<style>.*?</style>|<script>.*?</script>", "", render(run), flags=re.DOTALL)
    assert "another group" in text and "the other group" not in text
    assert "{positive}" not in text and not re.search(r"[>( ]-0\.0+\b(?![1-9])", text)
