"""What-if answers over real sessions, against a plain recomputation with the same draws; what they open to whom."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from protocols.records.chain import read_chain
from protocols.session.saving import combined
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party_data import own_schema
from secure_sccvfl.metrics.what_if import DRAWS, TOP
from secure_sccvfl.models import table_generator
from secure_sccvfl.models.certificate import CertificateError
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.releases.catalogue import OTHER_GROUPS, PREDICTIONS, REASON_NAMES, REFUSED_RECORDS
from secure_sccvfl.runs.answers import LACKS
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import CHANGED, ELSEWHERE, PredictJob, read_new_records
from secure_sccvfl.runs.scoring import prediction_plan
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.options import RunOptions
from tests.contract.test_prediction_log import ALIGNED, ROOMY, Consortium, some, with_changed
from tests.support.two_parties import CARD, DESCRIPTION, People, opened, people, run_two, table, write_data

NEAR = 0.005
"""Logits of shares and of the same model in floating point differ by less."""
ALL = {"what_if": True, "reasons": True}
HOURS = 'name = "hours", kind = "number", low = 0, high = 1'
THREE = DESCRIPTION.replace('"0", "1"] } ]', '"0", "1", "2"] } ]').replace(HOURS, f"{HOURS}, missing = true")
UNEVEN = {"lambdas": [0.05], "take_lambda": 0.05, "predictions": 200}
"""So little consistency that some decisions change with the group."""
BOTH = CARD.replace('edu = { role = "N"', 'edu = { role = "M"')
"""Mediators: hours and edu."""


def of_three_groups(count: int, seed: int, prefix: str = "p") -> People:
    """`hours` follows from s with three groups, and is missing for some; `edu` follows from s, too."""
    rows, rng = people(count, seed, prefix), np.random.default_rng(seed + 100)
    s = rng.integers(0, 3, count)
    hours = np.clip(0.2 + 0.25 * s + 0.15 * rng.normal(size=count), 0, 1).round(6)
    edu = np.array(list("abc"))[np.where(rng.random(count) < 0.5, s, rng.integers(0, 3, count))]
    score = 2 * (rows["amount"] - 0.5) + 5 * (hours - 0.5) + 0.8 * (edu == "c") + 0.5 * rng.logistic(size=count)
    hours_cells = hours.astype(object)
    hours_cells[rng.random(count) < 0.15 + 0.2 * (s == 2)] = ""
    return {**rows, "s": s, "hours": hours_cells, "edu": edu, "y": (score > 0).astype(int)}


@pytest.fixture(autouse=True)
def same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The uniform number of a draw depends on nothing but the draw and the feature, so rows may be in any order."""
    honest = table_generator.stream

    def drawn(seed: int, *labels: str | int) -> Any:
        feature, draw = labels[1:3]
        return SimpleNamespace(random=lambda size: np.full(size, honest(0, feature, draw).random()))

    monkeypatch.setattr(table_generator, "stream", drawn)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("three")
    base = {"dataset": str(write_data(home, of_three_groups(600, 8), THREE, BOTH)), "card": str(home / "card.toml")}
    run_two(TrainJob, home / "run", {**base, **ROOMY, **UNEVEN, "align": "exact"})
    return home


