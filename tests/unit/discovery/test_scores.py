"""Scores from noisy tables, by owners and under MPC: p-values under independence and dependence, and redraws."""

from __future__ import annotations

import numpy as np
import pytest

from secure_sccvfl.discovery.scores import (
    Opened,
    OpenedSquares,
    OwnTables,
    group_sizes,
    p_value,
    packed,
    projection,
    shrink,
    stable_scores,
    unpacked,
)
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from tests.support.discovery import Consortium

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


@pytest.mark.parametrize("groups", range(2, 10))
def test_the_variance_of_a_groups_difference_is_that_of_simulated_tables(groups):
    """Within 3 % of the formula. The noise of a group's shares alone, without that of the pooled ones, is not."""
    rng, pooled, deviation = np.random.default_rng(groups), np.array([0.1, 0.2, 0.3, 0.4]), 12.0
    sizes = np.linspace(500, 100, groups).astype(int)
    counts = np.stack([rng.multinomial(n, pooled, size=30_000) for n in sizes], axis=-1)
    tables = counts + rng.normal(0, deviation, counts.shape)
    observed = tables / sizes
    difference = observed - (observed * sizes / sizes.sum()).sum(axis=-1, keepdims=True)
    simulated = difference.var(axis=0).sum(axis=0)
    formula = (
        shrink(tables, np.broadcast_to(sizes, (len(tables), groups)), deviation).variance.mean(axis=0).sum(axis=0)
    )
    assert simulated == pytest.approx(formula, rel=0.03)
    sampled = (pooled * (1 - pooled)).sum() * (1 - sizes / sizes.sum()) / sizes
    without = sampled + len(pooled) * deviation**2 / sizes**2
    assert (np.abs(without / simulated - 1) > 0.03).any(), "the noise of p_g would pass for that of p_g - q"


def released(rng, bins, sizes, deviation, columns=3, follow=0.0):
    """Noisy tables of one owner: the first column follows the group by `follow`, the others do not."""
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
    rng, values = np.random.default_rng(seed), []
    for _ in range(repeats):
        tables = released(rng, bins, sizes, deviation, follow=follow)
        own_tables = OwnTables(tables, deviation if claimed is None else claimed, kind)
        values.append(float(p_value(np.array(own_tables.score("x0")), own_tables.independent_scores("x0", 100, rng))))
    return np.array(values)


@pytest.mark.parametrize(
    ("kind", "shape", "deviation"),
    [("stable", shape, deviation) for shape in SHAPES for deviation in (0.0, 8.0)] + [("paper", "few", 8.0)],
)
def test_p_values_under_independence_are_not_too_small(kind, shape, deviation):
    bins, sizes = SHAPES[shape]
    values = p_values(kind, bins, sizes, deviation, repeats=400)
    for level in LEVELS:
        assert (values <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / 400)


@pytest.mark.parametrize("kind", ["stable", "paper"])
def test_a_test_that_forgets_the_noise_is_caught(kind):
    values = p_values(kind, 12, (400, 160), 8.0, repeats=200, claimed=0.0)
    assert (values <= 0.05).mean() > 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("kind", ["stable", "paper"])
def test_a_real_dependence_is_found(kind):
    values = p_values(kind, 4, (400, 160), 4.0, repeats=40, follow=1.0, seed=1)
    assert np.median(values) <= 0.05 and (p_values(kind, 4, (400, 160), 4.0, 40, seed=1) > 0.05).mean() > 0.8


def test_an_empty_table_is_evidence_of_nothing():
    own_tables = OwnTables({"a": np.zeros((3, 2))}, 1.0, "stable")
    assert own_tables.independent_scores("a", 50, np.random.default_rng(0)).size == 0
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
    differences = np.diff([run.score("a") for run in runs])
    redrawn = np.concatenate([run.redrawn_scores("a", 20, rng) - run.score("a") for run in runs])
    assert abs(redrawn.mean()) < 0.02
    assert redrawn.std() == pytest.approx(differences.std(), rel=0.25)


