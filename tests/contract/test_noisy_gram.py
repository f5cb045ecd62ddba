"""The noisy Gram matrix of records' edits, on both engines and in whole runs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.methods import train_plainly
from secure_sccvfl.models.encoders import edit_radius, public_encoder
from secure_sccvfl.models.generators import GeneratorConfig, make_generator
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.operations import noise as noise_of_shares
from secure_sccvfl.protocols.records.releases import Receipt, Release, ReleasePlan
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.releases.catalogue import GRAM
from secure_sccvfl.releases.mechanisms import GramNoise, gram_sensitivity, released_root
from secure_sccvfl.releases.noise import GaussianNoise
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training import trainer
from secure_sccvfl.training.modes.base import mode_plan, spread_of
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.secure import SecureEngine
from tests.adversarial.test_resumed_heads import interrupted, resumed
from tests.contract.engines import Problem
from tests.contract.test_private_head import OPTIONS, Charged, plain_head, shared_heads
from tests.support.sessions import run_session, stopping
from tests.support.two_parties import OPTIONS as TWO
from tests.support.two_parties import ledger_lines, people, run_two, write_data

WIDTHS, ROWS = (3, 2, 4), 50
RECORDS = {"consistency_from": "records"}
MOVING = {0: np.array([True, False, True]), 1: np.array([False, False]), 2: np.array([True, True, False, True])}
COLUMNS = np.flatnonzero(np.concatenate(list(MOVING.values())))


def problem() -> Problem:
    """Two protected attributes of three groups, two draws each, in the columns that edits reach."""
    first = Problem(WIDTHS, rows=ROWS, seed=8)
    second = Problem(WIDTHS, rows=ROWS, seed=9)
    for one in (first, second):
        one.deltas = [[{k: v * MOVING[k] for k, v in blocks.items()} for blocks in draw] for draw in one.deltas]
    first.more = second.deltas, second.s
    return first


def exact(whole: Problem) -> np.ndarray:
    """The sum over records, draws and attributes, of edits that are rounded to 16 bits."""
    total = np.zeros((sum(WIDTHS),) * 2)
    for deltas, groups in ((whole.deltas, whole.s), whole.more):
        for draw in deltas:
            by_group = np.stack([np.hstack([blocks[rank] for rank in range(3)]) for blocks in draw])
            selected = np.rint(by_group[groups, np.arange(ROWS)] * 2**16) / 2**16
            total += selected.T @ selected
    return total


def opened(sigma: float) -> list[np.ndarray]:
    """At every party of a session."""
    whole = problem()

    def job(session: Any) -> np.ndarray:
        rank = session.rank
        engine = SecureEngine(session, 0, [2, 1])
        engine.widths = WIDTHS
        deltas = [
            [[{rank: blocks[rank]} for blocks in draw] for draw in part] for part in (whole.deltas, whole.more[0])
        ]
        groups = [whole.s if rank == 2 else None, whole.more[1] if rank == 1 else None]
        paid = GramNoise(sigma, "dealer", Receipt("gram", "a charge"))
        return engine.noisy_gram(deltas, groups, MOVING, None, lambda: paid)

    plan = ReleasePlan([Release(GRAM.name, (0, 1, 2), (len(COLUMNS),) * 2, "test", "gram")])
    return run_session(job, 3, plan)


def test_without_noise_it_is_the_exact_sum_on_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = problem()
    with monkeypatch.context() as patch:
        patch.setattr(
            noise_of_shares, "noise_share", lambda party, kind, sigma, rows, holders: party.zero_share((rows, rows))
        )
        for gram in opened(1.0):
            assert np.array_equal(gram, exact(whole))
    given = [whole.deltas, whole.more[0]], [whole.s, whole.more[1]], MOVING, None
    plain = PlainEngine().noisy_gram(*given, lambda: GramNoise(0.0))
    assert np.abs(plain - exact(whole)).max() < 1e-2
    # The control: noise is added in the columns that edits reach, and only there.
    for gram in (*opened(5.0), PlainEngine().noisy_gram(*given, lambda: GramNoise(5.0))):
        off = gram - exact(whole)
        assert (np.abs(off[np.ix_(COLUMNS, COLUMNS)]) > 1e-6).all()
        off[np.ix_(COLUMNS, COLUMNS)] = 0
        assert not off.any()


def test_what_is_used_is_positive_semidefinite_and_the_same_without_noise() -> None:
    rng = np.random.default_rng(0)
    changes = rng.uniform(-0.5, 0.5, (200, 12))
    mean = changes.T @ changes / 200
    root = released_root(mean)
    assert np.abs(root.T @ root - mean).max() < 1e-12
    for size in (0.01, 1.0, 100.0):
        root = released_root(mean + rng.normal(0, size, mean.shape))
        used = root.T @ root
        assert np.diag(used).max() <= 1 + 1e-12 and np.linalg.eigvalsh(used).min() > -1e-12
    assert not released_root(-mean).any(), "negative eigenvalues are noise"
    flipped = np.eye(12)[rng.permutation(12)] * rng.choice([-1, 1], 12)
    turned = released_root(flipped @ mean @ flipped.T)
    assert np.abs(turned - flipped @ released_root(mean) @ flipped.T).max() < 1e-12, "no choice of eigenvectors"


# how far a record moves it

FEATURES = (
    Feature("hours", "number", low=0.0, high=10.0),
    Feature("gap", "number", low=0.0, high=10.0, missing=True),
    Feature("kind", "category", categories=("a", "b", "c")),
)
LAYOUT = Layout.of(FEATURES)
ROLES = Roles({"hours": "M", "gap": "M", "kind": "M"})


def records() -> np.ndarray:
    """Ends and middles of numbers, a gap, every category."""
    numbers = [0.0, 1e-6, 0.3, 0.5, 1.0]
    rows = [[a, b, 0.0, *kind] for a in numbers for b in numbers for kind in np.eye(3)]
    return np.array(rows + [[a, 0.0, 1.0, *kind] for a in numbers for kind in np.eye(3)])


@pytest.mark.parametrize("kind", ["minimal", "moments"])
def test_no_edit_is_longer_than_the_public_bound(kind: str) -> None:
    """Under tables at the edge, which noise may make. The longest edit of all kinds has the length of the bound."""
    encoder, longest, inputs = public_encoder(LAYOUT), 0.0, records()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        tables = {
            f.name: np.abs(rng.normal(0, 50, (f.bins, 2))) * rng.choice([0.0, 1.0], (f.bins, 2)) for f in FEATURES
        }
        for feature in FEATURES if seed == 0 else ():  # all of one group in the first bin, of the other in the last
            tables[feature.name] = np.zeros((feature.bins, 2))
            last = feature.bins - 1 - (feature.kind == "number" and feature.missing)
            tables[feature.name][[0, last], [0, 1]] = 1e6
        generator = make_generator(LAYOUT, tables, 1e-3, ROLES, GeneratorConfig(kind), seed, inputs)
        for source in (0, 1):
            moved = encoder(generator(inputs, source, np.full(len(inputs), 1 - source), 0)) - encoder(inputs)
            longest = max(longest, float(np.sqrt((moved**2).sum(axis=1)).max()))
    bound = edit_radius(LAYOUT, ROLES.edited)
    assert longest <= bound + 1e-12
    assert longest > 0.85 * bound, "the bound is not loose"


def test_a_replaced_record_moves_no_more_than_is_charged() -> None:
    rng, count, columns = np.random.default_rng(1), 3, 6
    moved = gram_sensitivity([1.0, 2.0], columns, count, 100)
    length, worst = np.sqrt(5), 0.0
    for _ in range(300):
        record, other = rng.normal(size=(2, count, columns))
        record, other = (length * one / np.linalg.norm(one, axis=1, keepdims=True) for one in (record, other))
        contributions = [sum(np.outer(d, d) for d in np.rint(one * 2**16) / 2**16) for one in (record, other)]
        assert np.linalg.norm(contributions[0]) <= moved.added
        worst = max(worst, np.linalg.norm(contributions[0] - contributions[1]))
    along = [count * length**2 * np.diag(np.eye(columns)[k]) for k in (0, 1)]
    assert worst <= moved.replaced and np.linalg.norm(along[0] - along[1]) == pytest.approx(moved.replaced, rel=1e-4)


# whole runs


def plain_run(data: Dataset | None = None, **changes: Any) -> tuple[Any, GaussianNoise]:
    options = RunOptions.of({"dataset": "acs12-gender", "card": "shipped", **RECORDS, **changes})
    data = load(options.data.dataset) if data is None else data
    split, parties = make_split(data, "iid", 700), make_parties(data)
    card, budget = options.policy(), options.simulated_budget(len(parties))
    return train_plainly(data, split, parties, options.train_config(), budget, 700, card=card)


@dataclass
class Seen:
    """What the plaintext engine was given for the matrix, and what became of it."""

    lengths: dict[int, float] = field(default_factory=dict)
    exact: list[np.ndarray] = field(default_factory=list)
    used: list[np.ndarray] = field(default_factory=list)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    watched_values, noisy_gram, released = Seen(), PlainEngine.noisy_gram, trainer.released_root

    def watched(self: Any, deltas: Any, groups: Any, *more: Any) -> np.ndarray:
        for rank, block in (pair for draw in deltas[0] for blocks in draw for pair in blocks.items()):
            longest = float(np.sqrt((block**2).sum(axis=1)).max())
            watched_values.lengths[rank] = max(longest, watched_values.lengths.get(rank, 0.0))
        watched_values.exact.append(self.counterfactuals(deltas[0], groups[0]).gram)
        return noisy_gram(self, deltas, groups, *more)

    def root(mean: np.ndarray) -> np.ndarray:
        released_matrix = released(mean)
        watched_values.used.append(released_matrix.T @ released_matrix)
        return released_matrix

    monkeypatch.setattr(PlainEngine, "noisy_gram", watched)
    monkeypatch.setattr(trainer, "released_root", root)
    return watched_values


def test_owners_shorten_edits_to_what_is_charged(seen: Seen) -> None:
    _, noise = plain_run()
    (charged,) = [charge for charge in noise.charges if charge.name == "gram"]
    draws = RunOptions.of(RECORDS).train_config().generator.draws
    length = np.sqrt(sum(one**2 for one in seen.lengths.values()))
    assert 0.8 < np.sqrt(2) * draws * length**2 / charged.sensitivity <= 1


def test_without_noise_and_shortening_the_penalty_is_that_of_the_paper(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "SHORTENED", 1.0)
    monkeypatch.setattr(GaussianNoise, "charge_gram", lambda self, moved: GramNoise(0.0))
    plain_run()
    assert np.diag(seen.exact[0]).max() > 0.05 and np.abs(seen.used[0] - seen.exact[0]).max() < 1e-12


def test_the_plaintext_engine_pays_for_tables_gram_and_head_under_one_epsilon() -> None:
    model, noise = plain_run()
    names = [charge.name for charge in noise.charges]
    assert names == ["sketch-0", "sketch-1", "gram", "head", "head output"]
    assert noise.charges[2].multiplier == pytest.approx(noise.charges[0].multiplier)
    assert 7.9 < noise.charges[-1].epsilon_after <= 8.0
    assert model.roles.named("M")


def test_two_attributes_are_charged_for_both() -> None:
    """A record has as many edits as attributes times draws."""
    once, twice = (gram_sensitivity([2.0], 4, count, 100) for count in (4, 8))
    assert twice.replaced == pytest.approx(2 * once.replaced)
    data = load("acs12-gender")
    (attribute,) = data.protected
    other = replace(attribute, name="other", codes=np.arange(data.n) % 2)
    _, noise = plain_run(data=replace(data, protected=(attribute, other)))
    _, usual = plain_run()
    assert noise.charges[2].sensitivity == pytest.approx(2 * usual.charges[2].sensitivity)


@pytest.mark.parametrize("heads", [plain_head, shared_heads])
def test_the_head_depends_on_s_through_released_values_only(heads: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With s permuted, and tables and noisy Gram matrix kept, the head is equal to the last bit."""
    monkeypatch.setattr("tests.contract.test_private_head.Charged.charge_gram", _uncharged, raising=False)
    given = {**OPTIONS, **RECORDS}
    assert not _equal(heads(None, given), heads(1, given)), "the control: the matrix itself follows from s"
    noisy_gram, released = trainer.Trainer._noisy_gram, list[np.ndarray]()

    def kept(self: Any, *given: Any) -> np.ndarray:
        released.append(noisy_gram(self, *given))
        return released[0]

    monkeypatch.setattr(trainer.Trainer, "_noisy_gram", kept)
    assert _equal(heads(None, given), heads(1, given))


