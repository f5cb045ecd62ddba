"""The Statistics contract: what both sides promise, without noise where sums are compared."""

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import BudgetError
from secure_sccvfl.data.features import DataError
from secure_sccvfl.data.layout import one_hot
from secure_sccvfl.data.party import MOMENT_GRID
from secure_sccvfl.discovery.residuals import HALVES, Grid, ResidualDependence, dependence, gains
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import ClippedSums, GroupSums, PlainStatistics
from secure_sccvfl.protocols.steps.clipping import Clipping
from secure_sccvfl.releases.noise import GaussianNoise, NoNoise, SpendingPlan
from tests.support.discovery import WIDTH, Consortium
from tests.support.sessions import in_threads


class View:
    """What one process holds of a consortium: columns of its parties, and s where it is the holder."""

    def __init__(self, group, ranks):
        self.bins = {k: v for rank in ranks for k, v in group.party_columns(rank).items()}
        self.kernel = {k: v for rank in ranks for k, v in group.party_columns(rank, "kernel").items()}
        held = [group.held(rank) for rank in ranks]
        self.groups = [next((v for v in values if v is not None), None) for values in zip(*held, strict=True)]
        self.counts, self.sensitivity = group.counts, group.sensitivity

    def sums(self, statistics, number=0):
        return statistics.release(
            GroupSums(f"sketch-{number}", self.sensitivity), self.bins, self.groups, self.counts
        ).tables


def in_plaintext(group, script, noised=False):
    noise = GaussianNoise(SpendingPlan(releases=1), 0) if noised else NoNoise()
    return in_threads([lambda: script(PlainStatistics(noise), View(group, list(group.columns)))])


def in_secret(group, script, noised=False):
    """With noise: a cap that one release fits and a second one does not."""

    def job(session, statistics, budget):
        return script(statistics, View(group, [session.rank]))

    return group.run(job, SecureStatistics, cap=1.7) if noised else group.run(job)


@pytest.fixture(params=["plain", "secure"])
def run(request):
    return {"plain": in_plaintext, "secure": in_secret}[request.param]


def together(results):
    """What the processes found, by attribute: each feature at its owner alone."""
    merged = []
    for parts in zip(*results, strict=True):
        names = [name for part in parts for name in part]
        assert len(names) == len(set(names)), "a feature's result goes to one process"
        merged.append({name: value for part in parts for name, value in part.items()})
    return merged


def test_group_sums_are_those_of_every_attribute_at_the_owner_of_the_feature(run):
    group = Consortium()
    merged = together(run(group, lambda statistics, local: local.sums(statistics)))
    for attribute, tables in enumerate(merged):
        assert set(tables) == set(group.bins)
        for name, table in tables.items():
            assert np.array_equal(table, group.table(name, attribute))


@pytest.mark.parametrize("rows", [150, 2000])
def test_the_dependence_of_residuals_is_that_of_the_public_grid(run, rows):
    group = Consortium(rows=rows)

    def script(statistics, local):
        return statistics.release(
            ResidualDependence("residuals", WIDTH), local.kernel, local.groups, local.counts
        ).tables

    grid = Grid(group.rows)
    chosen = [one_hot(codes, count) for codes, count in zip(group.codes, group.counts, strict=True)]
    for attribute, scores in enumerate(together(run(group, script))):
        assert set(scores) == set(group.kernel)
        for name, score in scores.items():
            exact = dependence(grid.features(group.kernel[name]), chosen[attribute], grid)
            rounding = 2 * grid.unit * np.sqrt(WIDTH * group.counts[attribute])
            assert abs(score.item() - exact) <= 1.5 * rounding


def test_tables_are_scaled_to_one_length_up_to_the_stated_error(run):
    group = Consortium()
    length = 2.0
    clipping = Clipping(group.rows, 4, group.counts, length)

    def script(statistics, local):
        return statistics.release(ClippedSums("sketch-0", length), local.bins, local.groups, local.counts)

    releases = run(group, script)
    assert {release.numbers["counts"] for release in releases} == {clipping.typical / length}
    tables = together([release.tables for release in releases])
    for name in group.bins:
        whole = np.hstack([part[name] for part in tables])
        exact = np.hstack([group.table(name, attribute) for attribute in range(len(group.counts))])
        exact = exact * length / np.linalg.norm(exact)
        assert np.linalg.norm(whole - exact) <= clipping.distance < 1e-4
        assert np.abs(whole - exact).max() <= length * clipping.error + 2 * clipping.unit


