"""Options of a run: recipes fill in what is not given, and a run has one rule for lambda."""

from dataclasses import fields, replace

import pytest

from secure_sccvfl.config.rules import GRID, MODULE, REMOVED
from secure_sccvfl.config.sections import BY_WIRE
from secure_sccvfl.data.embedded import embedded_file
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.policy.roles import PolicyError
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.training import RECIPES
from secure_sccvfl.training.config import TrainConfig
from secure_sccvfl.training.modes.base import mode_plan
from secure_sccvfl.training.modes.options import DISCOVERY_OPTIONS, RunOptions
from secure_sccvfl.training.modules import HIDDEN, MODULE_RIDGE, MODULE_STEPS


def test_a_run_without_options_follows_the_first_recipe():
    first = RECIPES.get("scc")
    assert first == TrainConfig()
    assert RunOptions.of({}).train_config() == replace(first, private=True, lambdas=(3.0,))
    assert RunOptions.of({"private_model": False}).train_config() == first


def test_a_model_that_is_not_private_is_for_public_data():
    for given in ({"private_model": False}, {"mode": "split"}):
        assert not RunOptions.of(given).privacy.private_model
        with pytest.raises(ConfigError, match="are for public data"):
            RunOptions.of({**given, "pooled": False})
        with pytest.raises(ConfigError, match="whose evaluation is exact"):
            RunOptions.of({**given, "evaluation": "noisy"})
    assert RunOptions.of({"pooled": False}).privacy.private_model
    for given in ({"private_model": False}, {"mode": "split"}):
        with pytest.raises(ConfigError, match="are for public data"):
            RunOptions.of({**given, "pooled": False, "consistency_from": "records"})
    assert RunOptions.of({"pooled": False, "consistency_from": "records"}).train_config().releases_gram


@pytest.mark.parametrize("method", RECIPES.names)
def test_a_recipe_is_followed_as_it_is(method):
    mode = {"mode": "split"} if method == "paper" else {}
    given = {"method": method, "private_model": False, **mode}
    assert RunOptions.of(given).train_config() == RECIPES.get(method)


def test_every_setting_of_training_is_an_option_or_follows_from_some():
    """`train_config` passes on what has the same flat name; a field that is renamed on one side would be lost."""
    derived = {"private", "alternatives", "discovery"}
    fixed = {"sharpened", "keep_every", "own_marginals"}
    assert {f.name for f in fields(TrainConfig)} - set(BY_WIRE) == derived | fixed
    assert TrainConfig().lambdas == GRID
    assert {f.name for f in fields(DiscoveryConfig)} - set(DISCOVERY_OPTIONS) == {"simulations"}
    assert (MODULE["steps"], MODULE["ridge"]) == (MODULE_STEPS, MODULE_RIDGE)
    assert RunOptions().model.hidden_units == HIDDEN


def test_an_option_that_is_given_wins_over_the_recipe():
    config = RunOptions.of({"method": "paper", "mode": "split", "generator": "minimal", "guard": 0.0}).train_config()
    assert (config.generator.kind, config.generator.scale, config.guard) == ("minimal", 0.2, 0.0)


def test_options_that_were_removed_are_refused_unless_they_change_nothing():
    assert RunOptions.of(REMOVED) == RunOptions.of({})
    for name, left in REMOVED.items():
        with pytest.raises(ConfigError, match=f"{name} = .* was removed"):
            RunOptions.of({name: 0.07 if left == 0.0 else "another"})
    with pytest.raises(ConfigError, match="score = 'gap' was removed"):
        RunOptions.of({"score": "gap"})
    assert RunOptions.of({"controls": "full"}) == RunOptions.of({"controls": "standard"})


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({}, 3.0),
        ({"take_lambda": 5.0}, 5.0),
        ({"take_lambda": 5.0, "lambdas": [1.0, 4.0]}, 4.0),
        ({"take_lambda": 0.0}, 0.0),
    ],
)
def test_lambda_is_the_nearest_of_the_grid(given, taken):
    assert RunOptions.of({**given, "private_model": False}).train_config().taken == taken


