"""Signed heads: at the end of a session every party signs what every party says that it has on record.

Before: each party has its own records of the session, and its own heads: digests that stand for these records. A head
that must hide something (a file that its owner alone may read) is a salted digest. After: each party has one
statement with the heads of all, and a signature of every party on that same statement.

| step | who | what each learns |
|---|---|---|
| name | every party commits to 32 random bytes, then sends them | a name that nobody chose: no old statement fits |
| heads | every party sends its heads to all | digests: public ones, and salted ones that tell nothing |
| signatures | every party sends its certificate and its signature on the joint statement | that all heard the same |

Six rounds; about one kilobyte to each peer, and two with certificates. Why it holds: a signature covers the heads of
all parties. So a party that rewrites its records later, and makes its own heads and signature anew, lacks the others'
signatures on them. A party that tells two parties different heads is found at once: the signatures that these two
send do not fit the statement of the other. Who deviates from the start can sign what it likes about itself: the
statement says what a party had on record at that moment, not that it is true.

With a transport without certificates there are no signatures, and a statement is only a note.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from protocols.config import SessionConfig, node_folder
from protocols.errors import ConfigurationMismatch, PeerError, ProtocolError
from protocols.net.certificates import Credentials, fingerprint, is_issued, is_signed, place_in, sign
from protocols.session.runtime import Session

PURPOSE = "heads"
Heads = Mapping[str, Any]


def covered(statement: Heads) -> bytes:
    """What a signature on a statement covers."""
    return json.dumps(statement, sort_keys=True, separators=(",", ":")).encode()


def exchange_heads(
    session: Session, config: SessionConfig, about: Heads, own: Heads, credentials: Credentials | None
) -> dict[str, Any]:
    """Run by all parties together at the end of a session: the joint statement, and every party's signature on it.

    about: what all say about the session, the same at each. own: this party's heads.
    """
    name = session.agree_on_name()
    told = session.swap_texts("heads", covered({"about": about, "heads": own}))
    heads = {}
    for rank, text in enumerate(told):
        found = _read(config.node_name(rank), text)
        if found.get("about") != dict(about):
            raise ConfigurationMismatch(config.node_name(rank), "heads", "ends another session")
        heads[node_folder(rank, session.parties)] = found.get("heads")
    statement = {"name": name, **about, "heads": heads}
    made: dict[str, Any] = {"statement": statement, "signatures": {}}
    if credentials is None:
        return made
    signature = sign(credentials, PURPOSE, covered(statement))
    mine = {"certificate": credentials.certificate.read_text(), "signature": signature}
    for rank, text in enumerate(session.swap_texts("signatures", covered(mine))):
        made["signatures"][node_folder(rank, session.parties)] = _read(config.node_name(rank), text)
    wrong = list(broken_signatures(made, session.parties, config.certificates, credentials.authority.read_bytes()))
    if wrong:
        raise ProtocolError(f"signed heads: {wrong[0]}")
    return made


def broken_signatures(
    signed: Heads, parties: int, pins: Mapping[str, str], authority: bytes | None = None
) -> Iterator[str]:
    """What is wrong with the signatures on a statement; nothing if every party signed it.

    pins: the certificate of each place, as a session file has them; may be empty. authority: whose certificates
    count; None: whoever's.
    """
    statement = covered(signed["statement"])
    for rank in range(parties):
        place = node_folder(rank, parties)
        found = signed["signatures"].get(place)
        if not isinstance(found, dict) or not {"certificate", "signature"} <= found.keys():
            yield f"{place} has not signed"
            continue
        certificate = str(found["certificate"]).encode()
        if place_in(certificate, parties) != rank:
            yield f"the certificate beside the signature of {place} is not that of {place}"
        elif pins and fingerprint(certificate) != pins.get(place):
            yield f"the signature of {place} is by another certificate than the session file names"
        elif authority is not None and not is_issued(certificate, authority):
            yield f"the signature of {place} is by a certificate of another authority"
        elif not is_signed(certificate, PURPOSE, statement, str(found["signature"])):
            yield f"{place} has signed other heads"


def _read(name: str, text: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        raise PeerError(name, "heads", "told what cannot be read") from None
