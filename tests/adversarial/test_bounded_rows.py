"""Rows and logits of a private head at their worst: its price needs rows within a public radius and a convex loss.

An attacker chooses the record. So here are the longest records of a public dictionary, with gaps and features that
are left out, in every encoder of a private head and as the ring rounds them; and the slope of the loss, as it is
computed in secret, at the largest logits that a finished head may have.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.special import expit

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.models.aware import AwareEncoder, aware_columns, aware_radius, make_aware
from secure_sccvfl.models.encoders import (
    FeatureEncoder,
    public_encoder,
    public_radius,
    shortened,
    without,
)
from secure_sccvfl.policy.roles import Roles
from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.operations.sigmoid import CAP, CAP_SHIFT, CAP_STEEPNESS, capped_slope
from secure_sccvfl.protocols.session.runtime import Session, share_of
from secure_sccvfl.protocols.steps.head import LOGIT_BITS, RESIDUAL_BITS
from secure_sccvfl.protocols.steps.second_order import TOLERANCE, bounded_slope
from secure_sccvfl.releases.mechanisms import LARGEST_CURVATURE, HeadPlan
from secure_sccvfl.training.engine import LARGEST_LOGIT
from tests.support.sessions import run_session

FEATURES = (
    Feature("hours", "number", low=0.0, high=10.0),
    Feature("gap", "number", low=0.0, high=10.0, missing=True),
    Feature("kind", "category", categories=("a", "b", "c")),
    Feature("two", "category", categories=("x", "y"), missing=True),
)
LAYOUT = Layout.of(FEATURES)
ROLES = Roles({"hours": "M", "gap": "N", "kind": "M", "two": "N"})


def corners() -> np.ndarray:
    """Every combination of the ends of each number, of gaps, and of categories, in the input space."""
    choices = []
    for block in LAYOUT.blocks:
        if block.one_hot:
            choices.append(np.eye(block.width))
        else:
            values = [[0.0], [1.0], [0.5], [0.05]]
            rows = [value + [0.0] * (block.width - 1) for value in values]
            choices.append(np.array(rows + ([[0.0, 1.0]] if block.width > 1 else [])))
    return np.array([np.concatenate(one) for one in product(*choices)])


def edge_tables(rng: np.random.Generator) -> NoisyTables:
    """Tables that noise has driven to the edge: shares of groups near 0, means far apart."""
    tables = {}
    for feature in FEATURES:
        shape = (feature.bins, 2)
        tables[feature.name] = np.abs(rng.normal(0, 50, shape)) * rng.choice([0.0, 1.0], shape)
    return NoisyTables("s", tables, 5.0, 1)


def in_the_ring(rows: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """Rows as they come out of the ring: in columns divided by the root of this curvature, twice rounded."""
    selected = ring.decode(ring.encode(rows))
    scale = 1 / np.sqrt(curvature)
    away = np.sign(selected) * 2.0**-16  # a truncation is at most one unit off
    return np.asarray((np.rint(selected * scale * 2**16) / 2**16 + away) / scale)


def curvatures(columns: int) -> list[np.ndarray]:
    """The largest that are let through, evenly and on one column."""
    one = np.full(columns, 0.1)
    one[0] = LARGEST_CURVATURE * columns - 0.1 * (columns - 1)
    return [np.full(columns, LARGEST_CURVATURE), one]


def check(rows: np.ndarray, radius: float, tight: bool) -> None:
    """All rows of one party are within the plan's radius once rounded; and not all are far below it."""
    plan = HeadPlan.of([radius], rows.shape[1], 1, "binary")
    longest = 0.0
    for curvature in curvatures(rows.shape[1]):
        rounded = np.column_stack([in_the_ring(rows, curvature), np.ones(len(rows))])
        longest = max(longest, float(np.sqrt((rounded**2).sum(axis=1)).max()))
    assert longest <= plan.radius
    if tight:
        assert longest > 0.98 * plan.radius, "a bound that is far away would hide an error"


def test_plain_rows_are_within_the_public_radius_and_reach_it() -> None:
    check(public_encoder(LAYOUT)(corners()), public_radius(LAYOUT), tight=True)


@pytest.mark.parametrize("dropped", [("kind",), ("gap",), ("hours", "two")])
def test_rows_without_some_features_are_no_longer(dropped: tuple[str, ...]) -> None:
    check(without(public_encoder(LAYOUT), dropped, corners())(corners()), public_radius(LAYOUT), tight=False)


@pytest.mark.parametrize("seed", range(5))
def test_aware_rows_are_within_their_radius_whatever_the_tables_are(seed: int) -> None:
    encoder = make_aware(
        LAYOUT, public_encoder(LAYOUT), edge_tables(np.random.default_rng(seed)), ROLES, private=True
    )
    assert encoder.columns == aware_columns(LAYOUT, ROLES, 2)
    for group in range(2):
        check(encoder(corners(), group), aware_radius(LAYOUT, ROLES), tight=False)


