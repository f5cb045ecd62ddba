"""Inputs with active security: encodings follow from proven bits, and a malformed block names its owner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.models.encoders import PlainEncoder, public_centre
from secure_sccvfl.protocols.net.transport import Transport
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.training.proven import EncodingForm, commit, forms_of, proven_numbers, rows_of
from secure_sccvfl.training.shared import proven_held
from tests.support.sessions import results, run_session, stopping

ACTIVE = {"security": "active"}
EDGES = (0.0, 2.0, 3.0, 7.0, 10.0)
LAYOUTS = (
    Layout.of(
        [
            Feature("age", "number", 0.0, 10.0, EDGES),
            Feature("job", "category", categories=("a", "b", "c")),
        ]
    ),
    Layout.of([Feature("way", "number", 0.0, 10.0, EDGES, missing=True)]),
    Layout.of([Feature("kind", "category", categories=("x", "y"))]),
)
ROWS = 24
RNG = np.random.default_rng(0)
AGES = np.concatenate([[0.0, 2.0, 3.0, 7.0, 10.0], RNG.uniform(0, 10, ROWS - 5)])
WAYS = np.where(RNG.random(ROWS) < 0.25, np.nan, RNG.uniform(0, 10, ROWS))
INPUTS = [
    LAYOUTS[0].encode(np.column_stack([AGES, RNG.integers(0, 3, ROWS)])),
    LAYOUTS[1].encode(WAYS[:, None]),
    LAYOUTS[2].encode(RNG.integers(0, 2, ROWS)[:, None].astype(float)),
]
PLAIN = [PlainEncoder(layout, public_centre(layout)) for layout in LAYOUTS]


@pytest.mark.parametrize("dropped", [(), ("age", "kind")])
def test_encodings_from_proven_bits_are_the_plain_ones(dropped: tuple[str, ...]) -> None:
    forms = forms_of(LAYOUTS, dropped)
    encoders = [PlainEncoder(one.layout, one.mean, frozenset(dropped)) for one in PLAIN]
    expected = np.hstack([encoder(inputs) for encoder, inputs in zip(encoders, INPUTS, strict=True)])

    def job(session: Session) -> Any:
        rows = rows_of(forms, commit(session, forms, forms[session.rank].of(INPUTS[session.rank])))
        return session.open(rows, results(session.parties)[2])

    for opened in run_session(job, options=ACTIVE):
        assert np.abs(opened.numpy() - expected).max() <= 2.0**-15


def test_numbers_are_shared_with_their_sign() -> None:
    values = RNG.uniform(-7.9, 7.9, (3, 5))
    widths = (2, 0, 3)

    def job(session: Session) -> Any:
        start = sum(widths[: session.rank])
        own = values[:, start : start + widths[session.rank]]
        return session.open(proven_numbers(session, own, widths, 18, 3), results(session.parties)[2])

    assert np.abs(run_session(job, options=ACTIVE)[0].numpy() - values).max() <= 2.0**-18


def two_ones(bits: np.ndarray) -> None:
    bits[7, :2] = 1


def no_one(bits: np.ndarray) -> None:
    bits[7, :4] = 0


@pytest.mark.parametrize("malformed", [two_ones, no_one])
@pytest.mark.parametrize("owner", [0, 1])
def test_rows_that_are_not_one_hot_name_their_owner_and_open_nothing(
    malformed: Callable[[np.ndarray], None], owner: int
) -> None:
    opened = list[Any]()

    def job(session: Session) -> Any:
        forms = forms_of(LAYOUTS)
        own = forms[session.rank].of(INPUTS[session.rank])
        if session.rank == owner:
            malformed(own)
        rows = rows_of(forms, commit(session, forms, own))
        opened.append(session.open(rows.sum(0), results(session.parties)[1]))

    with stopping(f"party {owner}: gave an input that is not in the form that the step requires"):
        run_session(job, options=ACTIVE)
    assert not opened


def test_the_groups_of_a_selection_are_one_hot_rows() -> None:
    one_hot, values, opened = (
        np.eye(2, dtype=np.int64)[RNG.integers(0, 2, 8)],
        RNG.normal(size=(8, 2, 3)),
        list[Any](),
    )

    def job(session: Session, member: np.ndarray) -> Any:
        choices = session.owned(values, owner=0, shape=values.shape)
        chosen = choices.selected(session.owned(member, owner=1, shape=member.shape, bits=0))
        opened.append(session.open(chosen, results(session.parties)[2]))
        return opened[-1]

    expected = np.einsum("ng,ngc->nc", one_hot, values)
    assert (
        np.abs(run_session(lambda session: job(session, one_hot), options=ACTIVE)[2].numpy() - expected).max() < 1e-4
    )
    opened.clear()
    with stopping("party 1: gave an input that is not in the form that the step requires"):
        run_session(lambda session: job(session, np.ones_like(one_hot)), options=ACTIVE)
    assert not opened


@pytest.mark.parametrize("value", [1_000_000, 2, -1, 1 << 62])
def test_other_numbers_than_bits_cannot_be_shared(value: int) -> None:
    """A weight of a million, or one half (in the ring: nothing has twice the value 1), cannot be expressed at all."""
    label = np.array([0, 1, value, 1])

    def job(session: Session) -> Any:
        return proven_held(session, label if session.rank == 1 else None, 1, (4, 1))

    with stopping("bits are needed, and no other numbers"):
        run_session(job, options=ACTIVE)


class Garbled:
    """Sends other bytes for its bits than the protocol says."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, step: str, send: Any, receive: Any) -> Any:
        if self._inner.node == 0 and step == "proven bits":
            send = {peer: [array ^ np.uint8(0b10110101) for array in arrays] for peer, arrays in send.items()}
        return self._inner.exchange(step, send, receive)


def test_an_owner_that_computes_with_other_bits_than_it_sent_is_detected() -> None:
    bits = RNG.integers(0, 2, (16, 1))

    def job(session: Session) -> Any:
        shared = proven_held(session, bits if session.rank == 0 else None, 0, (16, 1))
        return session.open(shared, results(session.parties)[2])

    with stopping("the MACs of opened values do not verify"):
        run_session(job, wrap=Garbled, options=ACTIVE)


def test_bits_of_a_form_are_one_hot_rows_and_places() -> None:
    form = EncodingForm(LAYOUTS[1])
    bits = form.of(INPUTS[1])
    assert set(np.unique(bits)) <= {0, 1}
    assert all((bits[:, low:high].sum(axis=1) == 1).all() for low, high in form.groups)
    assert (bits[np.isnan(WAYS), form.exclusive :] == 0).all()
