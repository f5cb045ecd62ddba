"""CrypTen beyond single functions: memory that tensors share, copies, owners, modules, settings."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch

from protocols.errors import ProtocolError, RangeError, Unavailable, UndeclaredRelease
from protocols.records.releases import ReleasePlan
from protocols.session import binding
from protocols.session.runtime import Session, crypten, words_of
from tests.support.harness import results, run_session

ULP = 2.0**-16
SERIES = 5e-4
"""What sigmoid may be off by."""


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
    """Wide, usual and whole values, written through views and slices."""

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
        y = M(torch.zeros(4))
        seen, rows = y.view(2, 2), y.reshape(2, 2).t()
        seen[0] = M(torch.zeros(2)).sigmoid()
        assert np.abs(opened(session, y) - [0.5, 0.5, 0, 0]).max() <= SERIES + ULP
        assert (opened(session, rows) == opened(session, y).reshape(2, 2).T).all()
        base = crypten.mpc.primitives.ArithmeticSharedTensor(torch.zeros(4))
        base.view(2, 2).add_(1.0)
        assert opened(session, base).tolist() == [1, 1, 1, 1]
        edge = M(torch.zeros(2)).sigmoid().pad((1, 1), value=M(0.5))
        assert np.abs(opened(session, edge) - 0.5).max() <= SERIES
        with pytest.raises(RuntimeError):
            M(torch.zeros(1)).expand(3).add_(1)  # three elements in one place

    run(job, parties)


def test_only_the_owner_gives_values(parties: int) -> None:
    def job(session: Session) -> None:
        mine = session.rank == 1
        for kind in (M, crypten.mpc.primitives.ArithmeticSharedTensor, crypten.mpc.MPCTensor):
            value = kind(torch.tensor([1.5, -2.0]) if mine else torch.tensor([float("nan"), 1e300]), src=1)
            assert opened(session, value).tolist() == [1.5, -2.0]
        value = M(torch.tensor([1.5]) if mine else torch.zeros(0), src=1, broadcast_size=True)
        assert opened(session, value).tolist() == [1.5]
        bits = crypten.mpc.primitives.BinarySharedTensor
        assert opened(session, bits(torch.tensor([5]) if mine else torch.tensor([0.5]), src=1)).tolist() == [5]
        assert opened(session, M([1, 2**24 + 1])).tolist() == [1, 2**24 + 1]  # a float would round it
        with pytest.raises(RangeError, match="whole numbers"):
            bits(torch.tensor([0.5]), src=session.rank)

    run(job, parties)


@pytest.mark.parametrize("src", [None, "0", 1.0, 7], ids=repr)
def test_a_source_that_is_no_party_is_asserted_as_crypten_does(src: Any) -> None:
    def job(session: Session) -> None:
        for kind in (M, crypten.mpc.primitives.ArithmeticSharedTensor, crypten.mpc.primitives.BinarySharedTensor):
            with pytest.raises(AssertionError, match="source party does not exist"):
                kind(torch.tensor([1, 2]), src=src)

    run(job, 2)


def test_a_product_of_two_vectors_has_no_dimension(parties: int) -> None:
    """Shared and public operands, whole numbers, the gradient, and a triple that CrypTen's own code would ask for."""
    x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])

    def job(session: Session) -> None:
        left, right = M(x, src=0), M(y, src=1, requires_grad=True)
        product = left.matmul(right)
        assert product.dim() == 0 and abs(float(opened(session, product)) - 32) <= 4 * ULP
        product.backward()
        assert np.abs(opened(session, right.grad) - x.numpy()).max() <= 2 * ULP
        assert abs(float(opened(session, left.matmul(y))) - 32) <= 4 * ULP
        whole = M(torch.tensor([1, 2, 3]), src=0, precision=0)
        assert int(opened(session, whole.matmul(whole))) == 14
        a, b, c = session.provider.generate_additive_triple(torch.Size([3]), torch.Size([3]), "matmul")
        difference = session.wrap(np.array([words_of(a.matmul(b))]), 0) - session.wrap(words_of(c).reshape(1), 0)
        assert opened(session, difference).tolist() == [0]

    run(job, parties)