def test_a_named_lambda_is_added_to_the_grid():
    config = RunOptions.of({"take_lambda": 5.0, "private_model": False}).train_config()
    assert config.lambdas == tuple(sorted({*TrainConfig().lambdas, 5.0}))
    assert RunOptions.of({"take_lambda": 5.0}).train_config().lambdas == (5.0,)  # every private head is charged


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "moon"}, "no method 'moon'; available: scc, paper"),
        ({"method": "paper"}, "method paper trains by split learning"),
        ({"weight_leak": 0.1}, "weight_leak weighs what parties train in mode split"),
        ({"weight_support": 0.1, "mode": "dp"}, "carry records into others' sums"),
        ({"weight_support": -0.1, "mode": "split"}, "must not be negative"),
        ({"take_lambda": -1.0}, "lambdas must rise from 0 or more"),
        ({"generator": "masked"}, "fitted to records"),
        ({"generator": "cvae"}, "no generator 'cvae'; available: minimal"),
        ({"consistency_from": "records", "mode": "dp"}, "with a private model is for mode sealed, not dp"),
        ({"consistency_from": "records", "mode": "aware"}, "with a private model is for mode sealed, not aware"),
        ({"consistency_from": "records", "generator": "masked"}, "fitted to records"),
        ({"late_refreshes": 0}, "table_releases and late_table_releases are both 0"),
        ({"head_share": 1.0}, "head_share must lie between 0 and 1"),
        ({"rho_m": 1.5}, "rho_m must lie between 0 and 1, got 1.5"),
        ({"fdr": -0.1}, "fdr must lie between 0 and 1"),
        ({"hysteresis": -1.0}, "bad hysteresis -1.0"),
        ({"sketch": "photo"}, "no sketch 'photo'; available: counts, clipped"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"late_refreshes": -1}, "refreshes and late_refreshes not negative"),
        ({"gain": "no"}, "gain must be true or false, not 'no'"),
        ({"score": "conditional"}, "it needs rule fractions, and gain or conditional"),
        ({"evaluation": "loud"}, "loud"),
        ({"evaluation_epsilon": 0.0}, "epsilon"),
        ({"evaluation_delta": 0.0}, "delta"),
        ({"min_group": 0}, "min_group"),
        ({"net": "one"}, "net"),
        *(
            ({"net": "zero", **more}, "net = zero is for the linear head")
            for more in (
                *({"mode": "aware"}, {"mode": "dp"}, {"mode": "split", "private_model": False}),
                {"head": "mlp", "private_model": False},
            )
        ),
        ({"net": "zero", "consistency_from": "records"}, "with consistency_from = tables"),
        ({"kappa": -0.1}, "kappa must be from 0 to 10, got -0.1"),
        ({"kappa": 11.0}, "kappa must be from 0 to 10, got 11"),
        ({"kappa": 0.1, "mode": "aware"}, "kappa is for the linear head of mode sealed"),
        ({"kappa": 0.1, "head": "mlp", "private_model": False}, "kappa is for the linear head of mode sealed"),
    ],
    ids=str,
)
def test_options_that_cannot_be_followed_are_one_line(given, message):
    with pytest.raises(ConfigError, match=message) as refused:
        RunOptions.of(given)
    assert "\n" not in str(refused.value)


def test_mode_split_needs_steps_around_every_late_refresh():
    RunOptions.of({"mode": "split", "steps": 3, "late_refreshes": 2}).check(3)
    with pytest.raises(ConfigError, match="3 steps with consistency are too few for 3 late_refreshes"):
        RunOptions.of({"mode": "split", "steps": 3, "late_refreshes": 3}).check(3)


def test_settings_of_discovery_reach_it():
    given = {"rho_m": 0.4, "rho_p": 0.2, "fdr": 0.05, "hysteresis": 0.3, "per_party": True, "gain": True}
    given |= {
        "conditional": True,
        "sketch": "clipped",
        "clip": 2.0,
        "decay": 0.1,
        "rule": "fractions",
        "score": "paper",
    }
    assert set(given) == set(DISCOVERY_OPTIONS)
    options = RunOptions.of(given)
    assert all(getattr(options.train_config().discovery, name) == value for name, value in given.items())
    assert options.charged == RunOptions().charged + 2, "residuals and risk gains"


@pytest.mark.parametrize("mode", ["sealed", "dp", "split"])
def test_no_mode_declares_a_release_about_validation_records_unless_exact_and_not_private(mode):
    """One lambda of a private head: nothing is compared on validation records."""
    about = {"validation check", "validation summary", "temperature choice"}
    for private in {False, mode != "split"}:
        for evaluation in ("exact", "noisy") if private else ("exact",):
            options = RunOptions.of({"mode": mode, "evaluation": evaluation, "private_model": private})
            declared = set(mode_plan(options.schema(3), options).releases)
            assert "range check" in declared and bool(about & declared) == (not private)


def test_exact_is_the_default_for_public_data_alone():
    assert {RunOptions.of(given).evaluation.kind for given in ({}, {"dataset": "heart"})} == {"exact"}
    assert RunOptions.of({"dataset": "loans.toml"}).evaluation.kind == "noisy"
    assert RunOptions.of({"dataset": "loans.toml", "evaluation": "exact"}).train_config().evaluation == "exact"


def test_net_and_kappa_reach_training_and_kappa_needs_a_mediator(tmp_path):
    assert RunOptions.of({"net": "zero"}).train_config().net_weight > RunOptions.of({}).train_config().net_weight == 0
    assert RunOptions.of({"kappa": 0.1}).train_config().kappa == 0.1
    card = tmp_path / "card.toml"
    with embedded_file("german-full.policy.toml") as path:
        card.write_text(path.read_text("utf-8").replace('role = "M"', 'role = "N"'), "utf-8")
    with pytest.raises(PolicyError, match="makes none a mediator") as refused:
        RunOptions.of({"card": str(card), "kappa": 0.1}).check(3)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        *({"pooled": True, "evaluation": "noisy"}, {"evaluation": "exact"}, {"lambdas": [1.0, 3.0]}),
        *({"mode": "aware"}, {"mode": "dp"}),
    ],
)
def test_baselines_are_for_own_data_with_one_lambda_and_noisy_evaluation(given):
    own = {"dataset": "loans.toml", "baselines": True}
    assert RunOptions.of(own).train_config().baselines and not RunOptions.of({}).evaluation.baselines
    with pytest.raises(ConfigError, match=r"^evaluation\.baselines is for the linear head of mode sealed"):
        RunOptions.of({**own, **given})
