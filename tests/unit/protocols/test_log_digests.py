"""Log digests that all parties sign: one statement, and no party can rewrite its own part of it later."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.certificates import Credentials, fingerprint, make_certificates, sign
from secure_sccvfl.protocols.session import log_digests
from secure_sccvfl.protocols.session.log_digests import broken_signatures, covered, exchange_digests
from secure_sccvfl.protocols.session.runtime import Session
from tests.support.sessions import CERTIFICATES, credentials, run_session

PARTIES = 3
CONFIG = SessionConfig(parties=tuple(f"127.0.0.1:{rank + 1}" for rank in range(PARTIES)))
AUTHORITY = (CERTIFICATES / "ca.pem").read_bytes()
PINS = {f"party-{rank}": fingerprint(credentials(rank, PARTIES).certificate.read_bytes()) for rank in range(PARTIES)}


def ends(session: Session, **about: str) -> dict[str, Any]:
    """What a party does at the end of a session; its digests have their own length."""
    digests = {"releases": "same", "files": "f" * (1 + session.rank)}
    return exchange_digests(session, CONFIG, {"job": "test", **about}, digests, credentials(session.rank, PARTIES))


@pytest.fixture(scope="module")
def signed() -> list[dict[str, Any]]:
    return run_session(ends, PARTIES)


def test_all_have_the_same_statement_and_every_signature(signed: list[dict[str, Any]]) -> None:
    first = signed[0]
    assert all(statement == first for statement in signed)
    assert {k: v["files"] for k, v in first["statement"]["heads"].items()} == {
        "party-0": "f",
        "party-1": "ff",
        "party-2": "fff",
    }
    assert list(broken_signatures(first, PARTIES, PINS, AUTHORITY)) == []
    assert "PRIVATE" not in str(first)


def test_two_sessions_have_two_names(signed: list[dict[str, Any]]) -> None:
    """Otherwise a statement of an earlier session would fit."""
    again = run_session(ends, PARTIES)
    assert again[0]["statement"]["name"] != signed[0]["statement"]["name"]


def test_who_rewrites_its_digests_lacks_the_signatures_of_the_others(signed: list[dict[str, Any]]) -> None:
    forged = copy.deepcopy(signed[0])
    forged["statement"]["heads"]["party-0"]["files"] = "another"
    forged["signatures"]["party-0"]["signature"] = sign(
        credentials(0, PARTIES), "heads", covered(forged["statement"])
    )
    assert list(broken_signatures(forged, PARTIES, PINS, AUTHORITY)) == [
        "party-1 has signed other digests",
        "party-2 has signed other digests",
    ]


def test_signatures_by_others_than_the_members_do_not_count(signed: list[dict[str, Any]], tmp_path: Path) -> None:
    """All keys are the forger's, and every signature fits: the pins, or the authority, show it."""
    make_certificates(tmp_path / "certs", PARTIES)
    forged = copy.deepcopy(signed[0])
    forged["statement"]["heads"]["party-0"]["files"] = "another"
    for node in forged["signatures"]:
        credentials = Credentials.of(tmp_path / "certs", node)
        signature = {
            "certificate": credentials.certificate.read_text(),
            "signature": sign(credentials, "heads", covered(forged["statement"])),
        }
        forged["signatures"][node] = signature
    assert list(broken_signatures(forged, PARTIES, {})) == [], "no pins and no authority are given"
    assert len(list(broken_signatures(forged, PARTIES, PINS))) == PARTIES
    assert len(list(broken_signatures(forged, PARTIES, {}, AUTHORITY))) == PARTIES
    swapped = copy.deepcopy(signed[0])
    swapped["signatures"]["party-1"] = swapped["signatures"]["party-2"]
    del swapped["signatures"]["party-0"]
    assert list(broken_signatures(swapped, PARTIES, {}, AUTHORITY)) == [
        "party-0 has not signed",
        "the certificate with the signature of party-1 is not that of party-1",
    ]


def test_a_party_that_signs_something_else_stops_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the digests that it sent to another party."""

    def two_faced(signer: Credentials, purpose: str, message: bytes) -> str:
        return sign(signer, purpose, b"other heads" if signer == credentials(1, PARTIES) else message)

    monkeypatch.setattr(log_digests, "sign", two_faced)
    with pytest.raises(ExceptionGroup) as caught:
        run_session(ends, PARTIES)
    assert any(
        isinstance(e, ProtocolError) and "party-1 has signed other digests" in str(e) for e in caught.value.exceptions
    )


def test_parties_that_end_different_sessions_stop() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        run_session(lambda session: ends(session, code=str(session.rank == 2)), PARTIES)
    messages = [str(error) for error in caught.value.exceptions]
    assert len(messages) >= 3 and all("ends another session" in line for line in messages), messages


def test_without_certificates_there_is_a_statement_alone() -> None:
    results = run_session(lambda s: exchange_digests(s, CONFIG, {"job": "test"}, {"a": str(s.rank)}, None), 2)
    assert results[0] == results[1] and results[0]["signatures"] == {} and len(results[0]["statement"]["heads"]) == 2
