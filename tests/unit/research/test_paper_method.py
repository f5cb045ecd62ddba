"""The paper-faithful method: hyperparameters, what learns from what, switches, adversary and masked generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from secure_sccvfl.api.trained import probabilities
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Label
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.data.synthetic import make_synthetic
from secure_sccvfl.discovery.decisions import decide
from secure_sccvfl.discovery.scores import Evidence, probability_gap, table_hsic
from secure_sccvfl.evaluation.methods import METHODS, Fitted, prepare
from secure_sccvfl.policy.roles import Role
from secure_sccvfl.releases.noise import NoNoise
from secure_sccvfl.research.experiments import methods_of
from secure_sccvfl.research.paper import methods
from secure_sccvfl.research.paper.generators import GeneratorTerms, MaskedCvae, Turn
from secure_sccvfl.research.paper.methods import (
    COMPONENTS,
    PAPER_ABLATIONS,
    SWEEPS,
    SWITCHES,
    baseline,
    baseline_settings,
    flip_edits,
    paper_with,
)
from secure_sccvfl.research.paper.networks import (
    Adversary,
    SplitNetwork,
    against_rest,
    restore_training,
    reverse,
    task_loss,
    training_state,
)
from secure_sccvfl.research.paper.roles import Masks, edited_names
from secure_sccvfl.research.paper.settings import FLIP_WEIGHT, SCG_WEIGHT, settings_of
from secure_sccvfl.research.paper.trainer import Generators, JointTraining, Records, read_columns, records_of
from secure_sccvfl.training import RECIPES

GERMAN = load("german")
READY = prepare(GERMAN, make_split(GERMAN, "iid", 0), 0)
BASE = settings_of("german")
ROLES = Masks(READY, BASE).roles
SHORT = {"epochs": 5, "warmup": 2}


def short(**changes: object) -> Fitted:
    return paper_with(**{**SHORT, **changes})(READY)


@pytest.fixture(scope="module")
def plain() -> Fitted:
    return short()


def training(**changes: object) -> tuple[JointTraining, Records, Records]:
    """A training run that was not started."""
    settings = replace(BASE, **changes)
    torch.manual_seed(0)
    widths, read = read_columns(READY, settings)
    net = SplitNetwork(widths, 2, settings.hidden, settings.dropout)
    generators = Generators(READY, ROLES, settings)
    adversaries = methods._adversaries(READY, settings)
    parts = (records_of(READY, rows, settings) for rows in (READY.split.train, READY.split.validation))
    return JointTraining(net, "binary", settings, (generators, None), adversaries, read, 0), *parts


@pytest.mark.parametrize(
    ("warmup", "cons", "gen", "moves"), [(0, 1, 0, True), (9, 1, 0, False), (0, 0, 0, False), (9, 1, 0.01, True)]
)
def test_generators_learn_from_their_loss_and_after_the_warm_up_from_consistency(warmup, cons, gen, moves) -> None:
    run, train, check = training(epochs=2, warmup=warmup, lambda_cons=cons, lambda_gen=gen, temperature=False)
    assert run.generators is not None
    before = [v.detach().clone() for v in run.generators.models.parameters()]
    run.fit(train, check)
    after = run.generators.models.parameters()
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True)) != moves


def test_parts_have_the_rates_of_the_table() -> None:
    run, _, _ = training()
    rates = [(g["lr"], g["weight_decay"]) for g in run._optimiser().param_groups]
    assert rates == [(0.015, 5e-4), (0.010, 0.0), (0.005, 0.0)]
    assert len(run.adversaries) == len(READY.parties)
    run, _, _ = training(optimiser="adam", adversary="fused")
    assert run._optimiser().param_groups[0]["weight_decay"] == 0.0 and len(run.adversaries) == 1


def test_the_adversaries_turn_the_encoders_gradient() -> None:
    """The gradient of L_adv in the encoders is the opposite of what would help the adversaries."""
    run, train, _ = training(dropout=0.0)
    x = train.x @ run.read
    x = x - x.mean(dim=0)
    encoders = list(run.net.encoders.parameters())
    turned = torch.autograd.grad(run._adversarial(run.net.parts(x), train), encoders)
    straight = torch.stack(
        [a.loss(h, z) for a, h, z in zip(run.adversaries, run.net.parts(x), train.z_s, strict=True)]
    ).sum()
    for a, b in zip(turned, torch.autograd.grad(straight, encoders), strict=True):
        assert torch.allclose(a, -b, atol=1e-7)


def test_consistency_is_off_in_the_warm_up() -> None:
    with_it, without = (short(epochs=4, warmup=2, lambda_cons=c).predict.history for c in (1.2, 0.0))
    assert with_it[:2] == without[:2]
    assert with_it[2].train_loss > without[2].train_loss and with_it[3] != without[3]


def test_history_and_notes(plain: Fitted) -> None:
    history = plain.predict.history
    assert [e.epoch for e in history] == list(range(5))
    assert plain.notes["epochs_run"] == plain.notes["optimisation_steps"] == len(history) == 5
    assert all(0 <= e.validation_accuracy <= 1 and e.scg > 0 and 0 <= e.fr <= 1 for e in history)
    rows, hidden = len(READY.split.train), BASE.hidden
    once = 3 * rows * 4
    crossed = sum(2 * (1 + (e >= 2)) * once * hidden + once * BASE.context for e in range(5))
    assert plain.notes["feature_mb"] == pytest.approx(crossed / 1e6)
    longer = short(epochs=7)
    assert longer.notes["model_mb"] == plain.notes["model_mb"] > 0
    assert longer.notes["feature_mb"] > plain.notes["feature_mb"]


def test_patience_counts_from_the_first_epoch_or_after_the_warm_up() -> None:
    """The best epoch shows it, after which four more are run."""
    long = {"epochs": 40, "warmup": 20, "patience": 4}
    start, later = (short(**long, patience_from=p, kept="best") for p in ("start", "warmup"))
    assert start.notes["epochs_run"] == start.notes["best_epoch"] + 5
    assert start.notes["epochs_run"] < 20 < later.notes["best_epoch"] + 5


def test_the_last_epoch_is_kept_or_the_best_one() -> None:
    """The best is the one with the least objective of early stopping; the model is that of its epoch."""
    long = {"epochs": 10, "warmup": 9, "patience": 10, "temperature": False}
    last, best = (short(**long, kept=kept) for kept in ("last", "best"))
    history = last.predict.history
    assert history == best.predict.history, "training is the same"
    objectives = [e.validation_loss + SCG_WEIGHT * e.scg + FLIP_WEIGHT * e.fr for e in history]
    assert last.notes["best_epoch"] == 9 and best.notes["best_epoch"] == int(np.argmin(objectives)) < 9
    check = records_of(READY, READY.split.validation, BASE)
    for fitted in (last, best):
        seen = task_loss(fitted.predict.net(fitted.predict.scaled(check.x)), check.y, "binary").item()
        assert seen == pytest.approx(history[int(fitted.notes["best_epoch"])].validation_loss, abs=1e-6)


CALLS = {"L_cons": "_gap", "L_adv": "_adversarial"}
USED = {
    "adv_nomask": {"L_adv"},
    "uniform_cf": {"L_cons", "L_gen"},
    "policy_blind": {"L_cons", "L_gen"},
    "server_consistency": {"L_cons"},
    "server_consistency_flipped": {"L_cons"},
    "erm_network": set(),
    "paper": {"L_cons", "L_gen", "L_adv"},
}


@pytest.mark.parametrize("name", USED)
def test_each_method_uses_the_losses_of_the_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used: set[str] = set()

    def watch(owner: type, attribute: str, loss: str) -> None:
        run = getattr(owner, attribute)

        def seen(*given: object, **named: object) -> object:
            used.add(loss)
            return run(*given, **named)

        monkeypatch.setattr(owner, attribute, seen)

    for loss, attribute in CALLS.items():
        watch(JointTraining, attribute, loss)
    watch(Generators, "loss", "L_gen")
    brief = replace(BASE, epochs=3, baseline_epochs=3, warmup=1)
    monkeypatch.setattr(methods, "settings_of", lambda dataset: brief)
    fitted = baseline(name)(READY) if name in COMPONENTS else paper_with()(READY)
    assert used == USED[name]
    assert fitted.notes["epochs_run"] == 3
    assert (fitted.counterfactuals is None) == (name in ("adv_nomask", "erm_network"))


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_changes_the_run_or_is_known_not_to(name: str, plain: Fitted) -> None:
    changes = dict(SWITCHES[name])
    changed = short(**changes)
    trained = changed.predict.history != plain.predict.history
    if name in ("adamw", "patience_after_warmup", "best_epoch", "no_refresh"):
        # AdamW is German's; five epochs exhaust no patience and reach no refresh, and the order of these noisy tables
        # is the same with less noise; what is kept changes no epoch, and has its own test.
        assert not trained
    elif name == "no_leak":  # it has a value, and no gradient where proxies pass through
        assert trained and np.array_equal(changed.predict(READY.inputs), plain.predict(READY.inputs))
        assert np.array_equal(changed.counterfactuals(READY.split.test), plain.counterfactuals(READY.split.test))
    elif name == "no_temperature":
        assert not trained and changed.predict.temperature == 1.0 != plain.predict.temperature
    else:
        assert trained


@pytest.mark.parametrize(
    "changes", [{}, {"proxies": "edit"}, {"mask": "all"}, {"edits": "shuffle"}], ids=["M", "MP", "all", "shuffle"]
)
def test_own_counterfactuals_change_what_they_may_and_copy_the_rest_bit_by_bit(changes: dict[str, str]) -> None:
    edited, rows = short(**changes).counterfactuals(READY.split.test), READY.split.test
    columns = READY.columns(edited_names(ROLES, replace(BASE, **changes)))
    rest = np.setdiff1d(np.arange(edited.shape[1]), columns)
    assert (edited[:, rest] == READY.inputs[rows][:, rest]).all()
    assert (edited[:, columns] != READY.inputs[rows][:, columns]).any()
    assert edited.min() >= 0 and edited.max() <= 1
    assert (len(rest) == 0) == (changes.get("mask") == "all")


def test_large_hsic_is_m_and_a_large_gap_within_m_is_p() -> None:
    """Section 3.2 within each party. A column of small HSIC is N however large its gap is."""
    config = replace(RECIPES.get("paper").discovery, rho_m=0.5, hysteresis=0.1)

    def tri_partition(hsic: dict[str, float], previous: Mapping[str, Role] | None = None) -> Mapping[str, Role]:
        scores = {k: hsic[k] + gap[k] for k in hsic}
        return decide(Evidence(scores, {}, parts=(hsic, gap)), config, previous, owners=owners).proposed

    owners = dict.fromkeys("abcd", "bank") | dict.fromkeys("wxyz", "bureau")
    hsic = dict(zip("abcdwxyz", (0.4, 0.3, 0.2, 0.1, 0.04, 0.03, 0.02, 0.01), strict=True))
    gap = dict(zip("abcdwxyz", (0.1, 0.2, 0.3, 0.9, 0.1, 0.2, 0.3, 0.9), strict=True))
    roles = tri_partition(hsic)
    assert "".join(roles[k] for k in "abcdwxyz") == "MPNNMPNN", "the same in both, though their sizes differ"
    close = hsic | {"b": 0.29, "c": 0.3}
    assert tri_partition(close)["c"] == "P"
    assert tri_partition(close, roles) == roles, "within the margin a role is kept"
    assert tri_partition(hsic | {"c": 0.35}, roles)["c"] == "P"


def test_both_partitions_follow_from_the_tables() -> None:
    """Without noise: by HSIC and gap as they are, or by their sum. On German both give the same roles there."""
    section, score = (Masks(READY, replace(BASE, partition=kind), NoNoise()) for kind in ("section", "score"))
    hsic, gap = (
        {k: float(score(table)) for k, table in section.noisy_tables[0].tables.items()}
        for score in (table_hsic, probability_gap)
    )
    for party in READY.parties:
        names = party.layout.names
        m = sorted(names, key=lambda k: -hsic[k])[: round(0.6 * len(names))]
        assert {k for k in names if section.roles.of[k] != "N"} == set(m)
        p = sorted(m, key=lambda k: -gap[k])[: round(0.5 * len(m))]
        assert {k for k in names if section.roles.of[k] == "P"} == set(p)
    assert score.assignment.scores == pytest.approx({k: hsic[k] + gap[k] for k in hsic})
    assert section.roles == score.roles and Masks(READY, replace(BASE, partition="score")).roles != ROLES
    tables = section.noisy_tables[0].tables
    shares = {k: table / table.sum(axis=0) for k, table in tables.items()}
    assert gap == pytest.approx({k: np.abs(p[:, 0] - p[:, 1]).max() for k, p in shares.items()})


def test_discovery_releases_tables_alone_and_refreshes_up_to_the_cap() -> None:
    masks = Masks(READY, replace(BASE, refreshes=2))
    assert masks.roles == Masks(READY, replace(BASE, refreshes=2)).roles
    names = []
    for _ in range(4):
        names.append([charge.name for charge in masks.noise.charges])
        masks.refresh()
    assert [len(charged) for charged in names] == [1, 2, 3, 3] and masks.releases == 3, "no more is asked for"
    assert names[-1] == ["sketch-0", "sketch-1", "sketch-2"]
    assert 0.95 < masks.noise.charges[-1].epsilon_after / READY.budget.epsilon <= 1, "planned for all of them"
    assert Masks(replace(READY, seed=1), BASE).roles != ROLES, "noise has a say"
    fixed = Masks(READY, replace(BASE, roles="repaired"))
    assert not fixed.refresh() and fixed.roles == READY.roles and not fixed.noise.charges


def test_a_refresh_renews_generators_and_leaves_the_rest_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before epoch 3: other masks. The network and its optimiser go on; the best epoch may be of the old masks."""
    changes = {"epochs": 6, "warmup": 2, "patience": 3, "kept": "best"}
    run, train, check = training(**changes)
    assert run.settings.refreshed_at == (3,)
    first, seen = run.generators, []
    other = Generators(READY, ROLES.with_role("N", ROLES.named("M")[:1]), run.settings)
    run.refresh = lambda: (other, None)
    step = JointTraining._step

    def watched(self: JointTraining, *given: object) -> float:
        optimiser = given[2]
        held = {p for group in optimiser.param_groups for p in group["params"]}
        seen.append((self.generators, sum(p in held for p in optimiser.state), set(self.net.parameters()) <= held))
        return step(self, *given)

    monkeypatch.setattr(JointTraining, "_step", watched)
    result = run.fit(train, check)
    assert [generators is other for generators, *_ in seen] == [False] * 3 + [True] * (len(seen) - 3) and len(
        seen
    ) > 3
    assert all(whole for *_, whole in seen) and seen[3][1] >= len(list(run.net.parameters())) > 0
    assert run.generators is (first if result.kept_epoch < 3 else other)


