"""Fixed point: what fits is exact to half a unit, what does not is an error."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.errors import RangeError


@given(st.lists(st.floats(-(2.0**30), 2.0**30), max_size=20))
def test_encoding_is_within_half_a_unit(values: list[float]) -> None:
    array = np.array(values)
    assert np.abs(ring.decode(ring.encode(array)) - array).max(initial=0) <= 2.0**-17


@given(st.lists(st.integers(-(2**30), 2**30), max_size=20), st.sampled_from([0, 16]))
def test_integers_are_exact(values: list[int], bits: int) -> None:
    assert ring.decode(ring.encode(np.array(values, dtype=np.int64), bits), bits).tolist() == values


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**31, -1e300])
@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_what_does_not_fit_raises(bad: float, kind: object) -> None:
    with pytest.raises(RangeError, match=r"NaN or infinite|larger in magnitude"):
        ring.encode(kind([0.5, bad, 1.0]))  # type: ignore[operator]


@pytest.mark.parametrize("bad", [np.array([2**31]), np.array([2**63 + 5], dtype=np.uint64), np.array(["a"])])
def test_bad_integers_and_types_raise(bad: np.ndarray) -> None:
    with pytest.raises(RangeError):
        ring.encode(bad)


def test_error_does_not_show_the_value() -> None:
    with pytest.raises(RangeError) as caught:
        ring.encode(np.array([123456789012.5]))
    assert "123456789012" not in str(caught.value)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_matmul_wraps_like_the_ring(n: int, d: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-(2**63), 2**63, size=(n, d))
    b = rng.integers(-(2**63), 2**63, size=(d, k))
    exact = [[sum(int(a[i, j]) * int(b[j, t]) for j in range(d)) % 2**64 for t in range(k)] for i in range(n)]
    assert (ring.matmul(a, b).view(np.uint64) == np.array(exact, dtype=np.uint64)).all()


@pytest.mark.parametrize("outputs", [1, 2, 9, 40, 70])
def test_products_with_few_columns_wrap_equally(outputs: int) -> None:
    rng = np.random.default_rng(outputs)
    sizes = ((900, 40), (40, outputs), (900, outputs))
    tall, few, rows = (rng.integers(-(2**63), 2**63, size=size) for size in sizes)
    assert (ring.matmul(tall, few) == np.matmul(tall, few)).all()
    assert (ring.matmul(tall.T, rows) == np.matmul(tall.T, rows)).all()


def test_an_empty_product_is_empty() -> None:
    assert ring.matmul(np.zeros((900, 40), np.int64), np.zeros((40, 0), np.int64)).shape == (900, 0)


@pytest.mark.parametrize("shape", [((60, 1100), (1100, 50)), ((2, 48, 48), (2, 48, 48)), ((3, 50, 512), (512, 64))])
def test_large_products_wrap_like_small_ones(shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-(2**63), 2**63, size=size) for size in shape)
    assert (ring.matmul(a, b) == np.matmul(a, b)).all()
    largest = np.full_like(a, -1), np.full_like(b, -1)  # all pieces are as large as they can be
    assert (ring.matmul(*largest) == np.matmul(*largest)).all()
    turned = np.asfortranarray(a)
    assert (ring.matmul(turned, b) == np.matmul(a, b)).all()
