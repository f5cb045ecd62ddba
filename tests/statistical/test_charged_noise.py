"""Every charged release carries the noise that was paid for: recomputed from what was opened and the exact value.

Each case gives noise of real sessions in units of the charged deviation, all copies together. With `ENOUGH` values a
chi-square at LEVEL (two-sided) notices 1/2, 2/3 and 3/2 of the deviation with power above .99.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from protocols.dealing import tuples
from protocols.dealing.gaussian import discrete_gaussian
from protocols.operations import noise as noise_module
from protocols.operations.noise import NoiseKind
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session
from protocols.steps.clipping import scaled
from secure_sccvfl.audit.canaries import charged_kinds
from secure_sccvfl.audit.constructed import (
    Constructed,
    EvaluationCanary,
    FirstCountCanary,
    GradientCanary,
    GramCanary,
    OutputCanary,
    ResidualsCanary,
    release_often,
)
from secure_sccvfl.audit.head_noise import noise_checks, noise_is_right
from secure_sccvfl.audit.noise_tests import scale_power, scale_test
from secure_sccvfl.data.party import MOMENT_GRID
from secure_sccvfl.discovery.gains import HALVES
from secure_sccvfl.discovery.secure_statistics import SecureStatistics
from secure_sccvfl.discovery.statistics import ClippedSums, GroupSums, joint_norm
from secure_sccvfl.releases.heads import HeadNoise
from secure_sccvfl.training.modes.options import RunOptions
from tests.contract import test_private_head
from tests.contract.engines import in_secret
from tests.support.discovery import MULTIPLIER, Consortium
from tests.support.harness import run_session

LEVEL, ENOUGH, PARTIES = 1e-10, 280, 3
GROUP = Consortium(rows=60, columns={0: {"a": 20}, 1: {"b": 20}, 2: {"c": 20}}, holders=(1, 2), counts=(2, 3), seed=1)
MANY = Consortium(
    rows=60, columns={rank: {f"{rank}-{i}": 2 for i in range(10)} for rank in range(3)}, holders=(1, 2), counts=(2, 3)
)


def of_canary(canary: Constructed, releases: int, kind: NoiseKind = "dealer+holder") -> np.ndarray:
    def job(session: Session) -> Any:
        return release_often(canary, session, RunOptions.of({}), MULTIPLIER, "kept", releases, kind)

    found = run_session(job, PARTIES, ReleasePlan(canary.plan(PARTIES, releases)))
    off = [one.values - canary.exact(PARTIES, rank, "kept") for rank, one in enumerate(found)]
    return np.concatenate([part.reshape(-1) for part in off]) / found[0].deviation


def tables(group: Consortium, job: Callable[..., Any], exact: Callable[[str], np.ndarray]) -> np.ndarray:
    """Noise of tables (columns x groups of all attributes); `job` returns them and their deviation."""
    found = group.run(job, kind=SecureStatistics, cap=1e3)
    parts = []
    for rank, (opened, deviation) in enumerate(found):
        for name in group.columns[rank]:
            parts.append((np.hstack([part[name] for part in opened]) - exact(name)).reshape(-1) / deviation)
    return np.concatenate(parts)


def of_sketch() -> np.ndarray:
    def job(session: Session, statistics: SecureStatistics, budget: Any) -> Any:
        return GROUP.sketch(session, statistics), statistics.deviation(GROUP.sensitivity)

    return tables(GROUP, job, lambda name: np.hstack([GROUP.table(name, j) for j in range(2)]))


def of_clipped_sketch() -> np.ndarray:
    def job(session: Session, statistics: SecureStatistics, budget: Any) -> Any:
        rank = session.rank
        made = statistics.release(ClippedSums("sketch-0", 2.0), GROUP.own(rank), GROUP.held(rank), GROUP.counts)
        return made.tables, made.numbers["deviation"]

    return tables(GROUP, job, lambda name: scaled(np.hstack([GROUP.table(name, j) for j in range(2)]), 2.0))


def of_risk_gains() -> np.ndarray:
    bound = joint_norm(MOMENT_GRID, MANY.features, len(MANY.counts))

    def job(session: Session, statistics: SecureStatistics, budget: Any) -> Any:
        own = {name: MOMENT_GRID * block for name, block in MANY.own(session.rank).items()}
        found = statistics.release(
            GroupSums("risk gains", bound, HALVES), own, MANY.held(session.rank), MANY.counts
        ).tables
        return found, statistics.deviation(bound)

    return tables(MANY, job, lambda name: MOMENT_GRID * np.hstack([MANY.table(name, j) for j in range(2)]))


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
    assert noise_is_right({k: v for k, v in noise_checks(noises, noises.std()).items() if k != "scale"})
    return noises.reshape(-1)


NOISES: dict[str, dict[str, Callable[[], np.ndarray]]] = {
    "sketch": {"counts": of_sketch, "clipped": of_clipped_sketch},
    "risk gains": {"": of_risk_gains},
    "residuals": {"": lambda: of_canary(ResidualsCanary(), 19)},
    "first count": {"": lambda: of_canary(FirstCountCanary(), ENOUGH)},
    "gram": {"": lambda: of_canary(GramCanary(), 4)},
    "head": {"": of_heads},
    "head output": {"": lambda: of_canary(OutputCanary(0.01, 7.0), 7, "dealer")},
    "noisy gradient": {"": lambda: of_canary(GradientCanary(), 19)},
    "evaluation": {
        "classes": lambda: of_canary(EvaluationCanary(), 28),
        "number": lambda: of_canary(EvaluationCanary(task="regression"), 70),
    },
}
CASES = [
    pytest.param(make, id=f"{kind} {form}".strip()) for kind, forms in NOISES.items() for form, make in forms.items()
]


def test_every_charged_kind_has_its_noise_tested() -> None:
    assert NOISES.keys() == {kind.name for kind in charged_kinds()}


def test_so_many_values_tell_wrong_noise_from_right() -> None:
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
    found = scale_test(drawn(), level=LEVEL)
    assert not found.holds and found.ratio < 0.8