def test_redrawn_numbers_survive_the_announcement():
    values = {"a b": np.array([0.25, 0.5]), "c": np.array([1.0, 0.0])}
    announced = packed(values)
    assert len(announced) == 4 and {k: v.tolist() for k, v in unpacked(announced).items()} == {
        k: v.tolist() for k, v in values.items()
    }


def expected(tables):
    """Squares and sizes from the tables of all parties, for each attribute."""
    opened = []
    for part in tables:
        sizes = group_sizes(part.values())
        projector = projection(sizes)
        squares = {k: ((table @ projector) ** 2).sum() for k, table in part.items()}
        opened.append(Opened(squares, {k: (table.sum(axis=1) ** 2).sum() for k, table in tables[0].items()}, sizes))
    return opened


def joined(results):
    """The tables of all parties, from what each received."""
    return tuple({k: v for tables in parts for k, v in tables.items()} for parts in zip(*results, strict=True))


def close(opened, wanted):
    for one, exact in zip(opened, wanted, strict=True):
        assert list(one.squares) == list(exact.squares) and np.allclose(one.sizes, exact.sizes, atol=1e-9)
        for mine, its in ((one.squares, exact.squares), (one.marginals, exact.marginals)):
            assert np.allclose(list(mine.values()), list(its.values()), rtol=2e-4, atol=0.5)


@pytest.mark.parametrize(("releases", "hidden"), [(1, False), (3, False), (2, True)])
def test_all_parties_learn_the_squares_of_the_mean_noisy_table(releases, hidden):
    group = Consortium()
    held = np.ones((group.rows, len(group.columns)), bool) if hidden else None
    if held is not None:
        held[::7, 1] = False

    def job(session, statistics, budget):
        noisy_tables = [group.release_counts(session, statistics, number) for number in range(releases)]
        mean = tuple(
            {k: np.mean([one[j][k] for one in noisy_tables], axis=0) for k in noisy_tables[0][j]} for j in range(2)
        )
        return mean, statistics.projected(mean, releases, group.counts)

    results = group.run(job, SecureStatistics, held=held)
    wanted = expected(joined([mean for mean, _ in results]))
    for _, opened in results:
        close(opened, wanted)
        assert opened[0].squares == results[0][1][0].squares, "the same numbers at every party"


class Steered(SecureStatistics):
    """Noise that leads exact tables to chosen noisy ones; no configuration of a run makes one of these."""

    target: np.ndarray
    exact: np.ndarray

    def _noise(self, event, unit, rows, holders):
        moved = self._session.owned(self.target - self.exact, owner=0, shape=(rows, len(holders)), bits=0)
        return self._session.zeros((rows, len(holders)), 0) + moved


def test_what_is_opened_is_a_function_of_the_noisy_tables_alone():
    """Two data sets of other records, groups and bins with the same noisy table: every opened number is the same.

    A score that used an exact count would differ. Truncation rounds by masks, by far less than a record.
    """
    opened = []
    for seed in (0, 1):
        group = Consortium(seed=seed)
        names = [name for party_columns in group.columns.values() for name in party_columns]
        exact = np.vstack([np.hstack([group.table(name, j) for j in range(2)]) for name in names])
        target = np.round(np.random.default_rng(7).normal(60, 25, exact.shape)).astype(np.int64)
        kind = type("Given", (Steered,), {"target": target, "exact": exact.astype(np.int64)})

        def job(session, statistics, budget, group=group):
            tables = group.release_counts(session, statistics)
            return statistics.projected(tables, 1, group.counts)

        opened.append(group.run(job, kind)[0])
        assert not np.array_equal(exact, target)
    close(*opened)
    assert all(np.array_equal(one.sizes, other.sizes) for one, other in zip(*opened, strict=True))


def test_tables_of_an_earlier_session_are_brought_by_their_owners():
    """As a run that resumes does, or one with kept tables: the same numbers, without a charge."""
    group = Consortium()
    first = group.run(lambda s, statistics, budget: group.release_counts(s, statistics), SecureStatistics)

    def job(session, statistics, budget):
        opened = statistics.projected(first[session.rank], 1, group.counts)
        return opened, len(budget.charges)

    results = group.run(job, SecureStatistics)
    for opened, charges in results:
        close(opened, expected(joined(first)))
        assert charges == 0


