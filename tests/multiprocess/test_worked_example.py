"""One person explained from a finished run: the worked example of the documentation, and what cannot be shown."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.launch.cli import main
from secure_sccvfl.policy.card import shipped_card
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.reports.results import encode, read, write
from tests.multiprocess.programs import ROOT

PERSON = "g0722"
DOCUMENT = ROOT / "docs" / "worked-example.md"
STEP = re.compile(r"^(\d)\. (.*)$", re.MULTILINE)
PROPOSAL = re.compile(r"; discovery\s+proposes\s+[NMP],\s+confidence\s+[\d.]+\s+%")
UNDER_MPC = re.compile(r"The\s+run\s+under\s+MPC.*", re.DOTALL)


def steps_of(text: str) -> dict[str, str]:
    """By number and title what a step says, without line breaks."""
    matches = [*STEP.finditer(text)]
    ends = [*(m.start() for m in matches[1:]), len(text)]
    return {f"{m[1]}. {m[2]}": " ".join(text[m.end() : end].split()) for m, end in zip(matches, ends, strict=True)}


def shown_in_document() -> dict[str, str]:
    """The steps in the document before its part about one party."""
    page = DOCUMENT.read_text("utf-8").partition("## What one party sees")[0]
    return steps_of("".join(re.findall(r"^```text(?: noisy)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)))


def explained(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["explain", *arguments]) == 0
    return capsys.readouterr().out


@pytest.fixture
def worked(whole_run: Path, tmp_path: Path) -> Path:
    """What `explain` reads of a run with the card of the example and the defaults of a run.

    The roles of that run are the card's, and all that is shown but discovery's proposals follows from them.
    """
    run, card = tmp_path / "worked", shipped_card("german-worked-example")
    run.mkdir()
    session = SessionConfig.load(whole_run / "session.toml")
    asked = {"dataset": "german", "card": "german-worked-example"}
    (run / "session.toml").write_text(replace(session, options=asked).to_toml())
    report = replace(read(whole_run), roles=dict(card.roles.of), by_card=tuple(card.decisions), examples=None)
    write(run, report)
    (run / CARD).write_text(json.dumps(card.to_json()))
    return run


def test_the_document_shows_what_the_program_says(worked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed, shown = steps_of(explained(capsys, str(worked), "--record", PERSON)), shown_in_document()
    assert len(printed) == 6 and shown and set(shown) <= set(printed)
    for title, text in shown.items():
        wanted, got = (UNDER_MPC.sub("", PROPOSAL.sub("", said)).strip() for said in (text, printed[title]))
        assert got == wanted, title
    assert "The run under MPC did not score this person" in printed["4. Both decisions"]


def test_a_person_whom_the_run_decided_about(whole_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As data and as text: edits move mediators alone, pushes add up, and the run's own decision is told."""
    examples = read(whole_run).examples
    assert examples is not None
    example = examples.people[0]
    explanation = json.loads(explained(capsys, str(whole_run), "--record", example.id, "--json"))
    assert explanation["secure"] == encode(example)
    person = explanation["person"]
    assert {m["role"] for m in person["moved"]} <= {"M"}
    for name, seen in person["models"].items():
        total = seen["after"]["logit"] - seen["before"]["logit"]
        assert sum(m["pushes"][name] for m in person["moved"]) == pytest.approx(total, abs=1e-9)
        assert seen["change"] == pytest.approx(abs(total))
    ours, plain = (person["models"][name]["everyone"] for name in ("plaintext_scc", "erm"))
    assert ours["gap"] < plain["gap"], "the consistency loss did nothing"
    text = explained(capsys, str(whole_run), "--record", example.id)
    assert "The run under MPC decided" in " ".join(text.split()) and "-0.000" not in text
    assert [m[1] for m in STEP.finditer(text)] == list("123456")


@pytest.mark.parametrize("party", [0, 1])
def test_a_party_sees_its_own_columns_alone(
    whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], party: int
) -> None:
    """From its own folder, its model and its session file: nothing of the others is there to read."""
    host = tmp_path / "host"
    shutil.copytree(whole_run / f"party-{party}", host)
    shutil.copy(whole_run / "session.toml", tmp_path)
    session = ("--config", str(tmp_path / "session.toml"), "--party", str(party))
    explanation: Mapping[str, Any] = json.loads(explained(capsys, str(host), "--record", PERSON, *session, "--json"))
    columns = {c["name"] for c in explanation["columns"]}
    name = explanation["holders"][party]["party"]
    assert explanation["party"] == name and columns == set(explanation["holders"][party]["columns"]) == set(
        explanation["person"]["values"]
    )
    assert {m["feature"] for e in explanation["person"]["edits"] for m in e["moved"]} <= columns
    holds_s = bool(explanation["holders"][party]["protected"])
    assert explanation["person"]["knows_group"] == holds_s and len(explanation["person"]["edits"]) == (
        1 if holds_s else 2
    )
    assert explanation["decision"] is None and "models" not in explanation["person"] and "secure" not in explanation
    with (tmp_path / "predictions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "decision"], [PERSON, "1"]])
    received = ("--predictions", str(tmp_path / "predictions.csv"))
    assert "Decided: “bad credit”" in explained(capsys, str(host), "--record", PERSON, *session, *received)


def test_records_of_a_consortium_are_shown_to_nobody_but_their_holder(
    worked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same run, had its data not been public."""
    session = SessionConfig.load(worked / "session.toml")
    changed = replace(session, options={"dataset": str(worked / "loans.toml"), "pooled": False})
    (worked / "session.toml").write_text(changed.to_toml())
    assert main(["explain", str(worked), "--record", PERSON]) == 2
    assert "a party explains what it holds itself, with --party" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--record", "nobody"], "no record 'nobody' in german; ids look like 'g0000'"),
        (["--record", PERSON, "--predictions", "p.csv"], "name it with --party"),
        (["--record", PERSON, "--party", "7"], "the run has parties 0 to 2, not 7"),
        ([], "required: --record"),
    ],
)
def test_what_cannot_be_explained(
    worked: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    try:
        code = main(["explain", str(worked), *arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    shown = capsys.readouterr().err
    assert code == 2 and said in shown and len(shown.strip().splitlines()) == 1


def test_a_run_that_cannot_be_read(worked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path / "nowhere"), "--record", PERSON]) == 2
    assert "is not the folder of a finished run: it has no report.json" in capsys.readouterr().err
    (worked / "report.json").write_text("{")
    assert main(["explain", str(worked), "--record", PERSON]) == 2
    assert "cannot be read: it is torn or was changed" in capsys.readouterr().err
