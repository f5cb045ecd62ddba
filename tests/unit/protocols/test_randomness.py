"""Streams: agreement, separation, no reuse, no key shown."""

import pickle

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.randomness import Draw, KeyAgreement, Stream, fresh_key
from secure_sccvfl.protocols.errors import CounterReuse, ProtocolError
from tests.support.chance import of_rate, uniform


def test_two_ends_derive_the_same_elements_and_keys_differ_by_session_and_context() -> None:
    a, b = KeyAgreement(), KeyAgreement()
    key_a, key_b = a.agree(b.public, b"context"), b.agree(a.public, b"context")
    assert key_a == key_b and len(key_a) == 32
    one, other = Stream(key_a, "label"), Stream(key_b, "label")
    assert (one.draw(7).elements((4, 5)) == other.draw(7).elements((4, 5))).all()
    assert a.agree(b.public, b"one") != a.agree(b.public, b"two")
    assert KeyAgreement().agree(b.public, b"one") != a.agree(b.public, b"one")


def test_labels_and_counters_are_separate_streams() -> None:
    key = fresh_key()
    words = [
        Stream(key, label).draw(counter).elements((1000,)) for label in ("one", "two") for counter in (0, 1, 2**40)
    ]
    assert len(np.unique(np.concatenate(words))) == 6000


def test_one_draw_never_repeats_ring_elements_and_may_be_read_in_pieces() -> None:
    draw = Stream(fresh_key(), "label").draw()
    words = np.concatenate([draw.elements((n,)) for n in (1, 3, 1000, 7, 100_000)])
    assert len(np.unique(words)) == len(words)
    key = fresh_key()
    pieces, whole = Stream(key, "x").draw(3), Stream(key, "x").draw(3)
    split = np.concatenate([pieces.elements((n,), np.uint8) for n in (1, 63, 64, 65, 200)])
    assert (split == whole.elements((393,), np.uint8)).all()


def test_an_old_counter_raises() -> None:
    key = fresh_key()
    stream, other = Stream(key, "label"), Stream(key, "label")
    stream.draw(5)
    for again in (0, 3, 5):
        with pytest.raises(CounterReuse, match="already used"):
            stream.draw(again)
    assert (stream.draw().elements((3,)) == other.draw(6).elements((3,))).all(), "the next one follows the last"


@pytest.mark.chance(1e-11)  # two checks
def test_ring_elements_and_bits_are_uniform() -> None:
    draw = Stream(fresh_key(), "label").draw()
    assert uniform(draw.elements((1 << 20,), np.uint8))
    assert of_rate(int(draw.bits((1 << 20,)).sum()), 1 << 20, 0.5)


@pytest.mark.parametrize("holder", [KeyAgreement(), Stream(b"k" * 32, "label"), Draw(b"k" * 32, 0)])
def test_nothing_that_holds_a_key_shows_it(holder: object) -> None:
    assert "key hidden" in repr(holder) and "kk" not in repr(holder) and "6b6b" not in repr(holder)
    with pytest.raises(ProtocolError, match="cannot be pickled"):
        pickle.dumps(holder)
    with pytest.raises(ProtocolError, match="32 bytes"):
        Stream(b"short", "label")