class Plain:
    """The model with its weights put together, at somebody who has the columns of all parties."""

    def __init__(self, home: Path) -> None:
        self.schema = own_schema(home / "own.toml")
        self.models = [load_model(home / f"run/party-{rank}/model", self.schema.layouts[rank]) for rank in range(2)]
        self.roles = Roles(dict(self.models[0].roles), self.models[0].proxies)
        self.weight, self.bias = (combined([getattr(m, name) for m in self.models]) for name in ("weight", "bias"))
        self.new = [
            read_new_records(home / f"new-{rank}.csv", self.schema, rank, uses_s=False, what_if=True)
            for rank in range(2)
        ]
        self.ids, self.groups = self.new[0].ids, self.new[1].groups

    def logits(self, inputs: list[np.ndarray]) -> np.ndarray:
        encoded = [model.encoder(one) for model, one in zip(self.models, inputs, strict=True)]
        values: np.ndarray = (np.hstack(encoded) @ self.weight + self.bias)[:, 0]
        return values

    def others(self) -> tuple[np.ndarray, np.ndarray]:
        """Decisions in every group, by name (records x groups), and whether no copy is near the border."""
        plain, count = [one.party.inputs for one in self.new], len(self.schema.protected[0].groups)
        decisions, clear = np.zeros((len(self.ids), count), int), np.ones(len(self.ids), bool)
        for row, own in enumerate(self.groups):
            one = [inputs[[row]] for inputs in plain]
            for target in range(count):
                votes = []
                for draw in range(DRAWS):
                    moved = [
                        model.generators(new.party)["s"](cells, int(own), np.array([target]), draw)
                        for model, new, cells in zip(self.models, self.new, one, strict=True)
                    ]
                    votes.append(self.logits(one if target == own else moved)[0])
                clear[row] &= np.abs(votes).min() > NEAR
                decisions[row, target] = int((np.array(votes) > 0).sum() > DRAWS / 2)
        return decisions, clear

    def reasons(self) -> tuple[list[set[str]], list[set[str]], np.ndarray]:
        """The columns that raise a logit most, those that lower it most, and where no other set is near."""
        parts, at = [], 0
        for model, new in zip(self.models, self.new, strict=True):
            encoded = model.encoder(new.party.inputs)
            for name in new.party.layout.names:
                alone = np.zeros(len(model.encoder.mean), bool)
                changed = new.party.inputs.copy()
                block = next(b for b in new.party.layout.blocks if b.feature.name == name)
                changed[:, block.columns] = (changed[:, block.columns] + 0.37) % 1.1
                alone = (model.encoder(changed) != encoded).any(axis=0)
                parts.append((encoded * alone) @ self.weight[at : at + encoded.shape[1], 0])
            at += encoded.shape[1]
        values, names = np.column_stack(parts), [n for new in self.new for n in new.party.layout.names]
        found: list[list[set[str]]] = []
        clear = (np.abs(values) > NEAR).all(axis=1)
        clear &= np.diff(np.sort(values, axis=1), axis=1).min(axis=1) > NEAR
        for sign in (1, -1):
            order = np.argsort(-sign * values, axis=1)[:, :TOP]
            found.append([{names[c] for c in row if sign * v[c] > 0} for row, v in zip(order, values, strict=True)])
        return found[0], found[1], clear


def by_name(text: str) -> set[str]:
    return {name for name in text.split(", ") if name}


@pytest.mark.parametrize("align", ALIGNED)
def test_answers_are_those_of_a_plain_recomputation_with_the_same_draws(
    three: Path, tmp_path: Path, align: str
) -> None:
    """Three groups, missing numbers. The holder of s receives, so groups are named; the control never moves."""
    one, new = Consortium(three, tmp_path, align), of_three_groups(60, 1, "n")
    one.ask(new, new, receiver=1, **ALL)
    plain, rows = Plain(tmp_path), table(one.out / "party-1" / "predictions.csv")
    decisions, clear = plain.others()
    assert clear.mean() > 0.8 and (rows.keys() == set(plain.ids.tolist()))
    for at, name in enumerate(plain.ids):
        shown = [int(rows[name][f"decision as {group}"]) for group in range(3)]
        assert shown[plain.groups[at]] == int(rows[name]["decision"])
        assert not clear[at] or shown == decisions[at].tolist(), name
    moved = decisions != decisions[np.arange(60), plain.groups][:, None]
    assert moved[clear].any(axis=1).mean() > 0.1, "for some people the decision is another one"
    raises, lowers, clear = plain.reasons()
    assert clear.mean() > 0.5
    for at in np.flatnonzero(clear):
        row = rows[plain.ids[at]]
        sides = by_name(row["weighs most for it"]), by_name(row["weighs most against it"])
        assert sides == ((raises[at], lowers[at]) if row["decision"] == "1" else (lowers[at], raises[at]))
        assert "change through" in row["certificate"], "the certificate comes with it"


def test_without_s_the_receiver_reads_no_group(three: Path, tmp_path: Path) -> None:
    """The columns count from the person's own group, which the bank does not know."""
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(40, 2, "n")
    one.ask(new, new, what_if=True)
    plain, titles = Plain(tmp_path), [f"decision in another group ({step} of 2)" for step in (1, 2)]
    decisions, clear = plain.others()
    assert "decision as" not in (one.out / "party-0" / "predictions.csv").read_text()
    for at in np.flatnonzero(clear):
        shown = [int(one.predictions[plain.ids[at]][title]) for title in titles]
        assert shown == [decisions[at, (plain.groups[at] + step) % 3] for step in (1, 2)]
    assert not (one.out / "party-1" / "predictions.csv").exists()


def test_the_receiver_alone_gets_what_is_declared_and_nothing_else_is_opened(three: Path, tmp_path: Path) -> None:
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(10, 3, "n")
    one.ask(new, new, **ALL)
    lines = read_chain(one.out / "party-0" / "releases.jsonl")
    everyone = {entry["release"] for entry in lines if entry["receivers"] != [0]}
    shapes = {entry["release"]: entry["shape"] for entry in lines if entry["receivers"] == [0]}
    assert everyone == {"alignment", "columns"}
    assert shapes == {
        PREDICTIONS.name: [10, 2],
        OTHER_GROUPS.name: [10, 2],
        REASON_NAMES.name: [10, 4],
        REFUSED_RECORDS.name: [10],
    }
    one.ask(new, new)
    assert {OTHER_GROUPS.name, REASON_NAMES.name}.isdisjoint(opened(one.out)), "only if it is asked for"


