"""A review of the card of a consortium's own run: what is found about new records, and from whose budget."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from secure_sccvfl.accounting.ledger import read_ledger
from secure_sccvfl.launch.cli import main
from secure_sccvfl.reports.policy_card import CARD
from secure_sccvfl.reports.verify import verify
from tests.multiprocess.programs import SHORT, run_mpc
from tests.support.own_data import heart_rows, write_own

SHARE = ("--head-share", "0.3")
"""Each review takes seven tenths of what is left, and is refused if it needs four times the noise of a fresh run."""
MOST_REVIEWS = 5
SAID = ["--who", "the board", "--text", "a quarter later"]


def aged(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Other people, all of them twelve years older."""
    return [{**row, "id": f"n{row['id']}", "age": str(min(int(float(row["age"])) + 12, 80))} for row in rows]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on own data, and new records elsewhere."""
    folder = tmp_path_factory.mktemp("own")
    write_own(folder / "old", heart_rows())
    write_own(folder / "new", aged(heart_rows()))
    little_noise = ("--evaluation-epsilon", "8")  # 102 test records are twelve deviations above too few
    run_mpc("--dataset", folder / "old" / "own.toml", "--out", "run", *SHORT, *little_noise, *SHARE, cwd=folder)
    return folder


def charges(folder: Path) -> int:
    return len(read_ledger(folder / "old" / "sccvfl-ledgers" / "party-1" / "ledger.jsonl")[0])


def review(home: Path) -> int:
    return main(["policy", "review", str(home / "run"), "--dataset", str(home / "new" / "own.toml"), *SAID])


@pytest.mark.chance(1e-9)  # first counts of reviews are ten deviations above too few
def test_a_rerun_is_charged_to_the_same_ledger_and_spent_records_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, before = home / "run", charges(home)
    assert review(home) == 0
    assert charges(home) == before + 3, "a first count, a sketch and one refresh"
    assert not (home / "new" / "sccvfl-ledgers").exists(), "no second budget"
    card = json.loads((run / CARD).read_text())
    assert re.search(r": about \d+ records of heart of our own", card["events"][-1]["discovery"])
    assert not any(verify(run).values())
    more = review(home)  # the head's share of these records is left, and smaller with every review
    assert more == 0 and charges(home) == before + 6
    for _ in range(MOST_REVIEWS):
        card, last = json.loads((run / CARD).read_text()), charges(home)
        capsys.readouterr()
        if review(home) != 0:
            break
    assert "refused by the ledger of party 0; epsilon would be" in capsys.readouterr().err
    assert not any(verify(run).values()), "what was refused is no part of the run"
    assert charges(home) == last and json.loads((run / CARD).read_text()) == card, "nothing was recorded"


def test_a_party_finds_a_shift_from_its_own_files_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "new" / "hospital.csv").rename(home / "hidden.csv")
    command = ["policy", "status", str(home / "run"), "--dataset", str(home / "new" / "own.toml"), "--party"]
    capsys.readouterr()
    try:
        assert main([*command, "1", "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        assert status["shift"]["party"] == "clinic" and status["shift"]["false_alarm_rate"] == 0.05
        assert [name for name, c in status["shift"]["columns"].items() if c["alarm"]] == ["age"]
        assert any(line.startswith("shift: age moved by") for line in status["due"])
        assert main([*command, "2"]) == 0
        shown = capsys.readouterr().out
        assert "largest move of payer" in shown and "no review is due" in shown
        assert main([*command, "0"]) == 0
        assert "no file 'hospital.csv'" in capsys.readouterr().out
    finally:
        (home / "hidden.csv").rename(home / "new" / "hospital.csv")
    assert main([*command, "7"]) == 2
