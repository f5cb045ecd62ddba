"""Integers modulo 2^128: both implementations compute what Python's integers do, and change no argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secure_sccvfl.protocols.authentication import wide
from secure_sccvfl.protocols.authentication.wide import Wide
from secure_sccvfl.protocols.errors import ProtocolError

FULL = 2**128
EDGES = (0, 1, 2**32 - 1, 2**63, 2**64 - 1, 2**64, 2**127, FULL - 2**64, FULL - 1)
INTEGERS = st.one_of(st.sampled_from(EDGES), st.integers(0, FULL - 1))
LISTS = st.lists(st.tuples(INTEGERS, INTEGERS), max_size=8)
WORDS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**32 - 1, 2**63, 2**64 - 1])
Objects = npt.NDArray[np.object_]


@pytest.fixture(
    params=[("native", 1 << 15), ("native", 64), ("numpy", 1 << 15), ("numpy", 64)], ids=lambda p: f"{p[0]}-{p[1]}"
)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An implementation, with blocks so small that small arrays have several."""
    name, block = request.param
    if name == "numpy":
        monkeypatch.setattr(wide, "_native", None)
    elif wide.implementation() == "numpy":
        pytest.skip("native.c was not built: no C compiler when the package was installed")
    monkeypatch.setattr(wide, "_BLOCK", block)
    assert wide.implementation() == name
    return str(name)