CLASSES = {**OPTIONS, **RECORDS, "dataset": "synthetic:300x6x3"}


def test_three_classes_have_the_same_heads_on_both_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same tables and the same noisy matrix, which the session opened; the heads have no noise here.

    One matrix is released for all classes. The control: with the matrix of another draw of noise heads are far away.
    """
    quiet = Charged()
    quiet.noise = replace(quiet.noise, sigma=1e-9, output=1e-9)
    monkeypatch.setattr(Charged, "charge_gram", _uncharged, raising=False)
    monkeypatch.setattr(second_order, "noise_of_heads", _no_noise_of_heads)
    noisy_gram, released = trainer.Trainer._noisy_gram, list[np.ndarray]()

    def kept(self: Any, *given: Any) -> np.ndarray:
        released.append(noisy_gram(self, *given))
        return released[-1]

    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_noisy_gram", kept)
        shares = shared_heads(None, CLASSES, charged=quiet)
    assert len(released) == 3 and all(np.array_equal(one, released[0]) for one in released), "at every party"
    weight, bias = (ring.decode(sum(part[at] for part in shares), 24) for at in (0, 1))
    secure = np.vstack([weight, bias.reshape(1, -1)])
    other = plain_head(None, CLASSES, charged=quiet)
    monkeypatch.setattr(trainer.Trainer, "_noisy_gram", lambda self, *given: released[0])
    expected = plain_head(None, CLASSES, charged=quiet)
    assert secure.shape == expected.shape and expected.shape[1] == 3, "a head for each class"
    assert np.abs(secure - expected).max() < 1e-3 < 0.01 < np.abs(secure - other).max()


def _no_noise_of_heads(session: Any, kind: Any, sigma: float, shape: tuple[int, ...], bits: int) -> Any:
    return session.public(np.zeros(shape), bits)


def _uncharged(self: Any, moved: Any) -> GramNoise:
    return GramNoise(40.0, "dealer", Receipt("gram", "a charge"), seed=3)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    return all(np.array_equal(a, b) for p, q in zip(one, other, strict=True) for a, b in zip(p, q, strict=True))


@pytest.fixture
def consortium(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    data = write_data(tmp_path, people(400, seed=5))
    return tmp_path, {"dataset": str(data), "card": str(tmp_path / "card.toml"), **TWO, **RECORDS}


def charged(home: Path) -> list[str]:
    names = [[line["event"]["name"] for line in ledger_lines(home, rank) if "event" in line] for rank in range(2)]
    assert names[0] == names[1]
    return names[0]


def test_own_data_pay_for_it_once_and_a_resumed_run_reads_it_again(consortium: Any) -> None:
    home, options = consortium
    interrupted(home / "run", options)
    wanted = ["sketch-0", "sketch-1", "gram", "head", "head output"]
    assert charged(home) == wanted
    results = resumed(home / "run", options)
    assert results[0]["ok"] and charged(home) == wanted
    assert set(results[0]["privacy"]["parts"]) == {"tables", "gram", "head"}
    assert 7.9 < results[0]["privacy"]["epsilon_rdp"] <= 8.0
    lines = [json.loads(line) for log in home.rglob("releases*.jsonl") for line in log.read_text().splitlines()]
    assert {line["event"] for line in lines if line.get("release") == "gram"} == {"gram"}


def test_another_training_from_kept_tables_pays_for_gram_and_head(consortium: Any) -> None:
    home, options = consortium
    run_two(TrainJob, home / "paid", {**options, "reserve": 0.3})
    before = charged(home)
    results = run_two(TrainJob, home / "more", {**options, "tables": "kept", "generator_seed": 100})
    assert charged(home)[len(before) :] == ["gram", "head", "head output"]
    assert 7.9 < results[0]["privacy"]["epsilon_rdp"] <= 8.0
    with stopping("too little is left of the cap"):
        run_two(TrainJob, home / "third", {**options, "tables": "kept", "generator_seed": 101})


def test_hidden_alignment(consortium: Any) -> None:
    home, options = consortium
    run_two(TrainJob, home / "run", {**options, "align": "hidden"})
    assert charged(home) == ["first count", "sketch-0", "sketch-1", "gram", "head", "head output"]


def test_a_budget_that_is_too_small_is_refused_before_anything_is_opened(consortium: Any) -> None:
    home, options = consortium
    with pytest.raises(ConfigError, match="the budget is too small for tables and head together"):
        run_two(TrainJob, home / "run", {**options, "epsilon": 1e-6})
    lines = [json.loads(line) for log in home.rglob("releases.jsonl") for line in log.read_text().splitlines()]
    assert not any(line["event"] for line in lines) and charged(home) == []


def test_the_plan_has_a_line_for_it() -> None:
    options = RunOptions.of(RECORDS)
    schema = options.schema(3)
    assert mode_plan(schema, options).releases[GRAM.name].event == "gram"
    assert GRAM.name not in mode_plan(schema, RunOptions.of({})).releases
    more, usual = (spread_of(run_options, schema).multiplier for run_options in (options, RunOptions.of({})))
    assert more == pytest.approx(usual * np.sqrt(3 / 2), rel=0.01), "three releases share what two had"