def test_a_length_that_leaves_tables_as_they_are_is_refused(run):
    group = Consortium()

    def script(statistics, local):
        with pytest.raises(DataError, match="at most"):
            statistics.release(ClippedSums("sketch-0", float(group.rows)), local.bins, local.groups, local.counts)
        return local.sums(statistics)

    assert len(together(run(group, script, noised=True))) == len(group.counts)


def test_scaled_tables_are_charged_as_the_papers_mechanism(run):
    """One release of this kind fits the cap, and takes as much of it as one of counts: a second is refused."""

    def script(statistics, local):
        release = statistics.release(ClippedSums("sketch-0", 1.0), local.bins, local.groups, local.counts)
        with pytest.raises(BudgetError):
            local.sums(statistics, 1)
        return release.numbers["deviation"]

    deviations = run(Consortium(), script, noised=True)
    assert min(deviations) > 0 and len(set(deviations)) == 1


def test_sums_of_residuals_by_group_are_exact_and_give_the_same_gains(run):
    """Both halves of a residual sum to one record: their sum counts the group, their difference is its shift."""
    group = Consortium()
    rng = np.random.default_rng(1)
    up = {k: np.rint(MOMENT_GRID * rng.random((group.rows, 1))) for k in group.bins}
    halves = {k: np.hstack([v, MOMENT_GRID - v]) for k, v in up.items()}

    def script(statistics, local):
        mine = {k: halves[k] for k in local.bins}
        bound = MOMENT_GRID * local.sensitivity
        return statistics.release(GroupSums("risk gains", bound, HALVES), mine, local.groups, local.counts).tables

    for attribute, sums in enumerate(together(run(group, script))):
        chosen = one_hot(group.codes[attribute], group.counts[attribute])
        for name, table in sums.items():
            assert np.array_equal(table, halves[name].T @ chosen)
            sizes, exact = chosen.sum(axis=0), (2 * up[name] / MOMENT_GRID - 1)[:, 0]
            means = chosen.T @ exact / sizes
            between = (sizes / group.rows * (means - exact.mean()) ** 2).sum()
            assert gains(table / MOMENT_GRID, sizes, 0.0) == pytest.approx(between, abs=1e-12)


def change_bins(local, change):
    if "a" in local.bins:
        local.bins["a"] = change(local.bins["a"].copy())


def cell(value):
    """A change of one cell of the first feature."""

    def change(block):
        block[3, 0] = value
        return block

    return lambda local: change_bins(local, change)


def change_groups(local, change):
    if local.groups[0] is not None:
        local.groups[0] = change(local.groups[0])


BAD = {
    "a gap": cell(np.nan),
    "half a record": cell(0.5),
    "less than nothing": cell(-1.0),
    "a long row": cell(17.0),
    "a record in two bins": lambda local: change_bins(local, lambda block: np.vstack([np.ones(3), block[1:]])),
    "a record too few": lambda local: change_bins(local, lambda block: block[:-1]),
    "an unknown group": lambda local: change_groups(local, lambda codes: codes + 1),
    "a group below the first": lambda local: change_groups(local, lambda codes: codes - 1),
    "groups that are not whole": lambda local: change_groups(local, lambda codes: codes.astype(float)),
    "no s at the holder": lambda local: change_groups(local, lambda codes: None),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_of_one_party_is_refused_at_all_before_anything_is_charged(run, bad):
    """One release fits the cap: it does so after the refusals too."""
    group = Consortium()

    def script(statistics, local):
        bins, groups = dict(local.bins), list(local.groups)
        BAD[bad](local)
        with pytest.raises(DataError):
            local.sums(statistics)
        if bad in ("a gap", "a long row", "an unknown group", "no s at the holder"):
            local.kernel = {k: np.where(np.isnan(local.bins[k][:, :1]), np.nan, v) for k, v in local.kernel.items()}
            local.kernel = {
                k: v * (local.bins[k].max() if local.bins[k].max() > 1 else 1) for k, v in local.kernel.items()
            }
            with pytest.raises(DataError):
                statistics.release(ResidualDependence("residuals", WIDTH), local.kernel, local.groups, local.counts)
        local.bins, local.groups = bins, groups
        return local.sums(statistics)

    assert len(together(run(group, script, noised=True))) == len(group.counts)


def test_a_release_beyond_the_cap_is_refused_at_every_process(run):
    def script(statistics, local):
        local.sums(statistics)
        with pytest.raises(BudgetError):
            local.sums(statistics, 1)
        return True

    assert all(run(Consortium(), script, noised=True))