def opened_squares(table, deviation, rng, sizes=None):
    """sizes: of groups, where they are known better than one table tells, as from many."""
    noisy = table + rng.normal(0, deviation, table.shape)
    sizes = noisy.sum(axis=0) if sizes is None else sizes
    square, marginal = (float((values**2).sum()) for values in (noisy @ projection(sizes), noisy.sum(axis=1)))
    return OpenedSquares("s", Opened({"a": square}, {"a": marginal}, sizes), {"a": len(table)}, deviation)


@pytest.mark.parametrize(("deviation", "bins"), [(4.0, 2), (13.0, 5), (4.0, 10)])
def test_p_values_of_independent_columns_are_not_too_small(deviation, bins):
    """Of 2,000 at most 1 in 10 below .1, with 5 deviations more (rate of a false alarm below 1e-6); bins are uneven.

    The control: columns that follow the groups have small ones.
    """
    rng = np.random.default_rng(3)
    shares, groups = np.arange(1, bins + 1) / np.arange(1, bins + 1).sum(), np.array([0.2, 0.8])
    cells = np.outer(shares, groups)
    tables = rng.multinomial(600, cells.ravel(), 2000).reshape(-1, bins, 2)
    low = np.mean([opened_squares(t, deviation, rng).p_values("a", k) <= 0.1 for k, t in enumerate(tables)])
    assert low <= 0.1 + 5 * np.sqrt(0.09 / 2000)
    follows = np.outer(shares, groups) * 600
    follows[0, 0] += 100
    assert np.mean([opened_squares(follows, deviation, rng).p_values("a", k) <= 0.1 for k in range(50)]) > 0.9


def test_scores_are_free_of_the_noise_and_one_for_a_column_that_is_s():
    rng = np.random.default_rng(4)
    same = np.diag([200.0, 400.0])
    assert opened_squares(same, 0.0, rng).score("a") == pytest.approx(1.0)
    apart = np.array([[100.0, 200.0], [100.0, 200.0]])
    assert opened_squares(apart, 0.0, rng).score("a") == pytest.approx(0.0)
    half = np.array([[150.0, 100.0], [50.0, 300.0]])
    exact = float(opened_squares(half, 0.0, rng).score("a"))
    many = np.vstack([half, np.zeros((8, 2))])  # noise in ten bins adds a fifth to the square
    noisy = [float(opened_squares(many, 18.0, rng, half.sum(axis=0)).score("a")) ** 2 for _ in range(400)]
    assert np.mean(noisy) == pytest.approx(exact**2, abs=0.02) and 5 * np.std(noisy) / 20 < 0.02
    assert exact == pytest.approx(0.5), "the length of the gap .5 in both bins, over sqrt(2)"


def test_redraws_are_spread_like_other_runs():
    rng = np.random.default_rng(5)
    half = np.array([[150.0, 100.0], [50.0, 300.0]])
    cells = (half / half.sum()).ravel()
    runs = [opened_squares(rng.multinomial(600, cells).reshape(2, 2), 6.0, rng) for _ in range(400)]
    seen = np.array([one.opened.squares["a"] for one in runs])
    drawn = np.concatenate([one.redrawn("a", 32, k) for k, one in enumerate(runs)])
    assert drawn.mean() == pytest.approx(seen.mean(), rel=0.15)
    assert seen.std() < drawn.std() < 2 * seen.std(), "wider by what a run does not know of itself"
    none = opened_squares(np.array([[100.0, 200.0], [100.0, 200.0]]), 6.0, rng)
    assert none.redrawn("a", 200, 0).mean() < seen.mean() / 4


def test_one_group_without_records_has_no_score():
    alone = OpenedSquares("s", Opened({"a": 0.0}, {"a": 0.0}, np.array([300.0, -4.0])), {"a": 3}, 0.0)
    assert np.isfinite(alone.score("a")) and 0 < alone.p_values("a", 0) <= 1
    assert np.isfinite(alone.redrawn("a", 5, 0)).all()
