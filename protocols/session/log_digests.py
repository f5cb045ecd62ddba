"""Signed log digests: at the end of a session every party signs the log digests of all parties.

Before: each party has its own records of the session, and digests of them (serialised as "heads"). A digest of
a file that only its owner may read is salted. After: each party has one statement with the digests of all, and a
signature of every party on that same statement.

| step | who | what each learns |
|---|---|---|
| name | every party commits to 32 random bytes, then sends them | a name that nobody chose: no old statement fits |
| heads | every party sends its digests to all | digests: public ones, and salted ones that reveal nothing |
| signatures | every party sends its certificate and signature on the joint statement | that all received the same |

Six rounds; about one kilobyte to each peer, and two with certificates. Why it holds: a signature covers the digests
of all parties. So a party that rewrites its records later, with new digests and its own new signature, lacks the
others' signatures on them. A party that sends two parties different digests is detected at once: the signatures of
these two do not fit each other's statement. A party that lies from the start can sign anything about itself: the
statement says what a party had on record at that moment, not that it is true.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from secure_sccvfl.protocols.config import SessionConfig, node_folder
from secure_sccvfl.protocols.errors import ConfigurationMismatch, PeerError, ProtocolError
from secure_sccvfl.protocols.net.certificates import Credentials, fingerprint, is_issued, is_signed, node_in, sign
from secure_sccvfl.protocols.session.runtime import Session

PURPOSE = "heads"
Digests = Mapping[str, Any]


def covered(statement: Digests) -> bytes:
    """What a signature on a statement covers."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def exchange_digests(
    session: Session, config: SessionConfig, about: Digests, local: Digests, credentials: Credentials | None
) -> dict[str, Any]:
    """Run by all parties at the end of a session: the joint statement, and every party's signature on it.

    about: what all say about the session, the same at each. local: this party's digests.
    """
    name = session.agree_on_name()
    texts = session.swap_texts("heads", covered({"about": about, "heads": local}))
    digests = {}
    for rank, text in enumerate(texts):
        result = _read(config.node_name(rank), text)
        if result.get("about") != dict(about):
            raise ConfigurationMismatch(config.node_name(rank), "heads", "ends another session")
        digests[node_folder(rank, session.parties)] = result.get("heads")
    statement = {"name": name, **about, "heads": digests}
    output: dict[str, Any] = {"statement": statement, "signatures": {}}
    if credentials is None:
        return output
    signature = sign(credentials, PURPOSE, covered(statement))
    mine = {"certificate": credentials.certificate.read_text(), "signature": signature}
    for rank, text in enumerate(session.swap_texts("signatures", covered(mine))):
        output["signatures"][node_folder(rank, session.parties)] = _read(config.node_name(rank), text)
    wrong = list(broken_signatures(output, session.parties, config.certificates, credentials.authority.read_bytes()))
    if wrong:
        raise ProtocolError(f"signed digests: {wrong[0]}")
    return output


def broken_signatures(
    signed: Digests, parties: int, pins: Mapping[str, str], authority: bytes | None = None
) -> Iterator[str]:
    """Faults of the signatures on a statement; none if every party signed it.

    pins: the certificate of each party, as a session file has them; may be empty. authority: whose certificates
    count; None: whoever's.
    """
    statement = covered(signed["statement"])
    for rank in range(parties):
        party = node_folder(rank, parties)
        result = signed["signatures"].get(party)
        if not isinstance(result, dict) or not {"certificate", "signature"} <= result.keys():
            yield f"{party} has not signed"
            continue
        certificate = str(result["certificate"]).encode()
        if node_in(certificate, parties) != rank:
            yield f"the certificate with the signature of {party} is not that of {party}"
        elif pins and fingerprint(certificate) != pins.get(party):
            yield f"the signature of {party} is by another certificate than the session file names"
        elif authority is not None and not is_issued(certificate, authority):
            yield f"the signature of {party} is by a certificate of another authority"
        elif not is_signed(certificate, PURPOSE, statement, str(result["signature"])):
            yield f"{party} has signed other digests"


def _read(name: str, text: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        raise PeerError(name, "heads", "sent what cannot be read") from None
