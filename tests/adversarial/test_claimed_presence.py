"""align = hidden: a receiver of predictions that says "I have a record at every place".

Before, membership was a product of what each party said of itself, so the receiver got the decision of every record
that the others brought. Now the dealer makes the bits from the tags that it matched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing import matching
from secure_sccvfl.protocols.dealing.matching import Aligned
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs.predict import PredictJob
from secure_sccvfl.runs.train import TrainJob
from tests.support.two_parties import OPTIONS, people, run_two, write, write_data

HELD, THEIRS = 10, 60
RECEIVER = 0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A model, and new records: the receiver holds 10 of the 60 that the other party holds."""
    home = tmp_path_factory.mktemp("membership")
    path = write_data(home, people(700, seed=4))
    options = {"dataset": str(path), "card": str(home / "card.toml"), "align": "hidden"}
    run_two(TrainJob, home / "run", {**OPTIONS, **options})
    new = people(THEIRS, seed=77)
    new["id"] = np.array([f"n{k}" for k in range(THEIRS)])
    write(home / "few.csv", {name: values[:HELD] for name, values in new.items()}, ["amount", "age"])
    write(home / "all.csv", new, ["s", "hours", "edu"])
    return home, {**options, "model": str(home / "run")}


def opened_rows(model: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """What is opened to the receiver: decision and mark of every place."""
    home, options = model
    seen: list[np.ndarray] = []
    honest = Session.open_each

    def watched(self: Session, pairs: Any, *more: Any, **named: Any) -> Any:
        opened_values = honest(self, pairs, *more, **named)
        if self.rank == RECEIVER and pairs[0][1].name == "predictions":
            seen.append(np.asarray(opened_values[0]))
        return opened_values

    monkeypatch.setattr(Session, "open_each", watched)
    run_two(PredictJob, folder, options, ({"records": str(home / "few.csv")}, {"records": str(home / "all.csv")}))
    (rows,) = seen
    assert len(rows) == THEIRS
    return rows


def decided(rows: np.ndarray) -> int:
    """Of how many records they tell a decision: 0 or 1, and marked."""
    return int(((rows[:, -1] == 1) & np.isin(rows[:, 0], (0, 1))).sum())


def test_an_honest_receiver_gets_the_decisions_of_common_records(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert decided(opened_rows(model, tmp_path, monkeypatch)) == HELD
    lines = (tmp_path / "party-0" / "predictions.csv").read_text().splitlines()
    assert len(lines) == 1 + HELD and not (tmp_path / "party-0" / "refused.csv").exists()


def test_a_receiver_that_claims_every_row_gets_decisions_of_its_own_records(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a party says of its own places has no part in the bits any more."""
    claimed: list[int] = []

    def everywhere(self: Aligned) -> Any:
        claimed.append(self.size)
        return np.ones(self.size, np.bool_)

    monkeypatch.setattr(Aligned, "present", property(everywhere))
    assert decided(opened_rows(model, tmp_path, monkeypatch)) == HELD and THEIRS in claimed


def test_a_dealer_that_took_the_receivers_word_would_give_it_all(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: bits as if the receiver had sent every tag."""
    honest = matching.matched

    def trusting(lists: Any, bounds: Any, draw: Any) -> Any:
        aligned = honest(lists, bounds, draw)
        held = np.zeros(aligned[0].size, np.int64)
        held[aligned[1].rows] = 1
        bits = sum(one.shares for one in aligned)
        aligned[0] = matching.Aligned(aligned[0].size, aligned[0].rows, aligned[0].shares + held - bits)
        return aligned

    monkeypatch.setattr(matching, "matched", trusting)
    assert decided(opened_rows(model, tmp_path, monkeypatch)) == THEIRS


def shift_presence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are not authenticated: the receiver adds 1 to its share of every bit that must be 0."""
    asked = matching.ask

    def shifted(transport: Any, pseudonyms: Any) -> matching.Aligned:
        aligned = asked(transport, pseudonyms)
        if transport.node != RECEIVER:
            return aligned
        elsewhere = np.ones(aligned.size, np.int64)
        elsewhere[aligned.rows] = 0
        return matching.Aligned(aligned.size, aligned.rows, aligned.shares + elsewhere)

    monkeypatch.setattr(matching, "ask", shifted)


@pytest.mark.chance(1e-12)  # 50 places, and a uniform word is 0 or 1 with probability 2^-63
def test_a_receiver_that_shifts_its_share_sees_uniform_words_elsewhere(
    model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shift_presence(monkeypatch)
    rows = opened_rows(model, tmp_path, monkeypatch)
    assert decided(rows) == HELD
    others = rows[rows[:, -1] != 1]
    assert np.median(np.abs(others.astype(float))) > 2.0**58


def test_without_the_veil_the_shift_gives_it_all(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shift_presence(monkeypatch)
    monkeypatch.setattr(matching, "veil", lambda bits, columns, draw: np.zeros((len(bits), columns), np.int64))
    assert decided(opened_rows(model, tmp_path, monkeypatch)) == THEIRS
