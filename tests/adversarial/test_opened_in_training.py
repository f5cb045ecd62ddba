"""What a training opens and announces, in two worlds: the same ids and the same released tables, other records.

All that a private training tells must follow from charged tables, from public things, or from the private head. So if
the tables are kept and every record is another one (x, y and s), every opened and announced value is the same, bit by
bit. The head itself is not opened.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party_data import own_part
from secure_sccvfl.models.encoders import public_encoder
from secure_sccvfl.models.generators import FITTED, GENERATORS, GeneratorConfig, make_generator
from secure_sccvfl.models.table_gram import table_gram
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.runs import evaluate as scoring
from secure_sccvfl.runs.model_files import PartyModel
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.trainer import Trainer
from tests.adversarial.test_bounded_rows import FEATURES, corners, edge_tables
from tests.support.two_parties import CARD, OPTIONS, people, run_two, write_data

CHARGED = {"sketch-0", "sketch-1"}
PUBLIC = {"alignment", "features", "columns"}
"""Sizes of what the public description and the ids say."""
OF_TABLES = {
    "group sizes",
    "hsic",
    "moved-fixed",
    "moved-edited",
    "guard-length",
    "roster of guard-length",
    "roster of validity",
}
"""Computed from released tables and public things: a party is on a roster if it has columns with these roles."""
OF_THE_HEAD = {"range check"}
"""One bit: the private head is longer than its public bound, or has not settled."""
WITH_A_PROXY = CARD.replace('edu = { role = "N"', 'edu = { role = "P"')
Told = list[tuple[int, str, Any]]


def other_people(count: int, seed: int) -> dict[str, np.ndarray]:
    """The same ids, and everything else is another's."""
    drawn, turned = people(count, seed=seed + 1), people(count, seed=seed)
    return {**drawn, "id": turned["id"], "y": 1 - turned["y"], "s": turned["s"][::-1], "hours": 1 - drawn["hours"]}