def test_flipped_tables_move_mediators_from_group_to_group_and_nothing_else() -> None:
    """Without noise the mean of a moved column is that of the other group, where nothing is cut."""
    settings = baseline_settings("german", "server_consistency_flipped")
    masks = Masks(READY, settings, NoNoise())
    rows = READY.split.train
    moved, before = flip_edits(masks)(rows, 0), READY.inputs[rows]
    columns = READY.columns(edited_names(masks.roles, settings))
    rest = np.setdiff1d(np.arange(before.shape[1]), columns)
    assert (moved[:, rest] == before[:, rest]).all() and np.abs(moved - before).max() > 0.05
    codes = READY.data.protected[0].codes[rows]
    for at, group in masks.embeddings():
        shift = (moved - before)[:, at]
        for code in (0, 1):
            asked = np.clip(before[codes == code][:, at] + group[1 - code] - group[code], 0, 1)
            assert np.allclose(before[codes == code][:, at] + shift[codes == code], asked)
    seen = {int(at[0]): group for at, group in masks.embeddings() if len(at) > 1}
    assert seen, "a category"
    for start, group in seen.items():
        width = group.shape[1]
        for code in (0, 1):
            assert np.allclose(before[codes == code][:, start : start + width].mean(axis=0), group[code])


def test_encoders_read_one_number_of_each_feature_or_all_columns() -> None:
    """A category by its code, a number as it is, and a missing number in the middle."""
    features = (
        Feature("colour", "category", categories=("red", "green", "blue")),
        Feature("age", "number", low=0, high=50, missing=True),
        Feature("size", "number", low=0, high=10),
    )
    layouts = [Layout.of(features), Layout.of(features[2:])]
    ready = SimpleNamespace(parties=[SimpleNamespace(layout=layout) for layout in layouts], widths=(6, 1))
    cells = np.array([[0, 10, 10], [1, np.nan, 0], [2, 50, 5]])
    inputs = np.hstack([layouts[0].encode(cells), layouts[1].encode(cells[:, 2:])]).astype(np.float32)
    widths, read = read_columns(ready, BASE)
    assert widths == (3, 1) and BASE.columns == "codes"
    assert np.allclose(inputs @ read.numpy(), [[0, 0.2, 1, 1], [0.5, 0.5, 0, 0], [1, 1, 0.5, 0.5]])
    widths, read = read_columns(ready, replace(BASE, columns="one_hot"))
    assert widths == (6, 1) and np.array_equal(inputs @ read.numpy(), inputs)


