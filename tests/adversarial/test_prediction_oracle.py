"""A receiver that changes its own columns of the same new people and asks again, to read off those of the others.

By bisection, 16 decisions give the value of its own column at which a person's decision turns. That value tells the
score of the other parties' columns, and in mode `aware` s. The receiver here is active: its own log of predictions
knows nobody. The attack succeeds if the other party's log is switched off too, and learns what one decision tells if
not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LinearRegression
from sklearn.metrics import balanced_accuracy_score

from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.catalogue import REFUSED_RECORDS
from secure_sccvfl.runs.predict import Asked, PredictJob
from secure_sccvfl.runs.train import TrainJob
from tests.support.two_parties import AWARE, BANK, CARD, CLINIC, opened, people, run_two, table, write, write_two

PEOPLE, BISECTIONS = 300, 14
PREDICTIONS = BISECTIONS + 2
ROOMY = {"align": "exact", "refreshes": 0, "epsilon": 60.0}
Trained = tuple[Path, dict[str, Any]]


def trained(folder: Path, mode: str) -> Trained:
    base = write_two(folder, people(900, seed=8), CARD + (AWARE if mode == "aware" else ""))
    grid = {"lambdas": [3.0], "take_lambda": 3.0} if mode == "sealed" else {}
    run_two(TrainJob, folder / "run", {**base, **ROOMY, "mode": mode, **grid})
    return folder, {**base, "align": "exact", "model": str(folder / "run")}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("sealed"), "sealed")


@pytest.fixture(scope="module")
def aware(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return trained(tmp_path_factory.mktemp("aware"), "aware")


def forget(monkeypatch: pytest.MonkeyPatch, *parties: int) -> None:
    """These parties take everybody for new, whatever their logs say."""
    plain = Asked.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[Asked], log: Any, new: Any, kind: str) -> Asked:
        asked: Asked = plain(cls, log, new, kind)
        if new.party.rank not in parties:
            return asked
        log.answers.clear()
        rows = len(new.ids)
        return replace(asked, readable=new.readable, changed=np.zeros(rows, bool), fresh=np.ones(rows, bool))

    monkeypatch.setattr(Asked, "of", classmethod(of))


class Receiver:
    """The bank, which holds the label and receives decisions; the clinic gives the same columns each time."""

    def __init__(self, model: Trained, name: str) -> None:
        (self.home, self.options), self.name, self.asked = model, name, 0
        self.new = people(PEOPLE, 99, f"{name}-")
        write(self.home / f"{name}-clinic.csv", self.new, CLINIC)

    def decide(self, amount: np.ndarray) -> np.ndarray:
        """The decision of each person for these values of the bank's column; -1 where it gets none."""
        self.asked += 1
        rows = {**self.new, "amount": amount.round(9), "age": np.full(PEOPLE, 0.5)}
        files = [write(self.home / f"{self.name}-bank.csv", rows, BANK), self.home / f"{self.name}-clinic.csv"]
        out = self.home / f"{self.name}-{self.asked}"
        run_two(PredictJob, out, self.options, [{"records": str(path)} for path in files])
        assert opened(out).count("predictions") == 1
        predictions = table(out / "party-0" / "predictions.csv")
        return np.array(
            [int(predictions[name]["decision"]) if name in predictions else -1 for name in self.new["id"]]
        )

    def thresholds(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each person's decision turns, as far as bisection tells; and the first decision."""
        low, high = np.zeros(PEOPLE), np.ones(PEOPLE)
        first = self.decide(low)
        self.decide(high)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            same = self.decide(middle) == first
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        assert self.asked == PREDICTIONS
        return (low + high) / 2, first


def rate(features: np.ndarray, truth: np.ndarray) -> float:
    """Balanced accuracy of an attacker that knows the truth of the first third and guesses the rest."""
    third = PEOPLE // 3
    fitted = GradientBoostingClassifier(random_state=0).fit(features[:third], truth[:third])
    return float(balanced_accuracy_score(truth[third:], fitted.predict(features[third:])))


def category_rates(receiver: Receiver) -> tuple[float, float]:
    """How often the other party's category is guessed: from all that was asked, and from one decision."""
    turns, first = receiver.thresholds()
    truth = (receiver.new["edu"] == "a").astype(int)
    return rate(np.column_stack([turns, first]), truth), rate(first[:, None], truth)


def group_rate(receiver: Receiver) -> float:
    """How often s is guessed from thresholds by a coalition that knows all columns of these people but s."""
    turns, _ = receiver.thresholds()
    new, third = receiver.new, PEOPLE // 3
    bins = np.eye(10)[np.minimum((new["hours"] * 10).astype(int), 9)]
    kinds = np.column_stack([new["edu"] == kind for kind in "abc"])

    def design(s: np.ndarray) -> np.ndarray:
        return np.column_stack([bins, new["hours"], kinds, s, s * new["hours"], bins * s[:, None]])

    fitted = LinearRegression().fit(design(new["s"])[:third], turns[:third])
    off = [np.abs(fitted.predict(design(np.full(PEOPLE, s))) - turns) for s in (0, 1)]
    guessed = (off[1] < off[0]).astype(int)
    return float(balanced_accuracy_score(new["s"][third:], guessed[third:]))


def test_without_metering_sixteen_decisions_reveal_the_other_partys_category(
    sealed: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positive control: a log that nobody looks at."""
    forget(monkeypatch, 0, 1)
    sixteen, once = category_rates(Receiver(sealed, "control"))
    assert sixteen > 0.95 and sixteen > once + 0.2


def test_sixteen_questions_reveal_what_one_decision_reveals(sealed: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch, 0)
    marks: list[np.ndarray] = []
    plain = Session.open_each

    def watched(session: Session, pairs: Any, *rest: Any, **more: Any) -> Any:
        opened_values = plain(session, pairs, *rest, **more)
        if session.rank == 0 and pairs[-1][1].name == REFUSED_RECORDS.name:
            marks.append(np.asarray(opened_values[-1]))
            assert len(marks) == 1 or not np.asarray(opened_values[0]).any(), "nothing is opened a second time"
        return opened_values

    monkeypatch.setattr(Session, "open_each", watched)
    receiver = Receiver(sealed, "metered")
    sixteen, once = category_rates(receiver)
    assert [set(seen.tolist()) for seen in marks] == [{0}] + [{2}] * (PREDICTIONS - 1)
    assert sixteen == once, "answers after the first are the same for everybody"
    assert once < 0.75, "and one decision tells little"


def test_without_metering_decisions_of_a_model_that_uses_s_reveal_s(
    aware: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positive control, in mode `aware`."""
    forget(monkeypatch, 0, 1)
    assert group_rate(Receiver(aware, "control")) > 0.95


def test_a_model_that_uses_s_does_not_reveal_s_by_repeated_questions(
    aware: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch, 0)
    turns, _ = Receiver(aware, "metered").thresholds()
    assert len(set(turns.tolist())) == 1, "bisection finds the same for everybody, so it tells nothing of s"