def test_copies(parties: int) -> None:
    def job(session: Session) -> None:
        value = M([1.0, 2.0])
        value.requires_grad = True
        for other in (copy.copy(value), copy.deepcopy(value), copy.deepcopy([value])[0]):
            assert opened(session, other).tolist() == [1, 2] and other.requires_grad
        with pytest.raises(UndeclaredRelease, match="pickling"):
            pickle.dumps(value)
        with pytest.raises(ProtocolError, match="detach"):
            copy.deepcopy(value * 2)
        model = crypten.nn.Sequential(crypten.nn.Linear(2, 3), crypten.nn.ReLU()).encrypt()
        twin = copy.deepcopy(model)
        before = [opened(session, weight) for weight in model.parameters()]
        for weight in twin.parameters():
            weight.set(weight * 0.0)
        for weight, old in zip(model.parameters(), before, strict=True):
            assert (opened(session, weight) == old).all()

    run(job, parties)


@pytest.mark.parametrize("module", ["Dropout", "Dropout2d"])
def test_dropout_has_gradients(module: str) -> None:
    """Elements (or whole feature maps) are zero or doubled, and so are their gradients."""

    def job(session: Session) -> None:
        x = M(torch.ones(2, 3, 2, 2))
        x.requires_grad = True
        layer = getattr(crypten.nn, module)(0.5).encrypt()
        y = layer(x)
        y.sum().backward()
        kept, slopes = opened(session, y), opened(session, x.grad)
        assert np.isin(kept, (0, 2)).all() and (kept == slopes).all()
        if module == "Dropout2d":
            assert (kept == kept[:, :, :1, :1]).all()
        layer.eval()
        assert (opened(session, layer(x)) == 1).all()

    run(job, 2)


def test_kinds_of_shares_do_not_mix() -> None:
    def job(session: Session) -> None:
        number = M([1.5, 2.0])
        bits = number.to(crypten.mpc.binary)
        for call in (
            lambda: number + bits,
            lambda: number * bits,
            lambda: bits + number,
            lambda: bits * 2,
            lambda: bits > 0,
            lambda: bits.sigmoid(),
            lambda: session.tanh(bits, bound=3),
            lambda: session.clamp(bits, 1.0),
            lambda: number.copy_(bits),
            lambda: bits.pad((1, 1)),
            lambda: crypten.cat([number, bits]),
            lambda: bits.to(crypten.mpc.arithmetic, precision=0),
            lambda: bits._ltz(),
            lambda: bits.mean(),
        ):
            with pytest.raises(ProtocolError):
                call()
        assert opened(session, bits.to(crypten.mpc.arithmetic)).tolist() == [1.5, 2.0]

    run(job, 2)


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
            x[0] = 1.0
        with pytest.raises(RuntimeError, match="in-place"):
            x.add_(1.0)
        coefficients = torch.tensor([1.0, 0.5])
        x.polynomial(coefficients).sum().backward()
        assert coefficients.tolist() == [1.0, 0.5]

    run(job, 2)


def test_batch_norm_keeps_running_statistics() -> None:
    data = torch.tensor([[1.0, -2.0], [3.0, 0.5], [0.0, 1.0], [2.0, 2.5]])
    mean, variance = torch.zeros(2), torch.ones(2)
    torch.nn.functional.batch_norm(data, mean, variance, torch.ones(2), torch.zeros(2), training=True)

    def job(session: Session) -> None:
        running = M(torch.zeros(2)), M(torch.ones(2))
        M(data).batchnorm(M(torch.ones(2)), M(torch.zeros(2)), *running, training=True)
        for got, wanted in zip(running, (mean, variance), strict=True):
            assert np.abs(opened(session, got) - wanted.numpy()).max() <= 20 * ULP

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
            lambda: session.communicator.isend(None, 0),
            lambda: session.provider.fill_cache(),
        ):
            with pytest.raises(Unavailable, match=r"is not available on a session$"):
                way()
        assert not cfg.debug.validation_mode

    run(job, 2)