def test_targets_are_other_groups_and_change_with_the_epoch_where_there_are_more_than_two() -> None:
    codes = np.arange(300) % 5
    records = Records(codes, torch.zeros(300, 1), torch.zeros(300), (codes, codes), 5, 0)
    for draw in range(3):
        assert not (records.targets(draw)[0] * records.z_s[0]).any()
    assert not torch.equal(records.targets(0)[0], records.targets(1)[0])
    assert torch.equal(records.targets(1)[0], records.targets(1)[1]), "one target at all parties"
    assert torch.equal(records.targets(1)[0], records.targets(9)[0])


@pytest.mark.parametrize("task", ["multiclass", "regression"])
def test_other_tasks_train_too(task: str) -> None:
    data = make_synthetic(300)
    number = data.parties[0].values[:, 0]
    label = Label("bank", (number * 2.99).astype(int), ("a", "b", "c")) if task == "multiclass" else None
    data = replace(data, task=task, label=Label("bank", number) if label is None else label)
    ready = prepare(data, make_split(data, "iid", 0), 0)
    fitted = paper_with(epochs=4, warmup=1, lambda_cons=0.1)(ready)
    history = fitted.predict.history
    assert fitted.predict(ready.inputs).shape == (300, 3 if task == "multiclass" else 1)
    assert all(np.isfinite(e.train_loss) and np.isfinite(e.scg) for e in history)
    assert np.isnan(history[0].validation_accuracy) == np.isnan(history[0].fr) == (task == "regression")
    assert fitted.predict.temperature == 1.0 or task == "multiclass"


