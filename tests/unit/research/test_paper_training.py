"""The paper-faithful method: what is active when, what learns from what, and what every switch changes."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from secure_sccvfl.api.trained import probabilities
from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.dataset import Label, Task
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.data.synthetic import make_synthetic
from secure_sccvfl.discovery.decisions import decide
from secure_sccvfl.discovery.evidence import Evidence
from secure_sccvfl.discovery.scores import probability_gap, table_hsic
from secure_sccvfl.evaluation.counterfactual_models import Counterfactuals, make_counterfactuals
from secure_sccvfl.evaluation.methods import Fitted, prepare
from secure_sccvfl.evaluation.scoring import stability
from secure_sccvfl.policy.roles import Role
from secure_sccvfl.releases.noise import NoNoise
from secure_sccvfl.research import role_stability
from secure_sccvfl.research.paper import methods
from secure_sccvfl.research.paper.methods import (
    COMPONENTS,
    SWITCHES,
    baseline,
    baseline_settings,
    flip_edits,
    paper_with,
)
from secure_sccvfl.research.paper.networks import SplitNetwork, TrainedNetwork, against_rest, task_loss
from secure_sccvfl.research.paper.roles import Masks, edited_names
from secure_sccvfl.research.paper.settings import FLIP_WEIGHT, SCG_WEIGHT, settings_of
from secure_sccvfl.research.paper.trainer import Generators, JointTraining, Records, read_columns, records_of
from secure_sccvfl.training import RECIPES
from secure_sccvfl.training.plain import log_loss

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
    found = [(g["lr"], g["weight_decay"]) for g in run._optimiser().param_groups]
    assert found == [(0.015, 5e-4), (0.010, 0.0), (0.005, 0.0)]
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
    assert (fitted.own is None) == (name in ("adv_nomask", "erm_network"))


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
        assert np.array_equal(changed.own(READY.split.test), plain.own(READY.split.test))
    elif name == "no_temperature":
        assert not trained and changed.predict.temperature == 1.0 != plain.predict.temperature
    else:
        assert trained


def test_the_leak_term_matters_where_proxies_are_edited() -> None:
    with_it = short(proxies="edit").predict.history
    without = short(proxies="edit", terms=SWITCHES["no_leak"]["terms"]).predict.history
    assert [e.scg for e in with_it] != [e.scg for e in without]


@pytest.mark.parametrize(
    "changes", [{}, {"proxies": "edit"}, {"mask": "all"}, {"edits": "shuffle"}], ids=["M", "MP", "all", "shuffle"]
)
def test_own_edits_touch_what_they_may_and_copy_the_rest_bit_by_bit(changes: dict[str, str]) -> None:
    edited, rows = short(**changes).own(READY.split.test), READY.split.test
    columns = READY.columns(edited_names(ROLES, replace(BASE, **changes)))
    rest = np.setdiff1d(np.arange(edited.shape[1]), columns)
    assert (edited[:, rest] == READY.inputs[rows][:, rest]).all()
    assert (edited[:, columns] != READY.inputs[rows][:, columns]).any()
    assert edited.min() >= 0 and edited.max() <= 1
    assert (len(rest) == 0) == (changes.get("mask") == "all")


def test_roles_of_the_letter_are_fractions_of_every_party() -> None:
    for party in READY.parties:
        roles = [ROLES.of[name] for name in party.layout.names]
        found = round(0.6 * len(roles))
        assert len(roles) - roles.count("N") == found and roles.count("P") == round(0.5 * found)
    fewer = Masks(READY, replace(BASE, rho_m=0.15)).roles
    assert set(fewer.descendants) < set(ROLES.descendants)


def test_large_hsic_is_m_and_a_large_gap_within_m_is_p() -> None:
    """Section 3.2 within each party. A column of small HSIC is N however large its gap is."""
    config = replace(RECIPES.get("paper").discovery, rho_m=0.5, hysteresis=0.1)

    def tri_partition(hsic: dict[str, float], previous: Mapping[str, Role] | None = None) -> Mapping[str, Role]:
        scores = {k: hsic[k] + gap[k] for k in hsic}
        return decide(Evidence(scores, {}, parts=(hsic, gap)), config, previous, owners=owners).proposed

    owners = dict.fromkeys("abcd", "bank") | dict.fromkeys("wxyz", "bureau")
    hsic = dict(zip("abcdwxyz", (0.4, 0.3, 0.2, 0.1, 0.04, 0.03, 0.02, 0.01), strict=True))
    gap = dict(zip("abcdwxyz", (0.1, 0.2, 0.3, 0.9, 0.1, 0.2, 0.3, 0.9), strict=True))
    found = tri_partition(hsic)
    assert "".join(found[k] for k in "abcdwxyz") == "MPNNMPNN", "the same in both, though their sizes differ"
    close = hsic | {"b": 0.29, "c": 0.3}
    assert tri_partition(close)["c"] == "P"
    assert tri_partition(close, found) == found, "within the margin a role is kept"
    assert tri_partition(hsic | {"c": 0.35}, found)["c"] == "P"


def test_both_partitions_follow_from_the_tables() -> None:
    """Without noise: by HSIC and gap as they are, or by their sum. On German both give the same roles there."""
    section, score = (Masks(READY, replace(BASE, partition=kind), NoNoise()) for kind in ("section", "score"))
    hsic, gap = (
        {k: float(score(table)) for k, table in section.sketches[0].tables.items()}
        for score in (table_hsic, probability_gap)
    )
    for party in READY.parties:
        own = party.layout.names
        m = sorted(own, key=lambda k: -hsic[k])[: round(0.6 * len(own))]
        assert {k for k in own if section.roles.of[k] != "N"} == set(m)
        p = sorted(m, key=lambda k: -gap[k])[: round(0.5 * len(m))]
        assert {k for k in own if section.roles.of[k] == "P"} == set(p)
    assert score.finding.scores == pytest.approx({k: hsic[k] + gap[k] for k in hsic})
    assert section.roles == score.roles and Masks(READY, replace(BASE, partition="score")).roles != ROLES
    tables = section.sketches[0].tables
    shares = {k: table / table.sum(axis=0) for k, table in tables.items()}
    assert gap == pytest.approx({k: np.abs(p[:, 0] - p[:, 1]).max() for k, p in shares.items()})


def test_discovery_releases_tables_alone_and_refreshes_up_to_the_cap() -> None:
    masks = Masks(READY, replace(BASE, refreshes=2))
    assert masks.roles == Masks(READY, replace(BASE, refreshes=2)).roles
    names = []
    for _ in range(4):
        names.append([charge.name for charge in masks.noise.charges])
        masks.refresh()
    assert [len(made) for made in names] == [1, 2, 3, 3] and masks.releases == 3, "no more is asked for"
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
    assert [made is other for made, *_ in seen] == [False] * 3 + [True] * (len(seen) - 3) and len(seen) > 3
    assert all(whole for *_, whole in seen) and seen[3][1] >= len(list(run.net.parameters())) > 0
    assert run.generators is (first if result.kept_epoch < 3 else other)


def test_the_flipped_sketch_moves_mediators_from_group_to_group_and_nothing_else() -> None:
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


def test_fractions_are_those_of_the_lowest_mean_objective_on_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = float("nan")
    worth = {(0.25, 0.5): (0.5, 0.9), (0.6, 0.5): (0.6, 0.6), (0.6, 0.75): (0.4, 0.9), (0.15, 0.75): (0.1, nothing)}

    def fitted(**given: float) -> object:
        pair = given["rho_m"], given["rho_p"]
        return lambda ready: SimpleNamespace(worth=worth.get(pair, (1.0, 1.0))[ready])

    monkeypatch.setattr(role_stability, "paper_with", fitted)
    monkeypatch.setattr(role_stability, "validation_objective", lambda found: found.worth)
    rows = role_stability.by_validation({700: 0, 701: 1})
    assert len(rows) == len(role_stability.RHO_M) * len(role_stability.RHO_P)
    assert (rows[0]["rho_m"], rows[0]["rho_p"], rows[0]["objective"]) == (0.6, 0.5, 0.6)
    assert rows[0]["seeds"] == {700: 0.6, 701: 0.6}
    assert rows[-1] == {"rho_m": 0.15, "rho_p": 0.75, "objective": None, "seeds": {700: 0.1, 701: None}}


def test_encoders_read_one_number_of_each_feature_or_all_columns() -> None:
    """A category by its code, a number as it is, and a missing number in the middle."""
    features = (
        Feature("colour", "category", categories=("red", "green", "blue")),
        Feature("age", "number", low=0, high=50, missing=True),
        Feature("size", "number", low=0, high=10),
    )
    layouts = [Layout.of(features), Layout.of(features[2:])]
    ready = SimpleNamespace(parties=[SimpleNamespace(layout=own) for own in layouts], widths=(6, 1))
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


def test_posterior_groups_are_guesses_of_each_party() -> None:
    records = records_of(READY, READY.split.train, replace(BASE, embedding="posterior"))
    truth = GERMAN.protected[0].codes[READY.split.train]
    for guess in records.groups:
        assert 0.5 < (guess == truth).mean() < 1
    assert (records.groups[0] != records.groups[1]).any()


def test_two_units_inside_are_one_logit_outside(plain: Fitted) -> None:
    net, inputs = plain.predict, READY.inputs[READY.split.test]
    units = net.net(net.scaled(torch.tensor(inputs))).detach().numpy() / net.temperature
    assert units.shape[1] == 2 and np.allclose(net(inputs)[:, 0], units[:, 1] - units[:, 0], atol=1e-5)
    assert np.allclose(plain.white_box(torch.tensor(inputs)).detach().numpy(), net(inputs), atol=1e-5)


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


def test_the_log_loss_of_a_network_of_several_classes_is_that_of_its_probabilities() -> None:
    task: Task = "multiclass"
    net = SplitNetwork((3, 2), 4, 5, 0.0)
    trained = TrainedNetwork(net.eval(), torch.zeros(5), torch.ones(5), task, torch.eye(5), temperature=2.0)
    inputs = np.random.default_rng(1).normal(size=(30, 5))
    label = np.random.default_rng(2).integers(0, 4, 30)
    with torch.no_grad():
        chance = torch.softmax(net(torch.tensor(inputs).float()) / 2.0, dim=1).double().numpy()
    own = np.eye(4)[label]
    expected = -(own * np.log(chance) + (1 - own) * np.log(1 - chance)).sum(axis=1).mean()
    assert abs(log_loss(trained(inputs), label, task) - expected) < 1e-5


def test_its_own_generator_flatters_it() -> None:
    """Flip rate and SCG by a common counterfactual model are far above those by the method's own generator."""
    scores: dict[str, list[list[float]]] = {"own": [], "ot": []}
    for seed in range(4):
        split = make_split(GERMAN, "iid", seed)
        ready = prepare(GERMAN, split, seed)
        fitted, held_out = paper_with()(ready), GERMAN.take(split.test)
        used = GERMAN.ids[np.concatenate([split.train, split.validation])]
        rows, codes = np.arange(held_out.n), held_out.protected[0].codes
        own = Counterfactuals("own", rows, fitted.own(split.test), np.ones(len(rows)), 1 - codes)
        for made in (own, make_counterfactuals("ot", held_out, used, ready.roles.named("M"), seed)):
            found = stability(fitted.predict, ready.inputs[split.test], made, "binary", made.model)
            scores[made.model].append([s.value for s in found if s.metric in ("fr", "scg_norm")])
    assert (np.mean(scores["ot"], axis=0) > 2.5 * np.mean(scores["own"], axis=0)).all()
