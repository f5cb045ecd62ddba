"""Shrinkage of ordered and crossed groups: effects add up, and estimates come nearer to the truth.

The truth is known: distributions that follow a smooth curve over ordered cells, or sums of the effects of two
attributes with a small interaction.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import secure_sccvfl as scc
from secure_sccvfl.config.sections import wire_names
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.groups import Structure
from secure_sccvfl.data.party import make_party
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.discovery.scores import proper, shrunken
from secure_sccvfl.discovery.structured import effects, structured_shares
from secure_sccvfl.training.config import TrainConfig

ORDERED: Structure = ((12, True),)
CROSSED: Structure = ((2, False), (4, False))
MIXED: Structure = ((2, False), (5, True))
BINS, NOISE = 5, 12.0


def shares_of(groups: int, rng: np.random.Generator) -> np.ndarray:
    return rng.dirichlet(np.full(groups, 8.0))


def truth_of(structure: Structure, rng: np.random.Generator) -> np.ndarray:
    """Distributions of the groups (bins x groups) that have the structure, and a little besides it."""
    base, sizes = rng.normal(0, 0.5, (BINS, 1)), [size for size, _ in structure]
    logits = base + rng.normal(0, 0.03, (BINS, int(np.prod(sizes))))
    for (size, ordered), level in zip(
        structure, np.unravel_index(np.arange(int(np.prod(sizes))), sizes), strict=True
    ):
        along = np.linspace(-1, 1, size)
        slope, bend = rng.normal(0, 0.5, (BINS, 1)), rng.normal(0, 0.3, (BINS, 1))
        effect = slope * along + bend * along**2 if ordered else rng.normal(0, 0.4, (BINS, size))
        logits = logits + effect[:, level]
    return np.exp(logits) / np.exp(logits).sum(axis=0)


def released(truth: np.ndarray, sizes: np.ndarray, rng: np.random.Generator, deviation: float = NOISE) -> np.ndarray:
    counts = np.stack([rng.multinomial(n, p) for n, p in zip(sizes, truth.T, strict=True)], axis=-1)
    return counts + rng.normal(0, deviation, counts.shape)


@pytest.mark.parametrize("structure", [ORDERED, CROSSED, MIXED, ((3, True),), ((2, True), (2, False), (3, True))])
def test_effects_add_up_to_the_difference_from_the_pooled_distribution(structure: Structure) -> None:
    groups = int(np.prod([size for size, _ in structure]))
    weights = shares_of(groups, np.random.default_rng(0))
    total = sum(effect.contrast @ effect.back for effect in effects(weights, structure))
    assert np.allclose(total, np.eye(groups) - weights[:, None])


@pytest.mark.parametrize("structure", [ORDERED, CROSSED, MIXED])
def test_without_noise_and_with_many_records_the_tables_themselves_are_left(structure: Structure) -> None:
    rng = np.random.default_rng(1)
    truth = truth_of(structure, rng)
    sizes = np.rint(1e7 * shares_of(truth.shape[1], rng))
    assert np.allclose(shrunken(truth * sizes, sizes, 0.0, structure), truth, atol=2e-3)


def test_one_list_of_groups_is_the_same_by_effects() -> None:
    rng = np.random.default_rng(2)
    truth = truth_of(((4, False),), rng)
    sizes = np.array([400, 300, 200, 100])
    table = released(truth, sizes, rng)
    by_effects = proper(structured_shares(table, sizes, NOISE, ((4, False),)))
    assert np.allclose(by_effects, shrunken(table, sizes, NOISE))


@pytest.mark.parametrize(("structure", "gain"), [(ORDERED, 0.9), (CROSSED, 0.97), (MIXED, 0.92)])
def test_structure_comes_nearer_to_the_truth_than_groups_alone_and_than_the_pooled_distribution(
    structure: Structure, gain: float
) -> None:
    errors: dict[str, list[float]] = {"structured": [], "groups alone": [], "pooled": []}
    for seed in range(40):
        rng = np.random.default_rng(seed)
        truth = truth_of(structure, rng)
        sizes = np.rint(3000 * shares_of(truth.shape[1], rng)).astype(int)
        table = released(truth, sizes, rng)
        pooled = np.tile(proper(table.sum(axis=1, keepdims=True)), (1, truth.shape[1]))
        estimates = {
            "structured": shrunken(table, sizes, NOISE, structure),
            "groups alone": shrunken(table, sizes, NOISE),
            "pooled": pooled,
        }
        for name, estimate in estimates.items():
            errors[name].append(0.5 * np.abs(estimate - truth).sum(axis=0).mean())
    mean = {name: float(np.mean(values)) for name, values in errors.items()}
    assert mean["structured"] < gain * mean["groups alone"] and mean["groups alone"] < mean["pooled"], mean


def test_exact_marginals_halve_the_variance_of_two_groups_and_are_for_the_owner_alone() -> None:
    """The penalty of a private head must not depend on them: no code of runs or policy may call it."""
    rng = np.random.default_rng(4)
    party = make_party(0, "a", [Feature("x", "category", categories=("a", "b", "c"))], rng.integers(0, 3, (900, 1)))
    codes = rng.integers(0, 2, 900)
    exact = party.bins()["x"].T @ np.eye(2)[codes]
    tables = [NoisyTables("s", {"x": exact + rng.normal(0, 20, (3, 2))}, 20.0) for _ in range(2000)]
    sharper = [one.with_marginals([party]) for one in tables]
    assert sharper[0].deviation == pytest.approx(20 / 2**0.5)
    assert sharper[0].tables["x"].sum(axis=1) == pytest.approx(exact.sum(axis=1))
    seen = np.std([one.tables["x"] - exact for one in sharper])
    assert seen == pytest.approx(sharper[0].deviation, rel=0.03)
    users = {path.name for path in Path(scc.__file__).parent.rglob("*.py") if "with_marginals" in path.read_text()}
    assert users == {"noisy_tables.py", "explain.py", "examples.py", "coupling_bounds.py", "trainer.py"}
    with pytest.raises(ValueError, match="exact counts of records into the penalty"):
        TrainConfig(private=True, own_marginals=True)
    assert "own_marginals" not in wire_names(), "an experiment sets it, never a session"


def test_a_group_that_noise_hides_gets_the_pooled_distribution() -> None:
    rng = np.random.default_rng(3)
    truth = np.array([[0.9, 0.1], [0.1, 0.9]])
    sizes = np.array([2000, 60])
    table = released(truth, sizes, rng, 30.0)
    estimate = shrunken(table, sizes, 30.0)
    assert np.allclose(estimate[:, 1], proper(table.sum(axis=1, keepdims=True))[:, 0]), "60 records, noise of 30"
    assert np.abs(shrunken(released(truth, sizes, rng, 3.0), sizes, 3.0) - truth).max() < 0.2
