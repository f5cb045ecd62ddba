"""Every charged release carries the noise that was paid for: recomputed from what was opened and the exact value.

Each case gives noise of real sessions in units of the charged deviation, all copies together. With `ENOUGH` values a
chi-square at LEVEL (two-sided) notices 1/2, 2/3 and 3/2 of the deviation with power above .99.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from secure_sccvfl.audit.bounds import scale_test
from secure_sccvfl.audit.canaries import (
    Canary,
    ClippedCanary,
    EvaluationCanary,
    FirstCountCanary,
    GainsCanary,
    GradientCanary,
    GramCanary,
    HeadOutputCanary,
    ResidualsCanary,
    TableCanary,
    charged_kinds,
    release_often,
)
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.dealing.gaussian import discrete_gaussian
from secure_sccvfl.protocols.operations import noise as noise_module
from secure_sccvfl.protocols.operations.noise import NoiseKind
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.mechanisms import HeadNoise
from secure_sccvfl.training.modes.options import RunOptions
from tests.contract import test_private_head
from tests.contract.engines import in_secret
from tests.support.discovery import MULTIPLIER
from tests.support.sessions import run_session

LEVEL, ENOUGH, PARTIES = 1e-10, 280, 3


def scale_power(values: int, ratio: float, level: float) -> float:
    """The probability that noise with this ratio to the right deviation fails `scale_test`."""
    low, high = stats.chi2.ppf(level / 2, values), stats.chi2.isf(level / 2, values)
    return float(stats.chi2.cdf(low / ratio**2, values) + stats.chi2.sf(high / ratio**2, values))


def of_canary(canary: Canary, releases: int, kind: NoiseKind = "dealer+holder") -> np.ndarray:
    def job(session: Session) -> Any:
        return release_often(canary, session, RunOptions.of({}), MULTIPLIER, "kept", releases, kind)

    releases_of_parties = run_session(job, PARTIES, ReleasePlan(canary.plan(PARTIES, releases)))
    off = [one.values - canary.exact(PARTIES, rank, "kept") for rank, one in enumerate(releases_of_parties)]
    return np.concatenate([part.reshape(-1) for part in off]) / releases_of_parties[0].deviation


def of_heads() -> np.ndarray:
    """Noise that 20 heads carry, which were trained in secret: the gradient of their objective without it."""
    noise = HeadNoise(8.0, test_private_head.RIDGE, 1e-6, test_private_head.RADIUS)

    def script(engine: Any, problem: Any) -> Any:
        head, _ = test_private_head.trained(engine, problem, "binary", 1, noise)
        return test_private_head.weights_of(engine, head)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_private_head, "LAMBDAS", (0.5, 3.0) * 10)
        (weights, *_) = in_secret(test_private_head.problem_of("binary", 1), script)
        noises = -test_private_head.gradients(weights, "binary", 1).T / noise.sigma
    correlations = np.corrcoef(noises)[np.triu_indices(len(noises), 1)]
    degrees = noises.shape[1] - 2
    largest = stats.t.isf(LEVEL / 2 / len(correlations), degrees)
    assert np.abs(correlations).max() < largest / np.hypot(largest, degrees**0.5), "no two heads share their noise"
    together = scale_test(noises.sum(axis=0), noises.std() * len(noises) ** 0.5, LEVEL)
    assert together.holds, "nor do all of them share a part"
    return noises.reshape(-1)


NOISES: dict[str, dict[str, Callable[[], np.ndarray]]] = {
    "sketch": {
        "counts": lambda: of_canary(TableCanary(), 5),
        "clipped": lambda: of_canary(ClippedCanary.of_length(2.0), 5),
    },
    "risk gains": {"": lambda: of_canary(GainsCanary(), 12)},
    "residuals": {"": lambda: of_canary(ResidualsCanary(), 19)},
    "first count": {"": lambda: of_canary(FirstCountCanary(), ENOUGH)},
    "gram": {"": lambda: of_canary(GramCanary(), 4)},
    "head": {"": of_heads},
    "head output": {"": lambda: of_canary(HeadOutputCanary(), 7, "dealer")},
    "noisy gradient": {"": lambda: of_canary(GradientCanary(), 19)},
    "evaluation": {
        "classes": lambda: of_canary(EvaluationCanary(), 28),
        "number": lambda: of_canary(EvaluationCanary(task="regression"), 70),
    },
}
CASES = [
    pytest.param(make, id=f"{kind} {form}".strip()) for kind, forms in NOISES.items() for form, make in forms.items()
]


DRAWN_AS_HEADS = {"head of baselines", "head output of baselines"}
"""Drawn by the code of `head` and `head output`; tests/adversarial/test_planned_figures.py has their deviations."""


def test_every_charged_kind_has_its_noise_tested() -> None:
    assert NOISES.keys() | DRAWN_AS_HEADS == {kind.name for kind in charged_kinds()}


def test_this_many_values_distinguish_wrong_noise_from_right() -> None:
    """Power above .99 at a false-alarm rate far below 1e-6; half the noise is missed less often than 1e-12."""
    assert all(scale_power(ENOUGH, ratio, LEVEL) > 0.99 for ratio in (1 / 2, 2 / 3, 3 / 2))
    assert 1 - scale_power(ENOUGH, 1 / 2, LEVEL) < 1e-12
    assert scale_power(ENOUGH, 1.0, LEVEL) == pytest.approx(LEVEL)
    assert scale_power(ENOUGH // 4, 1 / 2, LEVEL) < 0.99, "a quarter of the values would not do"


@pytest.mark.chance(2e-10)  # LEVEL, and a drift of 6.5 deviations of the mean
@pytest.mark.parametrize("drawn", CASES)
def test_the_noise_has_the_charged_deviation(drawn: Callable[[], np.ndarray]) -> None:
    noise = drawn()
    assert noise.size >= ENOUGH
    assert scale_test(noise, level=LEVEL).holds
    assert abs(noise.mean()) * noise.size**0.5 < 6.5, "no drift"
    assert not scale_test(2 * noise, level=LEVEL).holds, "the test can fail: missed less often than 1e-12"


def halved(sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    return discrete_gaussian(sigma / 2, shape)


@pytest.mark.chance(1e-12)  # how often half the noise passes, see above
@pytest.mark.parametrize("drawn", CASES)
def test_halved_noise_is_noticed(drawn: Callable[[], np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuples, "discrete_gaussian", halved)
    monkeypatch.setattr(noise_module, "discrete_gaussian", halved)
    result = scale_test(drawn(), level=LEVEL)
    assert not result.holds and result.ratio < 0.8