UNITS = torch.tensor(np.random.default_rng(0).normal(0, 3, (50, 4)))


def test_logits_against_the_rest_have_the_probabilities_of_the_softmax() -> None:
    logits = against_rest(UNITS).numpy()
    expected = torch.softmax(UNITS, dim=1).numpy()
    assert np.abs(probabilities(logits, "multiclass") - expected).max() < 1e-12
    assert np.array_equal(logits.argmax(axis=1), expected.argmax(axis=1))
    assert np.abs(probabilities(UNITS.numpy(), "multiclass") - expected).max() > 0.1, "units themselves do not"


TABLE = {
    "german": (64, 0.05, 8, "adamw", 0.015, 0.010, 0.005, 300, 300, 40, 35),
    "heart": (32, 0.10, 16, "adam", 0.010, 0.010, 0.005, 200, 200, 30, 25),
    "compas": (32, 0.10, 8, "adam", 0.005, 0.005, 0.003, 80, 150, 25, 25),
}
"""Table hparams-common, from the encoder's hidden size to patience."""
ORDER = (
    *("hidden", "dropout", "latent", "optimiser", "rate", "generator_rate", "adversary_rate"),
    *("baseline_epochs", "epochs", "warmup", "patience"),
)
ACTIVE = {
    "adv_nomask": ("none", False, False, True),
    "uniform_cf": ("all", True, True, False),
    "policy_blind": ("M", True, True, False),
    "server_consistency": ("M shuffled", True, False, False),
    "server_consistency_flipped": ("M flipped", True, False, False),
    "erm_network": ("none", False, False, False),
}
"""Table hparams-method: mask, L_cons, L_gen, L_adv; and the baseline without any of them."""