def test_aware_rows_that_are_not_shortened_would_be_longer() -> None:
    """The control: at some tables they are, so the bound must be enforced."""
    lengths = []
    for seed in range(20):
        encoder = make_aware(LAYOUT, public_encoder(LAYOUT), edge_tables(np.random.default_rng(seed)), ROLES)
        assert isinstance(encoder, AwareEncoder) and np.isinf(encoder.radius)
        lengths += [float(np.sqrt((encoder(corners(), group) ** 2).sum(axis=1)).max()) for group in range(2)]
    assert max(lengths) > aware_radius(LAYOUT, ROLES)


def learned(seed: int) -> FeatureEncoder:
    """What mode dp makes for a private head: units that noise has driven anywhere."""
    rng, plain = np.random.default_rng(seed), public_encoder(LAYOUT)
    units = rng.normal(0, 30, (plain.columns, 4)), rng.normal(0, 30, 4), np.zeros(4)
    return FeatureEncoder(plain, *units, float(np.hypot(public_radius(LAYOUT), 1.0)))


@pytest.mark.parametrize("dropped", [(), ("kind",), ("hours",)])
def test_rows_with_learned_units_are_within_their_radius(dropped: tuple[str, ...]) -> None:
    encoder = learned(0)
    assert float(np.sqrt((replace(encoder, radius=np.inf)(corners()) ** 2).sum(axis=1)).max()) > encoder.radius
    check(without(encoder, dropped, corners())(corners()), encoder.radius, tight=not dropped)


def test_a_row_follows_from_no_other_record_also_if_a_feature_is_left_out() -> None:
    """Units were centred on the training rows anew when a feature was dropped: every row moved with every record."""
    rows = corners()
    encoded = [without(learned(1), ("kind",), part)(rows[:3]) for part in (rows, rows[:40])]
    assert np.array_equal(encoded[0], encoded[1])
    loose = replace(learned(1), radius=np.inf)  # the control: an encoder of a head that is not private
    moved = [without(loose, ("kind",), part)(rows[:3]) for part in (rows, rows[:40])]
    assert not np.array_equal(moved[0], moved[1])


def test_shortening_keeps_short_rows_and_takes_zero() -> None:
    rows = np.array([[0.0, 0.0], [3.0, 4.0], [0.3, 0.4]])
    assert np.allclose(shortened(rows, 1.0), [[0, 0], [0.6, 0.8], [0.3, 0.4]])


# the slope of the loss


def slopes(task: str, logits: np.ndarray, label: float) -> np.ndarray:
    """As computed in secret, with the precise sigmoid."""

    def job(session: Session) -> np.ndarray:
        share = session.party.zero_share(logits.shape)
        if session.rank == 0:
            share = share + ring.encode(logits, LOGIT_BITS)
        mark = np.full(logits.shape, round(label * 2 ** (RESIDUAL_BITS if task == "regression" else 0)), np.int64)
        mark = mark if session.rank == 1 else np.zeros_like(mark)
        if task == "regression":
            z, y = session.wrap(share, LOGIT_BITS), session.wrap(mark, RESIDUAL_BITS)
            return share_of(bounded_slope(z, y, fine=True))
        return capped_slope(session.party, share, mark, LOGIT_BITS, fine=True)

    return np.asarray(sum(run_session(job, 2)) / 2.0**RESIDUAL_BITS)


def exact(task: str, logits: np.ndarray, label: float) -> np.ndarray:
    if task == "regression":
        return np.asarray(expit(4 * (logits - label)) - 0.5)
    sign = 1 - 2 * label
    return np.asarray(sign * CAP * expit(sign * CAP_STEEPNESS * logits + CAP_SHIFT))


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_slope_is_that_of_the_priced_loss_up_to_the_largest_logit(task: str, label: float) -> None:
    """To a part of what noise on the finished head covers; so it has the sign and the bound that are priced."""
    most = LARGEST_LOGIT[task]  # type: ignore[index]
    logits = np.linspace(-most, most, 2001)[:, None]
    computed = slopes(task, logits, label)
    assert np.abs(computed - exact(task, logits, label)).max() < TOLERANCE / 8
    assert np.diff(computed[:, 0]).min() > -TOLERANCE / 8, "convex"


@pytest.mark.parametrize(("task", "bound"), [("binary", 60.0), ("regression", 30.0)])
def test_beyond_it_the_series_bends_back(task: str, bound: float) -> None:
    """The control: there the secret loss is another one, and not convex."""
    computed = slopes(task, np.linspace(LARGEST_LOGIT[task], bound, 400)[:, None], 0.0)  # type: ignore[index]
    assert np.diff(computed[:, 0]).sum() < -TOLERANCE


def test_a_label_that_is_none_makes_the_slope_unbounded() -> None:
    """Not protected, and SECURITY.md says so: a holder of the label that deviates weighs a record as it likes."""
    assert abs(slopes("binary", np.zeros((1, 1)), 1000.0)[0, 0]) > 700
    assert np.abs(slopes("regression", np.zeros((1, 1)), 1000.0)).max() < 0.5 + TOLERANCE, (
        "a number has no such effect"
    )