@pytest.mark.parametrize("align", ALIGNED)
def test_asking_again_returns_the_recorded_answer(three: Path, tmp_path: Path, align: str) -> None:
    one, new = Consortium(three, tmp_path, align), of_three_groups(20, 4, "n")
    first = some(new, slice(0, 12))
    one.ask(first, first, **ALL)
    answers = one.predictions
    one.ask(new, new)
    assert {n: row["decision"] for n, row in one.predictions.items() if n in answers} == {
        n: row["decision"] for n, row in answers.items()
    }, "of an answer with all parts the decision is taken, and s need not be given"
    results = one.ask(new, new, **ALL)
    assert one.predictions == answers and results[0]["on_record"] == 20
    assert set(one.why().values()) == {LACKS["certificate"]} and len(one.why()) == 8
    one.ask(first, first, reasons=True)
    assert {n: row["weighs most for it"] for n, row in one.predictions.items()} == {
        n: row["weighs most for it"] for n, row in answers.items()
    }, "some of the parts"


def test_another_group_of_the_same_person_is_refused(three: Path, tmp_path: Path) -> None:
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(6, 5, "n")
    one.ask(new, new, what_if=True)
    other = with_changed(new, 2, s=(int(new["s"][2]) + 1) % 3)
    one.ask(new, other, what_if=True)
    assert one.why() == {"n2": ELSEWHERE} and one.why(1) == {"n2": CHANGED} and len(one.predictions) == 5
    one.ask(new, other)
    assert len(one.predictions) == 6, "decisions do not use s"


@pytest.mark.parametrize(("first", "then"), [("reasons", "what_if"), ("what_if", "reasons")])
def test_a_part_is_not_opened_after_an_answer_without_it(three: Path, tmp_path: Path, first: str, then: str) -> None:
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(4, 6, "n")
    one.ask(new, new, **{first: True, "certified": True})
    one.ask(new, new, **{then: True, "certified": True})
    assert one.predictions == {} and set(one.why().values()) == {LACKS[then.replace("_", "-")]}


def test_a_person_counts_once_with_all_that_is_opened(three: Path, tmp_path: Path) -> None:
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(7, 7, "n")
    assert {result["on_record"] for result in one.ask(new, new, **ALL)} == {7}


def test_records_without_a_group_are_refused_and_a_file_without_the_column_is_one_line(
    three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(5, 9, "n")
    one.ask(new, with_changed(new, 1, s="7"), what_if=True)
    assert one.why() == {"n1": ELSEWHERE} and "not among" in one.why(1)["n1"] and len(one.predictions) == 4
    monkeypatch.setattr("tests.contract.test_prediction_log.CLINIC", ("hours", "edu"))
    with pytest.raises(DataError, match=r"^what-if needs s: new-1\.csv has no column 's', which clinic needs$"):
        one.ask(new, new, what_if=True)


def test_draws_are_fresh_at_every_owner(three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the row of a record in a file would choose its draws."""
    seeds, plain = [], PredictJob.own_counterfactuals

    def seen(model: Any, *rest: Any) -> Any:
        seeds.append(model.drawn_seed)
        return plain(model, *rest)

    monkeypatch.setattr(PredictJob, "own_counterfactuals", staticmethod(seen))
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(3, 10, "n")
    one.ask(new, new, what_if=True)
    more = of_three_groups(3, 11, "m")
    one.ask(more, more, what_if=True)
    assert len(set(seeds)) == 4 and min(seeds) > 2**64


def test_what_has_no_such_answer_is_refused_in_one_line() -> None:
    schema: Any = SimpleNamespace(task="regression", parties=("bank", "clinic"), label_holder=0)
    for name, given in (("what-if", {"what_if": True}), ("reasons", {"reasons": True})):
        with pytest.raises(CertificateError, match=f"^no {name}: a regression decides nothing; leave out --{name}$"):
            prediction_plan(RunOptions.of({"dataset": "german", **given}), schema)
    schema.task = "multiclass"
    with pytest.raises(CertificateError, match=r"^no reasons: they are for decisions between two classes"):
        prediction_plan(RunOptions.of({"dataset": "german", "reasons": True}), schema)
    assert RunOptions.of({"dataset": "german", "what_if": True}).session.certificate
    assert not RunOptions.of({"dataset": "german", "what_if": True, "mode": "aware"}).session.certificate
