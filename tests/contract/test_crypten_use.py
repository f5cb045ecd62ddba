"""CrypTen beyond single functions: shared memory, owners, copies, gradients, settings."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from protocols.errors import ProtocolError, RangeError, Unavailable, UndeclaredRelease
from protocols.records.releases import ReleasePlan
from protocols.session import binding
from protocols.session.runtime import Session, crypten
from tests.support.harness import results, run_session

ULP = 2.0**-16
SERIES = 5e-4
"""Largest error of a sigmoid."""


@pytest.fixture(params=[2, 3], ids=lambda parties: f"{parties} parties")
def parties(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def M(value: Any, **options: Any) -> Any:
    return crypten.cryptensor(torch.as_tensor(value), **options)


def opened(session: Session, value: Any) -> np.ndarray:
    plain = session.open(value, results(session.parties, range(5))[value.dim()])
    assert plain is not None
    return plain.numpy()


def run(job: Any, parties: int) -> None:
    run_session(job, parties, plan=ReleasePlan(results(parties, range(5)).values()))


def test_views_and_their_base_agree(parties: int) -> None:
    """Values with 32, 16 and 0 fractional bits, written through views and slices."""

    def job(session: Session) -> None:
        y = M(torch.zeros(4))
        y.view(2, 2).add_(M(torch.zeros(2, 2)).sigmoid())
        assert np.abs(opened(session, y) - 0.5).max() <= SERIES + ULP
        y = M(torch.zeros(4)).sigmoid()
        y.view(2, 2).mul_(2.5)
        assert np.abs(opened(session, y) - 1.25).max() <= 2.5 * SERIES + 3 * ULP
        y = M(torch.ones(4)) > 0
        with pytest.raises(ProtocolError, match="integers cannot take fractions in place"):
            y.view(2, 2).add_(0.5)
        y.view(2, 2)[0].mul_(3)
        assert opened(session, y).tolist() == [3, 3, 1, 1]
        with pytest.raises(RuntimeError):
            M(torch.zeros(1)).expand(3).add_(1)  # three elements at one address

    run(job, parties)


def test_only_the_owner_gives_values(parties: int) -> None:
    def job(session: Session) -> None:
        mine = session.rank == 1
        for kind in (M, crypten.mpc.MPCTensor):
            value = kind(torch.tensor([1.5, -2.0]) if mine else torch.tensor([float("nan"), 1e300]), src=1)
            assert opened(session, value).tolist() == [1.5, -2.0]
        assert opened(session, M([1, 2**24 + 1])).tolist() == [1, 2**24 + 1]  # a float would round it
        with pytest.raises(UndeclaredRelease):
            M(torch.tensor([1.5]), src=1, broadcast_size=True)
        for src in (None, "0", 1.0, 7):
            with pytest.raises(AssertionError, match="source party does not exist"):
                M(torch.tensor([1, 2]), src=src)

    run(job, parties)


def test_copies_of_tensors_are_refused_and_clones_are_not(parties: int) -> None:
    def job(session: Session) -> None:
        value = M([1.0, 2.0])
        with pytest.raises(UndeclaredRelease, match="pickling"):
            pickle.dumps(value)
        twin = value.clone()
        twin.add_(1.0)
        assert opened(session, value).tolist() == [1, 2] and opened(session, twin).tolist() == [2, 3]

    run(job, parties)


def test_integers_that_would_wrap_raise() -> None:
    def job(session: Session) -> None:
        value = M([1.0])
        for bad in (torch.tensor([1 << 50]), torch.tensor([-(1 << 63)]), 1 << 50):
            with pytest.raises(RangeError, match="too large"):
                value + bad

    run(job, 2)


def test_gradients_are_not_lost_in_silence() -> None:
    def job(session: Session) -> None:
        x = M([1.0, 2.0, 3.0])
        with pytest.raises(ProtocolError, match="no gradient depends"):
            x.sum().backward()
        x.requires_grad = True
        with pytest.raises(RuntimeError, match="in-place"):
            x.add_(1.0)
        for way in (lambda: x[0], lambda: crypten.stack([x, x])):
            with pytest.raises(Unavailable, match="with gradients"):
                way()

    run(job, 2)


def test_what_is_not_available_says_so() -> None:
    def job(session: Session) -> None:
        cfg = crypten.config.cfg
        for name in binding.UNAVAILABLE:
            with pytest.raises(Unavailable, match=f"^crypten.{name} is not available on a session$"):
                getattr(crypten, name)()
        for way in (
            lambda: setattr(cfg.debug, "validation_mode", True),
            lambda: cfg.__setitem__("debug.validation_mode", True),
            lambda: cfg.temp_override({"debug.validation_mode": True}).__enter__(),
            lambda: crypten.mpc.get_default_provider(),
        ):
            with pytest.raises(Unavailable, match=r"is not available on a session$"):
                way()
        assert not cfg.debug.validation_mode

    run(job, 2)
