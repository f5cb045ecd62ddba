"""The stable score, p-values under independence and under dependence, and redraws."""

from __future__ import annotations

import numpy as np
import pytest

from secure_sccvfl.discovery.scores import OwnTables, group_sizes, p_value, packed, shrink, stable_scores, unpacked

LEVELS = (0.02, 0.05, 0.1, 0.2)
SHAPES = {"few": (3, (400, 160)), "many bins": (12, (400, 160)), "small groups": (6, (500, 60, 9, 4))}


def test_the_score_weighs_groups_by_size_and_gives_noise_nothing():
    table = np.array([[90.0, 10.0], [10.0, 90.0]])
    assert stable_scores(table, table.sum(axis=0), 0.0) == pytest.approx(0.4, abs=0.01)
    independent = np.outer([3.0, 5.0, 2.0], [10.0, 30.0])
    assert stable_scores(independent, independent.sum(axis=0), 5.0) == 0.0
    few = np.array([[500.0, 500.0, 4.0], [500.0, 500.0, 0.0]])
    assert stable_scores(few, few.sum(axis=0), 0.0) < 0.01, "four people cannot rule the score"
    stack = np.stack([table, table[::-1]])
    assert stable_scores(stack, stack.sum(axis=1), 1.0).shape == (2,)


def test_bins_that_noise_made_negative_add_nothing_to_a_score_of_nothing():
    table = np.array([[50.0, 25.0], [50.0, 25.0], [-4.0, -3.0]])
    assert shrink(table, np.array([96.0, 47.0]), 10.0).kept.max() == 0
    assert stable_scores(table, np.array([96.0, 47.0]), 10.0) == 0.0


def released(rng, bins, sizes, deviation, columns=3, follow=0.0):
    """Noisy tables of one owner: the first column follows the group as told, the others do not."""
    tables = {}
    for column in range(columns):
        shares = rng.dirichlet(np.full(bins, 2.0))
        turned = (1 - follow) * shares + follow * shares[::-1] if column == 0 else shares
        groups = [shares] + [turned] * (len(sizes) - 1)
        counts = np.column_stack([rng.multinomial(n, p) for n, p in zip(sizes, groups, strict=True)])
        tables[f"x{column}"] = counts + rng.normal(0, deviation, counts.shape)
    return tables


def p_values(kind, bins, sizes, deviation, repeats, claimed=None, follow=0.0, seed=0):
    """P-values of the first column over repetitions. `claimed`: the noise that the test believes in."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(repeats):
        tables = released(rng, bins, sizes, deviation, follow=follow)
        own = OwnTables(tables, deviation if claimed is None else claimed, kind)
        found.append(float(p_value(np.array(own.score("x0")), own.independent_scores("x0", 100, rng))))
    return np.array(found)


@pytest.mark.parametrize("kind", ["stable", "paper"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("deviation", [0.0, 8.0])
def test_p_values_under_independence_are_not_too_small(kind, shape, deviation):
    bins, sizes = SHAPES[shape]
    found = p_values(kind, bins, sizes, deviation, repeats=400)
    for level in LEVELS:
        assert (found <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / 400)


@pytest.mark.parametrize("kind", ["stable", "paper"])
def test_a_test_that_forgets_the_noise_is_caught(kind):
    found = p_values(kind, 12, (400, 160), 8.0, repeats=200, claimed=0.0)
    assert (found <= 0.05).mean() > 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("kind", ["stable", "paper"])
def test_a_real_dependence_is_found(kind):
    found = p_values(kind, 4, (400, 160), 4.0, repeats=40, follow=1.0, seed=1)
    assert np.median(found) <= 0.05 and (p_values(kind, 4, (400, 160), 4.0, 40, seed=1) > 0.05).mean() > 0.8


def test_an_empty_table_is_evidence_of_nothing():
    own = OwnTables({"a": np.zeros((3, 2))}, 1.0, "stable")
    assert own.independent_scores("a", 50, np.random.default_rng(0)).size == 0
    assert p_value(np.zeros(1), np.zeros(0)) == 1.0


def test_sizes_are_averaged_over_the_tables_of_an_owner():
    tables = released(np.random.default_rng(0), 4, (400, 160), 8.0, columns=25)
    assert group_sizes(tables.values()) == pytest.approx([400, 160], abs=4 * 8 * 2 / 5)


def test_redraws_are_around_what_was_seen_and_as_wide_as_two_runs_differ():
    rng = np.random.default_rng(2)
    shares = np.array([[0.6, 0.3], [0.3, 0.3], [0.1, 0.4]])

    def seen():
        counts = np.column_stack([rng.multinomial(n, p) for n, p in zip((400, 160), shares.T, strict=True)])
        return OwnTables({"a": counts + rng.normal(0, 4.0, counts.shape)}, 4.0, "stable")

    runs = [seen() for _ in range(60)]
    differences = np.diff([own.score("a") for own in runs])
    redrawn = np.concatenate([own.redrawn_scores("a", 20, rng) - own.score("a") for own in runs])
    assert abs(redrawn.mean()) < 0.02
    assert redrawn.std() == pytest.approx(differences.std(), rel=0.25)


def test_redrawn_numbers_survive_the_announcement():
    values = {"a b": np.array([0.25, 0.5]), "c": np.array([1.0, 0.0])}
    told = packed(values)
    assert len(told) == 4 and {k: v.tolist() for k, v in unpacked(told).items()} == {
        k: v.tolist() for k, v in values.items()
    }
