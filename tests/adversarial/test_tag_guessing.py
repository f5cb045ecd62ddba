"""A curious dealer has all that it saw of an alignment, and tries every 6-digit id against it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from protocols.alignment.hidden_intersection import HiddenIntersection, SessionPseudonyms
from protocols.alignment.interface import releases
from protocols.alignment.psi import Blinding, PrivateSetIntersection
from protocols.dealing.randomness import Stream, fresh_key
from protocols.records.releases import ReleasePlan
from protocols.records.transcript import Frame, read_transcript
from protocols.session.runtime import Session
from tests.support.harness import run_session

LISTS = [[f"{number:06d}" for number in range(first, 10**6, 9973)] for first in (17, 4003)]
LISTS[1] += LISTS[0][::3]
GUESSES = [f"{number:06d}" for number in range(10**6)]


def dealers_view(folder: Path, keys: list[bytes]) -> list[Frame]:
    """All that came to the dealer in a session. The key is kept for the control."""

    def keeping(self: SessionPseudonyms, key: bytes) -> None:
        keys.append(key)
        make(self, key)

    make = SessionPseudonyms.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SessionPseudonyms, "__init__", keeping)
        run_session(
            lambda session: HiddenIntersection(session).align(LISTS[session.rank]),
            2,
            ReleasePlan(releases(2, revealed=False)),
            folder=folder,
            transcripts=True,
        )
    return [frame for frame in read_transcript(folder / "dealer" / "transcript") if frame.way == "in"]


def seen_tags(frames: list[Frame]) -> list[np.ndarray]:
    """The tags of each party, as they came."""
    sent = [frame for frame in frames if frame.step == "tags of records" and frame.arrays[0].ndim == 2]
    return [np.concatenate([f.arrays[0] for f in sent if f.peers == (rank,)]) for rank in range(2)]


def found(tags: list[np.ndarray], key: bytes) -> list[set[str]]:
    """The ids whose tags under a key are among those seen."""
    tried = SessionPseudonyms(key).of(GUESSES)
    wanted = [set(own[:, 0].tolist()) for own in tags]
    return [{GUESSES[k] for k, word in enumerate(tried[:, 0].tolist()) if word in own} for own in wanted]


@pytest.mark.chance(1e-10)  # two keys, a million guesses against 235 words of 64 bits
def test_the_dealer_finds_no_id_without_the_key_and_all_with_it(tmp_path: Path) -> None:
    keys: list[bytes] = []
    frames = dealers_view(tmp_path, keys)
    tags = seen_tags(frames)
    assert [len(own) for own in tags] == [len(own) for own in LISTS]
    for guess in (bytes(32), fresh_key()):
        assert found(tags, guess) == [set(), set()]
    assert found(tags, keys[0]) == [set(own) for own in LISTS], "the control: with the key every id is found"

    everything = b"".join(array.tobytes() for frame in frames for array in frame.arrays)
    assert keys[0] not in everything and keys[0][:8] not in everything
    rest = b"".join(array.tobytes() for f in frames if f.step != "tags of records" for array in f.arrays)
    assert not any(name.encode() in rest for own in LISTS for name in own)
    for name in LISTS[0]:
        for plain in (hashlib.blake2b(name.encode(), digest_size=16), hashlib.sha256(name.encode())):
            assert plain.digest()[:8] not in everything


@pytest.mark.chance(1e-12)
def test_tags_come_sorted_and_two_sessions_have_none_in_common(tmp_path: Path) -> None:
    views = [seen_tags(dealers_view(tmp_path / name, [])) for name in ("one", "two")]
    for own in (own for view in views for own in view):
        rows = [tuple(row) for row in own.tolist()]
        assert rows == sorted(rows), "the order of a file would tell which ids are near each other"
    words = [{word for own in view for word in own[:, 0].tolist()} for view in views]
    assert not words[0] & words[1]


@pytest.mark.chance(1e-12)
def test_a_party_cannot_try_ids_against_the_elements_of_another(tmp_path: Path) -> None:
    """What party 1 gets of party 0 in `revealed`: no id fits without the scalar, and all fit with it."""
    scalars: list[Blinding] = []

    def keeping(self: Blinding, draw: object, threads: int = 1) -> None:
        make(self, draw, threads)  # type: ignore[arg-type]
        scalars.append(self)

    def job(session: Session) -> int:
        PrivateSetIntersection(session).align(LISTS[session.rank])
        return session.rank

    make = Blinding.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blinding, "__init__", keeping)
        run_session(job, 2, ReleasePlan(releases(2, revealed=True)), folder=tmp_path, transcripts=True)
    frames = read_transcript(tmp_path / "party-1" / "transcript")
    came = {row.tobytes() for f in frames if f.way == "in" and f.step == "pass 1" for row in f.arrays[0]}
    assert len(came) == len(LISTS[0])
    guesses = LISTS[0] + [name for name in GUESSES[:200] if name not in LISTS[0]]
    fits = [sum(row.tobytes() in came for row in scalar.hashed(guesses)) for scalar in scalars]
    assert sorted(fits) == [0, len(LISTS[0])], "under party 1's own scalar none, under party 0's all"
    other = Blinding(Stream(fresh_key(), "test").draw())
    assert not any(row.tobytes() in came for row in other.hashed(guesses))