def listened(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Every value that a party is told in the open: announced, opened, or an answer of yes or no."""
    seen: Told = []
    announce, collect, tell_all = Session.announce, Session.open_each, Session.tell_all

    def announced(self: Session, values: Any, release: Any) -> Any:
        values_of_all = announce(self, values, release)
        seen.append((self.rank, release.name, sorted(values_of_all.items())))
        return values_of_all

    def opened(self: Session, pairs: Any, *more: Any, **named: Any) -> Any:
        tensors = collect(self, pairs, *more, **named)
        numbers = [None if one is None else np.asarray(one).tolist() for one in tensors]
        seen.append((self.rank, ", ".join(release.name for _, release in pairs), numbers))
        return tensors

    def answered(self: Session, step: str, value: int) -> Any:
        answers = tell_all(self, step, value)
        seen.append((self.rank, step, list(answers)))
        return answers

    monkeypatch.setattr(Session, "announce", announced)
    monkeypatch.setattr(Session, "open_each", opened)
    monkeypatch.setattr(Session, "tell_all", answered)
    return seen


@pytest.fixture
def paid(tmp_path: Path) -> Path:
    """A consortium whose tables are paid for, with a reserve for one more head."""
    write_data(tmp_path / "first", people(400, seed=5))
    run(tmp_path / "first", "run", reserve=0.5)
    return tmp_path


def run(home: Path, name: str, **more: Any) -> None:
    (home / "card.toml").write_text(WITH_A_PROXY)
    options = {"dataset": str(home / "own.toml"), "card": str(home / "card.toml"), **OPTIONS, **more}
    run_two(TrainJob, home / name, options)


def told_in(world: Path, paid: Path, rows: dict[str, np.ndarray]) -> Told:
    shutil.copytree(paid / "first", world)
    write_data(world, rows)
    with pytest.MonkeyPatch.context() as patch:
        seen = listened(patch)
        run(world, "again", tables="kept")
    return sorted(seen, key=lambda one: one[0])


def test_opened_values_follow_from_records_only_through_tables_and_head(paid: Path) -> None:
    same, other = (told_in(paid / name, paid, rows) for name, rows in worlds().items())
    assert len(same) > 20 and all(alike(one, two) for one, two in zip(same, other, strict=True))
    names = {name for _, name, _ in same}
    assert {"hsic", "group sizes", "guard-length", "range check", "moved-edited"} <= names


def alike(one: tuple[int, str, Any], two: tuple[int, str, Any]) -> bool:
    """Bit by bit; squares are rounded under MPC by masks of the dealer, by far less than a record."""
    if one[1] != "hsic":
        return one == two
    return one[:2] == two[:2] and np.allclose(one[2], two[2], rtol=2e-4)


def worlds() -> dict[str, dict[str, np.ndarray]]:
    return {"same": people(400, seed=5), "other": other_people(400, seed=5)}


def test_a_value_that_follows_from_records_would_be_noticed(paid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a guard that is moved by the mean of the training rows."""
    honest = Trainer.proxy_directions

    def guards(self: Trainer, roles: Roles) -> Any:
        mean = {p.rank: float(p.with_record.inputs.mean()) for p in self.train.parties}
        return [{rank: block + 1e-2 * mean[rank] for rank, block in one.items()} for one in honest(self, roles)]

    monkeypatch.setattr(Trainer, "proxy_directions", guards)
    same, other = (told_in(paid / name, paid, rows) for name, rows in worlds().items())
    assert {one[1] for one, two in zip(same, other, strict=True) if not alike(one, two)} == {"guard-length"}


def test_every_release_of_a_training_is_named_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one must be argued for, and this test is where it is noticed."""
    seen = listened(monkeypatch)
    write_data(tmp_path / "first", people(400, seed=5))
    run(tmp_path / "first", "run")
    answers = {"is the name of the run new", "key of records", "statistic input", "budget", "charges of the head"}
    names = {part.partition(" for party")[0] for _, name, _ in seen for part in name.split(", ")}
    assert names == CHARGED | PUBLIC | OF_TABLES | OF_THE_HEAD | answers


@pytest.mark.parametrize("kind", sorted(set(GENERATORS.names) - set(FITTED)))
def test_the_penalty_follows_from_tables_whatever_the_own_rows_are(kind: str) -> None:
    """Generators are handed the party's training rows; only those that a private head refuses may look at them."""
    layout, roles, rng = Layout.of(FEATURES), Roles({f.name: "M" for f in FEATURES}), np.random.default_rng(0)
    noisy_tables, config = edge_tables(rng), GeneratorConfig(kind=kind)
    rows = corners()
    grams = [
        table_gram(
            layout,
            make_generator(layout, noisy_tables.tables, noisy_tables.deviation, roles, config, 0, inputs),
            public_encoder(layout),
            set(layout.names),
            2,
        )
        for inputs in (rows, rows[:7] * 0.3)
    ]
    assert np.array_equal(grams[0].vectors, grams[1].vectors) and np.array_equal(grams[0].within, grams[1].within)
    assert np.linalg.eigvalsh(grams[0].vectors.T @ grams[0].vectors + grams[0].within).min() > -1e-12


@pytest.mark.parametrize("kind", FITTED)
def test_generators_that_look_at_rows_are_refused_with_a_private_head(kind: str) -> None:
    with pytest.raises(ValueError, match="is fitted to records: a private head needs another"):
        TrainConfig(private=True, generator=GeneratorConfig(kind=kind))


def edits_of_an_evaluation(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """What an evaluation adds to the encodings of test records, at both parties: under the generator and its null."""
    seen: dict[int, np.ndarray] = {}
    honest = scoring.below_each_other

    def below(by_control: Any) -> Any:
        ((rank, _),) = next(iter(next(iter(by_control[0])))).items()
        seen[rank] = np.array([[[block[rank] for block in draw] for draw in by_draw] for by_draw in by_control])
        return honest(by_control)

    monkeypatch.setattr(scoring, "below_each_other", below)
    options = {"dataset": str(home / "own.toml"), "card": str(home / "card.toml"), **OPTIONS}
    run_two(scoring.EvaluateJob, home / "evaluation", {**options, "model": str(home / "run")})
    return [seen[0], seen[1]]


@pytest.mark.parametrize("breaks", [False, True], ids=["as it is", "control"])
def test_edits_of_an_evaluation_follow_from_released_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    """Figures are charged to test records. The null control once took tables of the exact training rows."""
    rows = people(400, seed=5)
    write_data(tmp_path / "first", rows)
    run(tmp_path / "first", "run")
    if breaks:
        honest = PartyModel.generators

        def generators(self: PartyModel, trained: Any) -> Any:
            counts = {name: bins.sum(axis=0)[:, None] for name, bins in trained.bins().items()}
            moved = [
                replace(s, tables={k: v + counts[k] * [1, 0] for k, v in s.tables.items()}) for s in self.noisy_tables
            ]
            return honest(replace(self, noisy_tables=tuple(moved)), trained)

        monkeypatch.setattr(PartyModel, "generators", generators)
    held = own_part(tmp_path / "first" / "own.toml", 0, 0)
    test = np.isin(rows["id"], held.ids[held.split.test])
    changes = []
    for world in ("same", "other"):
        shutil.copytree(tmp_path / "first", tmp_path / world)
        others = other_people(400, seed=5) if world == "other" else rows
        write_data(tmp_path / world, {name: np.where(test, rows[name], others[name]) for name in rows})
        (tmp_path / world / "card.toml").write_text(WITH_A_PROXY)
        changes.append(edits_of_an_evaluation(tmp_path / world, monkeypatch))
    assert changes[0][1].shape[0] == 2 and np.abs(changes[0][1]).max() > 0, "edits and their null control"
    assert all(np.array_equal(one, two) for one, two in zip(*changes, strict=True)) is not breaks