@pytest.mark.parametrize("name", TABLE)
def test_hyperparameters_are_those_of_the_table(name: str) -> None:
    settings = settings_of(name)
    assert tuple(getattr(settings, field) for field in ORDER) == TABLE[name]
    weights = (
        settings.lambda_cons,
        settings.lambda_adv,
        settings.lambda_gen,
        settings.edit_scale,
        settings.rho_m,
        settings.rho_p,
    )
    assert weights == (1.2, 0.03, 0.01, 0.20, 0.60, 0.50)
    assert settings.patience_from == "start" and settings.proxies == "pass" and settings.roles == "letter"
    assert settings.partition == "section" and settings.refreshes == 1
    assert settings.embedding == "true" and settings.adversary == "parties"


@pytest.mark.parametrize("name", ACTIVE)
def test_baselines_have_the_components_of_the_table_and_share_the_rest(name: str) -> None:
    assert set(COMPONENTS) == set(ACTIVE)
    settings = baseline_settings("compas", name)
    mask = {"none": "none", "shuffle": "M shuffled", "flip": "M flipped", "generator": settings.mask}[settings.edits]
    assert (mask, settings.lambda_cons > 0, settings.generating, settings.lambda_adv > 0) == ACTIVE[name]
    assert settings.epochs == 80 and not settings.temperature
    assert not (settings.leak_adversary and settings.lambda_adv == 0), "no adversary at all where the table has none"
    shared = asdict(settings_of("compas"))
    for field in (*ORDER[:-4], "warmup", "patience"):
        assert getattr(settings, field) == shared[field]
    for weight in ("lambda_cons", "lambda_gen", "lambda_adv"):
        assert getattr(settings, weight) in (0.0, shared[weight]), "same weight, or off"


