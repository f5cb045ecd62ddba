"""What-if answers over real sessions, against a plain recomputation with the same draws; what they open to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.audit.finished_run import write_records
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.party import Party, make_parties
from secure_sccvfl.data.party_data import Schema, benchmark_schema, own_schema, pooled
from secure_sccvfl.metrics import what_if
from secure_sccvfl.metrics.exact import SecureEvaluation
from secure_sccvfl.metrics.what_if import DRAWS, TOP, majorities, strongest
from secure_sccvfl.models import table_generator
from secure_sccvfl.models.certificate import CertificateError
from secure_sccvfl.models.encoders import plain_columns
from secure_sccvfl.protocols.records.chain import read_chain
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.saving import combined
from secure_sccvfl.releases.catalogue import OTHER_GROUPS, PREDICTIONS, REASON_NAMES, REFUSED_RECORDS
from secure_sccvfl.runs.answers import LACKS
from secure_sccvfl.runs.model_files import load_model
from secure_sccvfl.runs.predict import CHANGED, ELSEWHERE, PredictJob, read_new_records
from secure_sccvfl.runs.scoring import prediction_plan
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes.options import RunOptions
from tests.contract.test_prediction_log import ALIGNED, ROOMY, Consortium, some, with_changed
from tests.contract.test_secure_run import PARTIES, run_jobs
from tests.support.aware_card import write_card
from tests.support.sessions import results, run_session
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
    """A model with its weights put together, at somebody who has the columns of all parties and s."""

    def __init__(self, schema: Schema, run: Path, inputs: Sequence[np.ndarray], groups: np.ndarray) -> None:
        self.schema, self.inputs, self.groups = schema, inputs, groups
        layouts = schema.layouts
        self.models = [load_model(run / f"party-{rank}" / "model", layouts[rank]) for rank in layouts]
        self.weight, self.bias = (combined([getattr(m, name) for m in self.models]) for name in ("weight", "bias"))
        parties = [Party(rank, "", layouts[rank], inputs[rank]) for rank in layouts]
        name = schema.protected[0].name
        self.generators = [model.generators(party)[name] for model, party in zip(self.models, parties, strict=True)]

    @classmethod
    def of_two(cls, home: Path) -> tuple[Plain, list[str]]:
        """Of the records that a consortium of two was last asked for, and their ids."""
        schema = own_schema(home / "own.toml")
        new = [
            read_new_records(home / f"new-{rank}.csv", schema, rank, uses_s=False, what_if=True) for rank in range(2)
        ]
        assert new[1].groups is not None
        plain = cls(schema, home / "run", [one.party.inputs for one in new], new[1].groups)
        return plain, new[0].ids.tolist()

    def logits(self, inputs: Sequence[np.ndarray], group: int) -> np.ndarray:
        """Of records of a group, which models that use s need."""
        layouts, parts = self.schema.layouts, []
        for rank, (model, one) in enumerate(zip(self.models, inputs, strict=True)):
            aware = model.aware is not None
            parts.append(
                model.aware_encoders(layouts[rank])[rank](one, group) if aware else np.asarray(model.encoder(one))
            )
        encoded = np.hstack(parts)
        if self.models[0].module is None:
            return (encoded @ self.weight + self.bias)[:, 0]
        layers = {name: combined([m.layers[name] for m in self.models]) for name in self.models[0].layers}
        hidden = np.maximum(encoded @ layers["0.weight"].T + layers["0.bias"], 0)
        return (hidden @ layers["2.weight"].T + layers["2.bias"])[:, 0]

    def votes(self) -> np.ndarray:
        """Logits in every group (records x groups x draws)."""
        count = len(self.schema.protected[0].groups)
        votes = np.zeros((len(self.groups), count, DRAWS))
        for own, target, draw in product(range(count), range(count), range(DRAWS)):
            rows = self.groups == own
            cells, to = [inputs[rows] for inputs in self.inputs], np.full(rows.sum(), target)
            if target != own:
                cells = [g(one, own, to, draw) for g, one in zip(self.generators, cells, strict=True)]
            votes[rows, target, draw] = self.logits(cells, target)
        return votes

    def decisions(self) -> tuple[np.ndarray, np.ndarray]:
        """Decisions in every group (records x groups), and which records have no copy near the border."""
        votes = self.votes()
        return ((votes > 0).sum(axis=2) > DRAWS / 2).astype(int), (np.abs(votes) > NEAR).all(axis=(1, 2))

    def reasons(self) -> tuple[list[set[str]], list[set[str]], np.ndarray]:
        """The columns that raise a logit most, those that lower it most, and where no other set is near."""
        encoded = np.hstack([model.encoder(one) for model, one in zip(self.models, self.inputs, strict=True)])
        blocks = [block for layout in self.schema.layouts.values() for block in layout.blocks]
        ends = np.cumsum([plain_columns(block) for block in blocks])
        parts = np.split(encoded * self.weight[:, 0], ends[:-1], axis=1)
        values, names = np.column_stack([part.sum(axis=1) for part in parts]), [b.feature.name for b in blocks]
        clear = (np.abs(values) > NEAR).all(axis=1) & (np.diff(np.sort(values, axis=1), axis=1).min(axis=1) > NEAR)
        sides = []
        for sign in (1, -1):
            order = np.argsort(-sign * values, axis=1)[:, :TOP]
            sides.append([{names[c] for c in row if sign * v[c] > 0} for row, v in zip(order, values, strict=True)])
        return sides[0], sides[1], clear


def by_name(text: str) -> set[str]:
    return {name for name in text.split(", ") if name}


@pytest.mark.parametrize("align", ALIGNED)
def test_answers_are_those_of_a_plain_recomputation_with_the_same_draws(
    three: Path, tmp_path: Path, align: str
) -> None:
    """Three groups, missing numbers. The holder of s receives, so groups are named. Some decisions change."""
    one, new = Consortium(three, tmp_path, align), of_three_groups(60, 1, "n")
    one.ask(new, new, receiver=1, **ALL)
    (plain, ids), answers = Plain.of_two(tmp_path), table(one.out / "party-1" / "predictions.csv")
    rows = [answers[name] for name in ids]
    check_decisions(plain, rows, 0.1)
    raises, lowers, clear = plain.reasons()
    assert len(rows) == 60 and clear.mean() > 0.5
    for at in np.flatnonzero(clear):
        sides = by_name(rows[at]["weighs most for it"]), by_name(rows[at]["weighs most against it"])
        assert sides == ((raises[at], lowers[at]) if rows[at]["decision"] == "1" else (lowers[at], raises[at]))
    assert all("change through" in row["certificate"] for row in rows), "the certificate comes with it"


def check_decisions(plain: Plain, rows: Sequence[Mapping[str, str]], moved: float) -> None:
    """All decisions of clear records are those of the plain model; at least the share `moved` have several."""
    decisions, clear = plain.decisions()
    groups, classes = plain.schema.protected[0].groups, plain.schema.classes
    shown = np.array([[classes.index(row[f"decision as {group}"]) for group in groups] for row in rows])
    first = np.array([classes.index(row["decision"]) for row in rows])
    assert (shown[np.arange(len(rows)), plain.groups] == first).all(), "in the own group it is the decision"
    assert clear.mean() > 0.8 and np.array_equal(shown[clear], decisions[clear])
    assert (shown[clear] != first[clear, None]).any(axis=1).mean() >= moved, "for some people it is another one"


GERMAN: dict[str, dict[str, Any]] = {
    "sealed": {"take_lambda": 0.0, "lambdas": [0.0]},
    "aware": {"mode": "aware"},
    "mlp": {"private_model": False, "head": "mlp", "hidden": 6, "steps": 30, "take_lambda": 0.0},
}


@pytest.mark.parametrize("kind", GERMAN)
def test_so_are_answers_of_three_parties_and_of_models_that_use_s_or_are_networks(tmp_path: Path, kind: str) -> None:
    data, model, rows = pooled("german", PARTIES), tmp_path / "model", np.arange(200)
    card = {"card": str(write_card(tmp_path / "card.toml"))}
    run_jobs(TrainJob, model, {"seed": 0, "refreshes": 0, **card, **GERMAN[kind]})
    write_records(data, rows, tmp_path / "new.csv")
    schema, inputs = benchmark_schema(data), [party.inputs[rows] for party in make_parties(data)]
    (holder,) = schema.group_holders
    asked = {"model": str(model), "records": str(tmp_path / "new.csv"), "what_if": True, "receiver": holder}
    if kind != "sealed":
        with pytest.raises(CertificateError, match=r"^no certificate: .*; use --no-certificate$"):
            run_jobs(PredictJob, tmp_path / "asked", asked)
        asked["certified"] = False
    run_jobs(PredictJob, tmp_path / "asked", asked)
    answers = table(tmp_path / "asked" / f"party-{holder}" / "predictions.csv")
    plain = Plain(schema, model, inputs, data.protected[0].codes[rows])
    check_decisions(plain, [answers[name] for name in data.ids[rows]], 1 / 200)


def test_a_regression_gives_the_holder_of_s_the_mean_of_all_draws_in_every_group(tmp_path: Path) -> None:
    rows = people(500, 4)
    rows["y"] = np.clip(0.3 * rows["amount"] + 0.5 * rows["hours"], 0, 1).round(6)
    label = 'column = "y", low = 0, high = 1 }'
    text = DESCRIPTION.replace('column = "y", classes = ["0", "1"] }', label).replace('"binary"', '"regression"')
    home, there = tmp_path / "home", tmp_path / "there"
    base = {"dataset": str(write_data(home, rows, text)), "card": str(home / "card.toml")}
    run_two(TrainJob, home / "run", {**base, **ROOMY, **UNEVEN, "align": "exact"})
    one, new = Consortium(home, there, "exact"), people(30, 5, "n")
    one.ask(new, new, what_if=True, certified=False, receiver=1)
    (plain, ids), answers = Plain.of_two(there), table(one.out / "party-1" / "predictions.csv")
    means, groups = plain.votes().mean(axis=2), plain.schema.protected[0].groups
    shown = np.array([[float(answers[name][f"decision as {group}"]) for group in groups] for name in ids])
    assert np.abs(shown - means).max() < NEAR and np.abs(means[:, 0] - means[:, 1]).min() > 4 * NEAR
    own = [float(answers[name]["prediction"]) for name in ids]
    assert own == shown[np.arange(len(ids)), plain.groups].tolist(), "in the own group it is the prediction"


def test_without_s_the_receiver_reads_no_group(three: Path, tmp_path: Path) -> None:
    """The columns count from the person's own group, which the bank does not know."""
    one, new = Consortium(three, tmp_path, "exact"), of_three_groups(40, 2, "n")
    one.ask(new, new, what_if=True)
    (plain, ids), titles = Plain.of_two(tmp_path), [f"decision in another group ({step} of 2)" for step in (1, 2)]
    decisions, clear = plain.decisions()
    assert "decision as" not in (one.out / "party-0" / "predictions.csv").read_text()
    rows = [one.predictions[name] for name in ids]
    for at in np.flatnonzero(clear):
        shown = [int(rows[at][title]) for title in titles]
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
    schema: Any = SimpleNamespace(task="regression", parties=("bank", "clinic"), label_holder=0, group_holders=(1,))
    for name, given in (("certificate", {"certified": True}), ("reasons", {"reasons": True})):
        with pytest.raises(CertificateError, match=f"^no {name}: a regression decides nothing; use --no-{name}$"):
            prediction_plan(RunOptions.of({"dataset": "german", **given}), schema)
    own = {"dataset": "own.toml", "what_if": True, "certified": False}
    with pytest.raises(CertificateError, match=r"^no what-if: .* only the holder of s may .*: use --receiver 1$"):
        prediction_plan(RunOptions.of(own), schema)
    schema.task = "multiclass"
    with pytest.raises(CertificateError, match=r"^no reasons: they are for decisions between two classes"):
        prediction_plan(RunOptions.of({"dataset": "german", "reasons": True}), schema)
    assert RunOptions.of({"dataset": "german", "what_if": True}).session.certificate
    assert not RunOptions.of({"dataset": "german", "what_if": True, "mode": "aware"}).session.certificate


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_majority_of_draws_decides_and_of_equal_votes_the_first_class(outputs: int) -> None:
    rows, steps = 50, 2
    drawn = np.random.default_rng(0).integers(0, max(outputs, 2), (steps, DRAWS, rows))
    bits = drawn[..., None] if outputs == 1 else np.eye(outputs)[drawn]
    votes = bits.sum(axis=1)
    if outputs == 1:
        expected = (votes[..., 0] > DRAWS / 2)[..., None].astype(float)
    else:
        expected = np.eye(outputs)[votes.argmax(axis=2)]
        assert (np.sort(votes, axis=2)[..., -1] == np.sort(votes, axis=2)[..., -2]).any(), "some votes are equal"

    def job(session: Session) -> Any:
        shared = session.share(bits.reshape(-1, outputs), owner=0, shape=(bits.size // outputs, outputs), bits=0)
        evaluation = SecureEvaluation(session, "binary" if outputs == 1 else "multiclass", 0, 0)
        return np.asarray(session.open(majorities(evaluation, shared, rows)[0], session.declared("result 2")))

    opened_bits = run_session(job, 2, ReleasePlan(results(2).values()))[0]
    assert np.array_equal(opened_bits, np.concatenate(expected, axis=1))


@pytest.mark.parametrize("columns", [1, 3, 8])
def test_the_strongest_columns_are_those_in_plaintext_ties_and_zeros_included(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "_COMPARED", 300)  # several slices
    values = np.random.default_rng(columns).integers(-4, 5, (60, columns)) * 2.0**-16
    expected = np.zeros(values.shape)
    for row, one in enumerate(values):
        for at in range(columns):
            more = sum(one[other] > one[at] or (one[other] == one[at] and other < at) for other in range(columns))
            less = columns - 1 - more
            expected[row, at] = (one[at] > 0 and more < TOP) * 1.0 - (one[at] < 0 and less < TOP) * 1.0

    def job(session: Session) -> Any:
        shared = session.share(values, owner=1, shape=values.shape)
        return np.asarray(session.open(strongest(session, shared), session.declared("result 2")))

    assert np.array_equal(run_session(job, 2, ReleasePlan(results(2).values()))[0], expected)
    assert {-1, 0, 1} <= set(expected.ravel().tolist()) and np.abs(expected).sum(axis=1).max() == min(
        columns, 2 * TOP
    )
