"""Attacks on alignments of lists that partly overlap, each with a control in which the protection is off.

Guessing: a curious dealer, or party, tries ids against pseudonyms or blinded elements. Probing: two hidden
intersections with one id more in the second; without bounds the number of rows answers (SECURITY.md says so).
Repeating: in PSI party 0 counts in how many lists an element is, so an element twice in one list and once in another
would have the count of one that all three hold, and its bit would say "exactly one other holds it".
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import secure_sccvfl.protocols.alignment.psi as psi
from secure_sccvfl.protocols.alignment.hidden_intersection import HiddenIntersection, SessionPseudonyms
from secure_sccvfl.protocols.alignment.interface import SIZES, releases
from secure_sccvfl.protocols.alignment.psi import Blinding, PrivateSetIntersection
from secure_sccvfl.protocols.dealing.matching import Aligned, Bounds
from secure_sccvfl.protocols.dealing.randomness import Stream, fresh_key
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.records.transcript import Frame, read_transcript
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.sessions import run_session, stopping

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


def seen_pseudonyms(frames: list[Frame]) -> list[np.ndarray]:
    """The pseudonyms of each party, as they came."""
    sent = [frame for frame in frames if frame.step == "tags of records" and frame.arrays[0].ndim == 2]
    return [np.concatenate([f.arrays[0] for f in sent if f.peers == (rank,)]) for rank in range(2)]


def identified(pseudonyms: list[np.ndarray], key: bytes) -> list[set[str]]:
    """The ids whose pseudonyms under a key are among those seen."""
    tried = SessionPseudonyms(key).of(GUESSES)
    wanted = [set(seen[:, 0].tolist()) for seen in pseudonyms]
    return [{GUESSES[k] for k, word in enumerate(tried[:, 0].tolist()) if word in seen} for seen in wanted]


@pytest.mark.chance(1e-10)  # two keys, a million guesses against 235 words of 64 bits; two sessions
def test_the_dealer_identifies_nobody_without_the_key_and_sees_sorted_pseudonyms(tmp_path: Path) -> None:
    keys: list[bytes] = []
    views = [dealers_view(tmp_path / name, keys) for name in ("one", "two")]
    pseudonyms, again = (seen_pseudonyms(view) for view in views)
    assert [len(party_list) for party_list in pseudonyms] == [len(party_list) for party_list in LISTS]
    assert identified(pseudonyms, fresh_key()) == [set(), set()]
    assert identified(pseudonyms, keys[0]) == [set(party_list) for party_list in LISTS], (
        "the control: with the key every id is there"
    )

    everything = b"".join(array.tobytes() for frame in views[0] for array in frame.arrays)
    assert keys[0] not in everything and keys[0][:8] not in everything
    rest = b"".join(array.tobytes() for f in views[0] if f.step != "tags of records" for array in f.arrays)
    assert not any(name.encode() in rest for party_list in LISTS for name in party_list)
    for name in LISTS[0]:
        for plain in (hashlib.blake2b(name.encode(), digest_size=16), hashlib.sha256(name.encode())):
            assert plain.digest()[:8] not in everything

    for party_list in (*pseudonyms, *again):
        rows = [tuple(row) for row in party_list.tolist()]
        assert rows == sorted(rows), "the order of a file would tell which ids are near each other"
    first, second = (
        {word for party_list in view for word in party_list[:, 0].tolist()} for view in (pseudonyms, again)
    )
    assert not first & second, "two sessions have none in common"


@pytest.mark.chance(1e-12)
def test_a_party_cannot_try_ids_against_the_elements_of_another(tmp_path: Path) -> None:
    """What party 1 gets of party 0 in PSI: no id fits without the scalar, and all fit with it."""
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


OTHERS = ([f"c{number}" for number in range(4, 24)], [f"c{number}" for number in range(12, 32)])
OWN = ["c1", "c2", "c15"]
PROBED = {"c5": True, "c40": False}
"""Ids that a party would like to know of, and whether another party holds them."""


def rows_of_union(ids: list[str], bounds: Bounds | None) -> int:
    """What the first party learns of an alignment."""

    def job(session: Session) -> int:
        return HiddenIntersection(session, bounds).align([ids, *OTHERS][session.rank]).size

    return int(run_session(job, 3, ReleasePlan(releases(3, revealed=False)))[0])


@pytest.mark.parametrize("bounds", [None, (10, 20, 20)])
def test_one_more_id_reveals_whether_another_party_holds_it_unless_there_are_bounds(bounds: Bounds | None) -> None:
    before = rows_of_union(OWN, bounds)
    grown = {name: rows_of_union([*OWN, name], bounds) - before for name in PROBED}
    if bounds is None:
        assert {name: more == 0 for name, more in grown.items()} == PROBED
    else:
        assert set(grown.values()) == {0} and before == sum(bounds) == rows_of_union([], bounds)


RNG = np.random.default_rng(1)
EVERYBODY = [f"person {number}" for number in range(120)]
TWO = [sorted(RNG.choice(EVERYBODY, 70, replace=False).tolist()) for _ in range(2)]
ASKED = EVERYBODY[:60]


class Twice(PrivateSetIntersection):
    """The attacker: every element twice, and the bits that come back for the first of them."""

    def align(self, ids: Any) -> Aligned:
        names, session = list(ids), self._session
        count = {f"party {session.rank}": 2 * len(names)}
        sizes = session.announce(count, session.declared(SIZES))
        lengths = [int(sizes[f"party {rank}"]) for rank in range(session.parties)]
        elements, orders = self._around(names + names, lengths)
        bits = self._back(self._compared(elements, lengths), orders, lengths)
        return Aligned(len(names), np.where(bits[: len(names)], np.arange(len(names)), -1))


def bits_of_repeats() -> list[bool]:
    """The attacker's bits of the ids that it asked about."""

    def job(session: Session) -> Any:
        kind = Twice if session.rank == 2 else PrivateSetIntersection
        return kind(session).align(TWO[session.rank] if session.rank < 2 else ASKED)

    rows = run_session(job, 3, ReleasePlan(releases(3, revealed=True)))[2].rows
    return list((rows >= 0).tolist())


def test_repeats_in_a_list_are_refused_and_would_reveal_who_else_holds_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stopping("party 2: its list has an element twice"):
        bits_of_repeats()
    monkeypatch.setattr(psi, "check_repeats", lambda lists: None)
    one_other = [(name in TWO[0]) != (name in TWO[1]) for name in ASKED]
    assert bits_of_repeats() == one_other and 10 < sum(one_other) < 50
