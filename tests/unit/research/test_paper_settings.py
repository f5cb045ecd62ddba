"""The paper's hyperparameters and components, against the values of its tables written here."""

from dataclasses import asdict, replace

import pytest

from secure_sccvfl.evaluation.methods import METHODS
from secure_sccvfl.research.experiments import methods_of
from secure_sccvfl.research.paper.generators import GeneratorTerms
from secure_sccvfl.research.paper.methods import (
    COMPONENTS,
    PAPER_ABLATIONS,
    SWEEPS,
    SWITCHES,
    baseline_settings,
    paper_with,
)
from secure_sccvfl.research.paper.settings import FLIP_WEIGHT, SCG_WEIGHT, PaperSettings, settings_of

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
    found = settings_of(name)
    assert tuple(getattr(found, field) for field in ORDER) == TABLE[name]
    weights = (found.lambda_cons, found.lambda_adv, found.lambda_gen, found.edit_scale, found.rho_m, found.rho_p)
    assert weights == (1.2, 0.03, 0.01, 0.20, 0.60, 0.50)
    assert found.patience_from == "start" and found.proxies == "pass" and found.roles == "letter"
    assert found.partition == "section" and found.refreshes == 1
    assert found.embedding == "true" and found.adversary == "parties"


def test_other_data_sets_have_the_column_of_compas_and_weights_of_early_stopping_are_small() -> None:
    assert settings_of("mobility") == settings_of("acs12") == settings_of("compas") != settings_of("german")
    assert (SCG_WEIGHT, FLIP_WEIGHT) == (0.1, 0.1)


@pytest.mark.parametrize("name", ACTIVE)
def test_baselines_have_the_components_of_the_table_and_share_the_rest(name: str) -> None:
    assert set(COMPONENTS) == set(ACTIVE)
    found = baseline_settings("compas", name)
    mask = {"none": "none", "shuffle": "M shuffled", "flip": "M flipped", "generator": found.mask}[found.edits]
    assert (mask, found.lambda_cons > 0, found.generating, found.lambda_adv > 0) == ACTIVE[name]
    assert found.epochs == 80 and not found.temperature
    assert not (found.leak_adversary and found.lambda_adv == 0), "no adversary at all where the table has none"
    shared = asdict(settings_of("compas"))
    for field in (*ORDER[:-4], "warmup", "patience"):
        assert getattr(found, field) == shared[field]
    for weight in ("lambda_cons", "lambda_gen", "lambda_adv"):
        assert getattr(found, weight) in (0.0, shared[weight]), "same weight, or off"


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
        PaperSettings(**{name: BAD[name]})


def test_the_leak_has_an_adversary_only_where_it_has_a_weight() -> None:
    assert settings_of("german").leak_adversary
    assert not replace(settings_of("german"), terms=GeneratorTerms(eta=0.0)).leak_adversary
    assert not replace(settings_of("german"), edits="shuffle").leak_adversary