def test_methods_and_ablations_have_the_rows() -> None:
    repaired = {"uniform_cf_repaired", "policy_blind_repaired", "server_consistency_repaired"}
    assert {*COMPONENTS, *repaired, "paper", "scc_split"} <= set(METHODS.names)
    assert set(PAPER_ABLATIONS) == {"paper_no_masks", "paper_no_generator", "paper_no_consistency"}
    assert set(PAPER_ABLATIONS) <= set(methods_of("ablation"))


def test_every_switch_and_grid_names_settings_that_exist() -> None:
    base = settings_of("german")
    for name, changes in {**SWITCHES, **PAPER_ABLATIONS}.items():
        assert (replace(base, **changes) != base) == (name != "adamw"), name
    assert replace(settings_of("heart"), **SWITCHES["adamw"]) != settings_of("heart")
    for name, values in SWEEPS.items():
        assert len(values) == 5 and getattr(base, name) in values, "the method itself is a point of each sweep"
        for value in values:
            paper_with(**{name: value})
    with pytest.raises(ValueError, match="no settings lam"):
        paper_with(lam=1.0)


BAD = {"hidden": 0, "rate": 0.0, "edit_scale": 0.0, "lambda_gen": -1.0, "rho_m": 1.5, "refreshes": -1}
BAD |= {"partition": "x", "edits": "x", "optimiser": "sgd", "dropout": 1.0, "context": -1}


