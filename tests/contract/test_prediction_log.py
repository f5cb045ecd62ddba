"""Predictions over real sessions: each person is answered once by a model, and for as many people as all approved."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.models.certificate import at_first_level, certified_binary, level_encodings
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.releases import record_key
from secure_sccvfl.releases.prediction_log import PredictionLog
from secure_sccvfl.runs.answers import LACKS, NO_SCORES
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import (
    CHANGED,
    ELSEWHERE,
    LOST,
    UNDECIDED,
    PredictJob,
    read_new_records,
)
from secure_sccvfl.runs.train import TrainJob
from tests.support.sessions import LONG
from tests.support.two_parties import BANK, CLINIC, People, opened, people, run_two, table, write, write_two

ALLOWED = 40
ALIGNED = ("exact", "revealed", "hidden")
ROOMY = {"refreshes": 0, "epsilon": 60.0, "lambdas": [3.0], "take_lambda": 3.0, "predictions": ALLOWED}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of own data that may answer for 40 people; `align` of its predictions differs by test."""
    home = tmp_path_factory.mktemp("metered")
    run_two(TrainJob, home / "run", {**write_two(home, people(400, 8)), **ROOMY, "align": "exact"})
    return home


class Consortium:
    """A copy of the model and its ledgers, with predictions one after the other."""

    def __init__(self, model: Path, home: Path, align: str) -> None:
        shutil.copytree(model, home, dirs_exist_ok=True)
        self.home, self.align, self.asked = home, align, 0

    def ask(
        self, bank: People, clinic: People, pins: Mapping[str, str] | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        """One prediction, with the columns of these people at each party. pins: of a plan that needs approval."""
        self.asked += 1
        files = [write(self.home / f"new-{k}.csv", *rows) for k, rows in enumerate(((bank, BANK), (clinic, CLINIC)))]
        options = {"dataset": str(self.home / "own.toml"), "align": self.align, "model": str(self.home / "run")}
        each = [{"records": str(path)} for path in files]
        return run_two(PredictJob, self.out, {**options, **more}, each, certificates=dict(pins or {}))

    def refused(self, bank: People, clinic: People, **more: Any) -> str:
        """What the parties say when they refuse a prediction."""
        with pytest.raises(ExceptionGroup) as stopped:
            self.ask(bank, clinic, **more)
        return "; ".join(map(str, stopped.value.exceptions))

    @property
    def out(self) -> Path:
        return self.home / f"predicted-{self.asked}"

    @property
    def predictions(self) -> dict[str, dict[str, str]]:
        return table(self.out / "party-0" / "predictions.csv")

    def why(self, rank: int = 0) -> dict[str, str]:
        return {name: row["why"] for name, row in table(self.out / f"party-{rank}" / "refused.csv").items()}

    def log(self, rank: int) -> Path:
        (path,) = (self.home / "sccvfl-ledgers" / f"party-{rank}").glob("predictions-*.jsonl")
        return path

    def logs(self) -> list[str]:
        return [self.log(rank).read_text() for rank in range(2)]


@pytest.fixture(params=ALIGNED)
def each(request: pytest.FixtureRequest, model: Path, tmp_path: Path) -> Consortium:
    return Consortium(model, tmp_path, request.param)


@pytest.fixture
def one(model: Path, tmp_path: Path) -> Consortium:
    return Consortium(model, tmp_path, "hidden")


def with_changed(rows: People, row: int, **cells: Any) -> People:
    changed = {name: values.copy().astype(object) for name, values in rows.items()}
    for name, value in cells.items():
        changed[name][row] = value
    return changed


def some(rows: Mapping[str, np.ndarray], chosen: slice) -> People:
    return {name: values[chosen] for name, values in rows.items()}


def test_asking_again_returns_what_is_on_record_and_opens_nothing_new(
    each: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = people(20, 1, "n")
    each.ask(some(new, slice(0, 12)), some(new, slice(0, 12)), scores=True)
    first, shown = each.predictions, []
    plain = Session.open_each

    def watched(session: Session, pairs: Any, *rest: Any, **more: Any) -> Any:
        opened_values = plain(session, pairs, *rest, **more)
        if opened_values[0] is not None and pairs[0][1].name == "predictions":
            shown.append(int((np.asarray(opened_values[0])[:, 0] != 0).sum()))
        return opened_values

    monkeypatch.setattr(Session, "open_each", watched)
    results = each.ask(new, new, scores=True)
    assert len(first) == 12 and len(each.predictions) == 20 and each.why() == {}
    assert {name: each.predictions[name] for name in first} == first, "to the last digit of the score"
    assert shown == [8], "people on record are withheld by everybody"
    assert [one["on_record"] for one in results] == [20, 20] and results[0]["allowed"] == ALLOWED
    each.ask(new, new)
    assert {n: row["decision"] for n, row in each.predictions.items()} == {
        n: str(int(float(row["logit 1"]) > 0))
        for n, row in table(each.home / "predicted-2/party-0/predictions.csv").items()
    }, "a score reveals the decision"


def plain_certificates(home: Path) -> dict[str, bool]:
    """By the opened weights: which of the new people have a decision that no values of the mediators change."""
    schema, at = own_schema(home / "own.toml"), 0
    models = [load_model(home / f"run/party-{rank}/model", schema.layouts[rank]) for rank in range(2)]
    edited = Roles(dict(models[0].roles), models[0].proxies).edited
    weight, base, contributions = combined([m.weight for m in models]), combined([m.bias for m in models]), []
    for rank, trained in enumerate(models):
        new = read_new_records(home / f"new-{rank}.csv", schema, rank, uses_s=False)
        here = weight[at : at + trained.encoder.columns]
        base = base + trained.encoder(at_first_level(schema.layouts[rank], new.party.inputs, edited)) @ here
        contributions += [rows @ here for rows in level_encodings(trained.encoder, edited)]
        at += len(here)
    return dict(zip(new.ids.tolist(), certified_binary(base, contributions).tolist(), strict=True))


def test_a_certificate_is_one_more_bit_of_an_answer_in_words(each: Consortium) -> None:
    new = people(20, 1, "n")
    each.ask(some(new, slice(0, 12)), some(new, slice(0, 12)), certified=True)
    first, bits = each.predictions, plain_certificates(each.home)
    names = Roles(json.loads((each.home / "run/party-0/model/model.json").read_text())["roles"]).edited
    assert names and len(first) == 12 and len(set(bits.values())) == 2, "some are certified, and some are not"
    for name, row in first.items():
        words = f"cannot change through {', '.join(names)}, whatever their values"
        assert row["certificate"] == (
            words if bits[name] else f"not certified: can change through {', '.join(names)}"
        )
    log = (each.out / "party-0" / "releases.jsonl").read_text()
    assert "decisions, and whether no values of the mediators change the decision" in log
    each.ask(new, new)
    assert {n: row["decision"] for n, row in each.predictions.items() if n in first} == {
        n: row["decision"] for n, row in first.items()
    }
    assert len(each.predictions) == 20 and "certificate" not in next(iter(each.predictions.values()))
    results = each.ask(new, new, certified=True)
    assert each.predictions == first, "the certificate on record, and none of people who were decided without one"
    assert set(each.why().values()) == {LACKS["certificate"]} and len(each.why()) == 8
    assert results[0]["on_record"] == 20


def test_asking_again_with_other_columns_is_refused_by_id(one: Consortium) -> None:
    new = people(10, 2, "n")
    one.ask(new, new)
    first = one.predictions
    one.ask(with_changed(new, 3, amount=0.987), with_changed(new, 5, edu="b" if new["edu"][5] == "a" else "a"))
    assert one.why() == {"n3": CHANGED, "n5": ELSEWHERE}
    assert one.why(1) == {"n5": CHANGED}, "its own people learn that the clinic's columns differ"
    assert one.predictions == {name: row for name, row in first.items() if name not in ("n3", "n5")}
    one.ask(new, new)
    assert one.predictions == first and one.why() == {}, "with the first columns the answer is there"


def test_a_receiver_without_its_answers_does_not_get_them_again(one: Consortium) -> None:
    """It lost its lines of answers: decisions are neither opened again nor made up."""
    new = people(10, 3, "n")
    one.ask(new, new)
    answers = one.log(0).read_text().splitlines()
    assert json.loads(answers[-1])["kind"] == "answers" and "answers" not in one.log(1).read_text()
    one.log(0).write_text("\n".join(answers[:-1]) + "\n")
    one.ask(new, new)
    assert one.predictions == {} and set(one.why().values()) == {LOST}


def test_a_decision_is_not_followed_by_a_score(one: Consortium) -> None:
    new = people(4, 4, "n")
    one.ask(new, new)
    one.ask(new, new, scores=True)
    assert one.predictions == {} and set(one.why().values()) == {NO_SCORES}


def test_more_people_than_approved_are_refused_before_anything_is_opened(each: Consortium) -> None:
    new = people(ALLOWED + 1, 5, "n")
    each.ask(some(new, slice(0, 30)), some(new, slice(0, 30)))
    before = each.logs()
    message = each.refused(new, new)
    assert f"30 of {ALLOWED} predictions of this model are on record here, and 11 more are asked for" in message
    assert "More need a new approval" in message and "nothing was opened" in message
    assert [name for name in opened(each.out) if "predict" in name or "refused" in name] == []
    assert each.align == "revealed" or opened(each.out) == []
    assert each.logs() == before
    each.ask(some(new, slice(0, ALLOWED)), some(new, slice(0, ALLOWED)))
    assert len(each.predictions) == ALLOWED, "people on record do not count again"


def test_one_party_is_enough_to_refuse_too_many(one: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver takes no notice of the limit."""
    plain = PredictionLog.agree

    def agree(log: PredictionLog, session: Session, count: int, allowed: int) -> None:
        plain(log, session, 0 if session.rank == 0 else count, allowed)

    monkeypatch.setattr(PredictionLog, "agree", agree)
    new = people(ALLOWED + 1, 6, "n")
    message = one.refused(new, new)
    assert f"0 of {ALLOWED} predictions of this model are on record here, and {ALLOWED + 1} more" in message
    assert opened(one.out) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_log_that_others_have_must_be_there(one: Consortium, rank: int) -> None:
    """One that is missing is refused by its party: tests/unit/releases/test_prediction_log.py."""
    new = people(6, 7, "n")
    one.ask(some(new, slice(0, 3)), some(new, slice(0, 3)))
    one.ask(some(new, slice(0, 4)), some(new, slice(0, 4)))
    path = one.log(rank)
    lines = [line for line in path.read_text().splitlines() if '"answers"' not in line]
    path.write_text("\n".join(lines[:-2]) + "\n")
    message = one.refused(new, new)
    assert f"party {rank} has no complete log of the predictions of this model" in message
    assert "bring it back" in message and opened(one.out) == []


SPELLINGS = ("q7", "Q7", "q 7", "q\u200b7", "\uff517")


def test_one_person_in_many_spellings_is_answered_once(one: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receiver asks about one person five times in one file, with other columns of its own each time."""
    rows = {name: np.repeat(values, len(SPELLINGS)) for name, values in people(1, 21).items()}
    rows |= {"id": np.array(SPELLINGS), "amount": np.linspace(0, 1, len(SPELLINGS)).round(3)}
    results = one.ask(rows, rows)
    assert len(one.predictions) == 1 and set(one.why().values()) == {CHANGED}
    assert [result["on_record"] for result in results] == [1, 1]
    first = rows["amount"][np.argsort(rows["id"])[0]]
    one.ask(alike := {**rows, "amount": np.full(len(SPELLINGS), first)}, alike)
    assert len({row["decision"] for row in one.predictions.values()}) == 1 and len(one.predictions) == len(SPELLINGS)

    monkeypatch.setattr(record_key, "canonical", str)
    one.ask(other := {**rows, "id": np.char.replace(rows["id"], "7", "8")}, other)
    assert len(one.predictions) == len(SPELLINGS), "the control: without one form of an id they are other people"


def test_a_session_file_without_approvals_does_not_raise_the_number(one: Consortium) -> None:
    new = people(3, 8, "n")
    with pytest.raises(Exception, match=r"may answer for 40 people: another number \(5000\) needs a session file"):
        one.ask(new, new, predictions=5000)


def test_a_plan_that_all_approved_raises_the_number(one: Consortium) -> None:
    """A party that starts with pinned certificates has checked the approvals of this very session file."""
    pins, new = {node: "0" * 64 for node in ("party-0", "party-1", "dealer")}, people(ALLOWED + 2, 13, "n")
    results = one.ask(new, new, pins, predictions=ALLOWED + 2)
    assert len(one.predictions) == ALLOWED + 2 and {result["allowed"] for result in results} == {ALLOWED + 2}
    other = people(1, 14, "other")
    assert f"of {ALLOWED + 2} predictions of this model are on record" in one.refused(
        other, other, pins=pins, predictions=ALLOWED + 2
    )


def test_parties_that_allow_different_numbers_do_not_predict(
    one: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, plain = people(3, 15, "n"), PredictionLog.agree
    monkeypatch.setattr(
        PredictionLog,
        "agree",
        lambda log, session, count, allowed: plain(log, session, count, allowed + session.rank),
    )
    assert "the parties allow different numbers of predictions" in one.refused(new, new)
    assert opened(one.out) == []


def test_people_are_on_record_at_every_party_before_a_share_is_sent(
    one: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, plain, seen = people(5, 16, "n"), Session.open_each, []

    def watched(session: Session, pairs: Any, *rest: Any, **more: Any) -> Any:
        if pairs[0][1].name == "predictions":
            lines = [[json.loads(line) for line in text.splitlines()] for text in one.logs()]
            seen.append(
                [("asked" in [line["kind"] for line in entries], len(entries[1]["records"])) for entries in lines]
            )
            assert lines[session.rank][-1]["kind"] == "opening"
        return plain(session, pairs, *rest, **more)

    monkeypatch.setattr(Session, "open_each", watched)
    one.ask(new, new)
    assert seen == [[(True, 5), (True, 5)]] * 2


def test_a_fault_before_the_opening_costs_nothing(one: Consortium, monkeypatch: pytest.MonkeyPatch) -> None:
    """One party has written that people are asked for and the other has not, or both have: nothing was sent."""
    new = people(8, 9, "n")
    one.ask(some(new, slice(0, 2)), some(new, slice(0, 2)))
    plain = Session.tell_all

    def stop(session: Session, step: str, flag: int) -> list[int]:
        if step == "predictions are on record" and session.rank == 1:
            raise KeyboardInterrupt
        return plain(session, step, flag)

    with monkeypatch.context() as patched:
        patched.setattr(Session, "tell_all", stop)
        one.refused(new, new)
    assert "predictions" not in opened(one.out)
    results = one.ask(with_changed(new, 7, amount=0.321), new)
    assert len(one.predictions) == 8 and one.why() == {}, "nobody but the first two was on record"
    assert [result["on_record"] for result in results] == [8, 8]


def test_a_fault_at_one_party_before_it_sends_its_shares_leaves_complete_logs(
    one: Consortium, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One party has begun to open, the other has not: later predictions go on, and nobody is asked for twice."""
    new = people(8, 10, "n")
    plain, begun = PredictionLog._append, threading.Event()

    def stop(log: PredictionLog, content: dict[str, Any]) -> None:
        if content["kind"] == "opening" and "party-1" in str(log._path):
            assert begun.wait(LONG)
            raise KeyboardInterrupt
        plain(log, content)
        if content["kind"] == "opening":
            begun.set()

    with monkeypatch.context() as patched:
        patched.setattr(PredictionLog, "_append", stop)
        one.refused(some(new, slice(0, 4)), some(new, slice(0, 4)))
    results = one.ask(new, new)
    assert sorted(one.predictions) == ["n4", "n5", "n6", "n7"]
    assert one.why() == dict.fromkeys(["n0", "n1", "n2", "n3"], LOST)
    assert [result["on_record"] for result in results] == [8, 8]


@pytest.mark.filterwarnings("ignore::secure_sccvfl.data.dataset.DataWarning")
def test_a_person_about_whom_nothing_was_opened_can_be_asked_for_later(one: Consortium) -> None:
    """The clinic did not hold one record and could not read another; neither party has them on record as decided."""
    new = people(6, 11, "n")
    one.ask(new, some(with_changed(new, 4, hours="?"), slice(0, 5)))
    assert one.predictions["n5"]["decision"] == UNDECIDED and one.why() == {"n4": ELSEWHERE}
    one.ask(new, new)
    assert (
        len(one.predictions) == 6
        and all(row["decision"] in "01" for row in one.predictions.values())
        and one.why() == {}
    )


def test_logs_know_no_ids_no_columns_and_no_answers_of_others(one: Consortium) -> None:
    new = people(5, 12, "someone-")
    one.ask(new, new)
    texts = one.logs()
    assert not any("someone" in text for text in texts)
    lines = [[json.loads(line) for line in text.splitlines()] for text in texts]
    assert [[line["kind"] for line in entries] for entries in lines] == [
        ["log", "asked", "opening", "answers"],
        ["log", "asked", "opening"],
    ]
    asked = [entries[1]["records"] for entries in lines]
    assert asked[0].keys() == asked[1].keys() and not set(asked[0].values()) & set(asked[1].values())
    keys = [one.log(rank).with_suffix(".key").read_bytes() for rank in range(2)]
    assert keys[0] != keys[1]
    assert all(one.log(rank).stat().st_mode & 0o777 == 0o600 for rank in range(2))