def locked(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.setflags(write=False)
    return array


def of(numbers: Any) -> Wide:
    """A Wide of Python integers that nothing can write into."""
    array = np.array(numbers, object)
    return Wide(*(locked(np.array(part, np.uint64)) for part in (array % 2**64, array // 2**64 % 2**64)))


def whole(numbers: Wide) -> Objects:
    return np.array(numbers.lo.astype(object) + numbers.hi.astype(object) * 2**64, object)


def same(numbers: Wide, expected: Any) -> None:
    expected = np.array(expected, object)
    assert numbers.shape == expected.shape
    assert (whole(numbers) == expected % FULL).all()


def drawn(*shape: int, bits: int = 128, seed: int = 0) -> Objects:
    """Integers of so many bits, every third one all ones."""
    rng = np.random.default_rng([seed, *shape])
    halves = (rng.integers(0, 2**64, shape, np.uint64).astype(object) for _ in range(2))
    numbers = np.array(sum(half * 2 ** (64 * k) for k, half in enumerate(halves)), object) % 2**bits
    ones = np.array(rng.integers(0, 3, shape) == 0)
    return np.array(np.where(ones, np.array(2**bits - 1, object), numbers), object)


def words(*shape: int, seed: int = 1) -> npt.NDArray[np.uint64]:
    return locked(drawn(*shape, bits=64, seed=seed).astype(np.uint64))


@given(LISTS)
def test_sums_and_differences(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array([pair[k] for pair in pairs], object) for k in range(2))
    same(of(a) + of(b), a + b)
    same(of(a) - of(b), a - b)
    same(-of(a), -a)
    total = of(a).copy()
    total += of(b)
    total += total
    same(total, 2 * (a + b))
    same(of(a).sum(), sum(a.tolist()))
    same(of(a).cumsum(0), [sum(a[: k + 1].tolist()) for k in range(len(a))])
    for x, y in pairs[:2]:  # without an axis, where NumPy computes with scalars
        same(of(x) + of(y), x + y)
        same(of(x) - of(y), x - y)
        same(-of(x), -x)
        same(of(x).sum(), x)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the same implementation for all examples
@given(numbers=st.lists(INTEGERS, max_size=8), public=WORDS, key=INTEGERS, bits=st.integers(0, 127))
def test_products_with_one_number(kernel: str, numbers: list[int], public: int, key: int, bits: int) -> None:
    for given_ in (numbers, *numbers[:1]):
        array = np.array(given_, object)
        same(of(array).times(public), array * public)
        same(of(array).times(public - 2**64), array * public)
        same(of(array).times(np.array(public, np.uint64)), array * public)
        same(of(array).times(np.array(public, np.uint64).view(np.int64)), array * public)
        same(of(array).scaled(key), array * key)
        same(of(array).shift_left(bits), array * 2**bits)


BROADCAST: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *(((), ()), ((5,), ()), ((), (5,)), ((0, 3), (1, 3)), ((3, 1), (1, 4)), ((2, 1, 50), (7, 1)), ((131,), (131,))),
    *(((2, 77, 3), (77, 1)), ((2, 77, 3), (3,)), ((100, 1), (1, 1))),
]


@pytest.mark.parametrize(("left", "right"), BROADCAST)
def test_broadcasting(kernel: str, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b, public = drawn(*left), drawn(*right, seed=5), words(*right)
    same(of(a) + of(b), a + b)
    same(of(a) - of(b), a - b)
    same(of(a).times(public), a * public.astype(object))
    same(of(a.T).transpose().times(public), a * public.astype(object))
    same(of(b).times(words(*left)), words(*left).astype(object) * b)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2)])
@pytest.mark.parametrize("shape", [(3, 5, 2), (1, 1, 1), (0, 4, 3), (2, 0, 3)])
def test_sums_along_axes(shape: tuple[int, ...], axis: Any) -> None:
    numbers = drawn(*shape)
    same(of(numbers).sum(axis), np.array(numbers.sum(axis=axis), object))
    if isinstance(axis, int):
        same(of(numbers).cumsum(axis), np.cumsum(numbers, axis=axis))


SIZES = [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (7, 5, 3), (33, 4, 1), (1, 70, 9), (2, 1027, 1)]


@pytest.mark.parametrize(("n", "c", "k"), SIZES)
@pytest.mark.parametrize("batch", [(), (1,), (2,), (2, 3), (0,)])
def test_matrix_products(kernel: str, n: int, c: int, k: int, batch: tuple[int, ...]) -> None:
    def product(a: Objects, b: Objects) -> Objects:
        """a @ b, which of objects NumPy cannot take with an empty dimension."""
        return np.array((a[..., :, :, None] * b[..., None, :, :]).sum(axis=-2), object)

    tall, small = words(n, c), drawn(*batch, c, k)
    same(of(small).left_matmul(tall), product(tall.astype(object), small))
    same(of(small).left_matmul(tall.view(np.int64)), product(tall.astype(object), small))
    flipped = words(c, n).T
    same(of(small).left_matmul(flipped), product(flipped.astype(object), small))
    shared, public = drawn(*batch, n, c, seed=2), words(c, k)
    same(of(shared).matmul(public), product(shared, public.astype(object)))
    axes = (*range(len(batch)), len(batch) + 1, len(batch))
    same(of(shared.transpose(axes).copy()).transpose(axes).matmul(public), product(shared, public.astype(object)))


def test_products_of_the_largest_numbers_are_exact(kernel: str) -> None:
    """Sums of 512 products of 22-bit pieces nearly reach 2^53, the end of what float64 holds."""
    rng = np.random.default_rng(0)

    def nearly_full(*shape: int) -> Objects:
        pieces = (rng.integers(2**22 - 64, 2**22, shape).astype(object) for _ in range(6))
        return np.array(sum(piece * 2 ** (22 * k) for k, piece in enumerate(pieces)), object)

    public, numbers = (nearly_full(4, 1100) % 2**64), nearly_full(1100, 3) % FULL
    same(of(numbers).left_matmul(public.astype(np.uint64)), public @ numbers)
    same(of(numbers.T).matmul(public.T.astype(np.uint64)), (public @ numbers).T)


def subset_sums(choice: npt.NDArray[np.uint8], numbers: Objects) -> Objects:
    sums = np.zeros((len(numbers), 8 * choice.shape[1]), object)
    for row, bit in np.ndindex(*sums.shape):
        chosen = [int(byte) >> bit % 8 & 1 for byte in choice[:, bit // 8]]
        sums[row, bit] = sum(int(number) for number, taken in zip(numbers[row], chosen, strict=True) if taken)
    return sums


@pytest.mark.parametrize("rows", [8, 48])
@pytest.mark.parametrize(("w", "n"), [(0, 5), (1, 0), (1, 1), (2, 39), (3, 301)])
def test_subset_sums(kernel: str, w: int, n: int, rows: int) -> None:
    choice = locked(np.random.default_rng(n).integers(0, 256, (n, rows // 8), np.uint8))
    numbers, public = drawn(w, n), words(w, n)
    same(wide.project(choice, of(numbers)), subset_sums(choice, numbers))
    same(wide.project(choice, of(numbers.T).transpose()), subset_sums(choice, numbers))
    expected = subset_sums(choice, public.astype(object))
    same(wide.project(choice, public), expected)
    same(wide.project(choice, Wide.of(public)), expected)
    assert (wide.project_words(choice, public) == expected % 2**64).all()
    assert (wide.project_words(choice, public.view(np.int64)) == expected % 2**64).all()


@pytest.mark.parametrize("shape", [(), (0,), (1,), (131,), (5, 3)])
@pytest.mark.parametrize("kinds", ["Q", "qq", "III", "HBQq", "bhil"])
@pytest.mark.parametrize("key", [0, 2**64 - 1, FULL - 1, 2**127 + 3**40])
def test_tag_corrections(kernel: str, shape: tuple[int, ...], kinds: str, key: int) -> None:
    values = [drawn(*shape, bits=8 * np.dtype(kind).itemsize, seed=at) for at, kind in enumerate(kinds)]
    shares = [
        locked(value.astype(np.dtype(kind.upper())).view(kind)) for value, kind in zip(values, kinds, strict=True)
    ]
    others = [drawn(*shape, seed=20 + at) for at in range(len(kinds) - 1)]
    correction = wide.tag_corrections(shares, [of(tag) for tag in others], key)
    same(correction, key * sum(values) - sum(others))
    if shape:  # views with gaps
        apart = [np.repeat(share, 2, axis=-1)[..., ::2] for share in shares]
        gaps = [of(np.repeat(tag, 2, axis=-1))[..., ::2] for tag in others]
        same(wide.tag_corrections(apart, gaps, key), whole(correction))


@pytest.mark.parametrize(
    "kind", [np.uint64, np.int64, np.uint32, np.int32, np.uint16, np.int16, np.uint8, np.int8, ">i4"]
)
def test_integers_are_read_as_unsigned(kind: Any) -> None:
    limits = np.iinfo(kind)
    array = locked(np.array([0, 1, limits.max, limits.min, *([-1] if limits.min else [])], kind))
    read = Wide.of(array)
    same(read, [int(value) % 2**limits.bits for value in array])
    read += read  # into its own copy


def test_shape_functions_are_those_of_an_array() -> None:
    numbers = drawn(2, 3, 4)
    x = of(numbers)
    assert (x.shape, x.ndim, x.size) == ((2, 3, 4), 3, 24)
    same(x.reshape(6, 4), numbers.reshape(6, 4))
    same(x.reshape((4, -1)), numbers.reshape(4, -1))
    same(x.transpose(), numbers.transpose())
    same(x.transpose(0, 2, 1), numbers.transpose(0, 2, 1))
    for index in (1, (1, 2, 3), (..., slice(None, None, -2)), (0, [2, 0]), numbers % 2 == 0, None):
        same(x[index], numbers[index])
    same(wide.concatenate([x, x[:1]]), np.concatenate([numbers, numbers[:1]]))
    same(wide.concatenate([x, x], axis=-1), np.concatenate([numbers, numbers], axis=-1))
    same(wide.stack([x, x], axis=1), np.stack([numbers, numbers], axis=1))
    same(Wide.zeros((2, 0)), np.zeros((2, 0), object))
    written, expected = x.copy(), numbers.copy()
    written[:, 1] = x[:, 0]
    expected[:, 1] = numbers[:, 0]
    written[1:, 0] += x[0, 2]
    expected[1:, 0] += numbers[0, 2]
    same(written, expected)
    same(x, numbers)


def test_a_representation_hides_the_elements() -> None:
    assert repr(of([2**127, 12345])) == "<Wide (2,): elements hidden>"


@pytest.mark.parametrize(
    "use",
    [
        lambda x: Wide(np.zeros(2, np.int64), np.zeros(2, np.int64)),
        lambda x: Wide(np.zeros(2, np.uint64), np.zeros(3, np.uint64)),
        lambda x: Wide.of(np.zeros(2)),
        lambda x: x.times(np.array([1, 2, 3], np.int32)),
        lambda x: x.times(np.array([0.5])),
        lambda x: x.shift_left(128),
        lambda x: x.shift_left(-1),
        lambda x: x.scaled(2**128),
        lambda x: x.scaled(-1),
        lambda x: x.left_matmul(np.zeros((2, 2), np.uint64)),
        lambda x: x.matmul(np.zeros((2, 2), np.uint64)),
        lambda x: x.matmul(np.zeros(3, np.uint64)),
        lambda x: x[0].left_matmul(np.zeros((2, 3), np.uint64)),
        lambda x: wide.project(np.zeros((2, 1), np.uint8), x),
        lambda x: wide.project(np.zeros((3, 1), np.int8), x),
        lambda x: wide.project(np.zeros((3, 1), np.uint8), x[0]),
        lambda x: wide.tag_corrections([], [x], 1),
        lambda x: wide.tag_corrections([np.zeros(3, np.uint64)], [x], 1),
        lambda x: wide.tag_corrections([np.zeros((3, 3))], [x], 1),
        lambda x: wide.tag_corrections([np.zeros((3, 3), np.uint64)], [x], 2**128),
    ],
)
def test_what_does_not_fit_is_refused(use: Any) -> None:
    with pytest.raises(ProtocolError):
        use(of(drawn(3, 3)))


def test_an_array_on_the_left_is_refused() -> None:
    with pytest.raises(TypeError):
        np.zeros(3, np.uint64) + of([1, 2, 3])  # type: ignore[operator]