@pytest.mark.parametrize("name", BAD)
def test_bad_settings_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        replace(BASE, **{name: BAD[name]})


PEOPLE = 200
Z = torch.eye(2)[torch.arange(PEOPLE) % 2]
SIGNAL = torch.cat([Z[:, 1:] * 2 - 1, torch.randn(PEOPLE, 1, generator=torch.Generator().manual_seed(0))], dim=1)


@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_reversal_is_the_identity_forward_and_turns_the_gradient(weight: float) -> None:
    adversary = Adversary(2, 2, 0)
    x = SIGNAL.clone().requires_grad_()
    straight = adversary.loss(x, Z)
    (forward,) = torch.autograd.grad(straight, x)
    turned = adversary.loss(reverse(x, weight), Z)
    assert torch.equal(straight, turned)
    gradients = torch.autograd.grad(turned, [x, *adversary.parameters()])
    assert torch.allclose(gradients[0], -weight * forward)
    same = torch.autograd.grad(adversary.loss(x, Z), list(adversary.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(gradients[1:], same, strict=True)), (
        "the adversary itself still learns"
    )


ROWS, CONTEXT = 120, 3
LAYOUT = Layout.of(
    [
        Feature("m", "category", categories=("a", "b", "c")),
        Feature("n", "number", 0, 1),
        Feature("p", "category", categories=("u", "v")),
        Feature("k", "number", 0, 1, missing=True),
    ]
)
M, N, P = LAYOUT.columns(("m", "k")), LAYOUT.columns(("n",)), LAYOUT.columns(("p",))


def records(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mediators and the proxy follow s; n does not."""
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 2, ROWS)
    like_s = np.where(rng.random(ROWS) < 0.85, s, 1 - s)
    cells = np.column_stack([like_s + rng.integers(0, 2, ROWS), rng.random(ROWS), like_s, 0.3 + 0.4 * s])
    return LAYOUT.encode(cells), s


INPUTS, S = records()
X = torch.tensor(INPUTS, dtype=torch.float32)
Z_S, Z_T = torch.eye(2)[S], torch.eye(2)[1 - S]
C = torch.randn(ROWS, CONTEXT, generator=torch.Generator().manual_seed(0))


def generator(**changes: object) -> MaskedCvae:
    settings = {"edited": ("m", "k"), "proxies": ("p",), "groups": 2, "seed": 1, "context": CONTEXT, **changes}
    return MaskedCvae(LAYOUT, **settings)


def draws(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def leak_adversary(model: MaskedCvae) -> Adversary:
    return Adversary(len(model.guarded), 2, 3)


def moved(model: MaskedCvae, term: torch.Tensor) -> bool:
    """Whether a term has a gradient in the generator's parameters."""
    grads = torch.autograd.grad(term, list(model.parameters()), allow_unused=True) if term.requires_grad else []
    return any(g is not None and bool(g.abs().sum() > 0) for g in grads)


@pytest.mark.parametrize("scale", [0.2, 1.0])
@pytest.mark.parametrize("reading", ["decoded", "contrast"])
def test_only_mediators_change_and_everything_else_is_copied_bit_by_bit(scale: float, reading: str) -> None:
    model = generator(reading=reading)
    edited = model.edited_copy(INPUTS, Turn(Z_S, Z_T, C), scale)
    assert (edited[:, [*N, *P]] == INPUTS[:, [*N, *P]]).all()
    assert (edited[:, M] != INPUTS[:, M]).any(axis=1).all()
    assert edited.min() >= 0 and edited.max() <= 1
    tensor = model.edit(X, Turn(Z_S, Z_T, C), scale)
    assert torch.equal(tensor[:, [*N, *P]], X[:, [*N, *P]])
    assert np.allclose(tensor.detach().numpy(), edited, atol=1e-6)


def test_each_term_is_zero_or_not_where_it_must_be() -> None:
    model = generator()
    terms = model.terms(X, Turn(Z_S, Z_T, C), draws(), leak_adversary(model))
    assert terms.identity.item() == 0 and terms.cycle.item() == 0
    assert terms.likelihood.item() > 0 and terms.mmd.item() > 0 and terms.leak.item() > 0
    assert moved(model, terms.likelihood) and moved(model, terms.mmd)
    assert model.terms(X, Turn(Z_S, Z_T, C), draws()).leak.item() == 0
    cycle = model.terms(X, Turn(Z_S, Z_T, C), draws(), cycle=True).cycle
    assert cycle.item() > 0 and moved(model, cycle)


def test_the_identity_term_sees_a_counterfactual_that_breaks_it() -> None:
    class Broken(MaskedCvae):
        def edit(self, x: torch.Tensor, *rest: object, **named: object) -> torch.Tensor:
            return super().edit(x, *rest, **named) + 0.1

    model = Broken(LAYOUT, ("m", "k"), ("p",), 2, 1)
    identity = model.terms(X, Turn(Z_S, Z_T), draws()).identity.item()
    assert identity == pytest.approx(0.01 * len(N), rel=1e-4)


def test_the_leak_has_a_gradient_only_where_proxies_are_edited() -> None:
    passing, editing = generator(), generator(edited=("m", "k", "p"))
    assert len(passing.guarded) == len(editing.guarded) == len(N) + len(P)
    assert not moved(passing, passing.terms(X, Turn(Z_S, Z_T, C), draws(), leak_adversary(passing)).leak)
    assert moved(editing, editing.terms(X, Turn(Z_S, Z_T, C), draws(), leak_adversary(editing)).leak)


def test_the_leak_is_large_where_the_adversary_recovers_s() -> None:
    adversary = Adversary(len(P), 2, 3)
    optimiser = torch.optim.Adam(adversary.parameters(), 0.02)
    before = adversary.recovery(X[:, P], Z_S).item()
    for _ in range(100):
        optimiser.zero_grad()
        adversary.loss(X[:, P], Z_S).backward()
        optimiser.step()
    assert adversary.recovery(X[:, P], Z_S).item() > before + 0.3
    assert adversary.recovery(X[:, P], Z_T).item() < adversary.recovery(X[:, P], Z_S).item()


def test_state_goes_through_arrays() -> None:
    def step(model: MaskedCvae, optimiser: torch.optim.Optimizer, seed: int) -> None:
        optimiser.zero_grad()
        GeneratorTerms().total(model.terms(X, Turn(Z_S, Z_T, C), draws(seed))).backward()
        optimiser.step()

    first = generator()
    optimiser = torch.optim.Adam(first.parameters(), 0.01)
    step(first, optimiser, 1)
    kept = training_state(first, optimiser)
    assert all(isinstance(v, np.ndarray) for v in kept.values())
    second = generator(seed=99)
    other = torch.optim.Adam(second.parameters(), 0.01)
    restore_training(second, other, kept)
    step(first, optimiser, 2)
    step(second, other, 2)
    assert torch.equal(first.edit(X, Turn(Z_S, Z_T, C)), second.edit(X, Turn(Z_S, Z_T, C)))
