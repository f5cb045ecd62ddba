"""Raising a budget: a file that every party signs with the key of its certificate, and its way into the ledgers.

| step | who | what |
|---|---|---|
| draft | one party | `cap.toml`: ledger, old and new budget, a hash of the ledger's lines, reason, date |
| sign | every party, with its own key | certificate and signature under its place |
| start of a session | every party | checks all signatures, compares digests, writes the decision into its ledger |

Signatures are checked against the certificates that the session file pins.

One party that does not sign, or whose ledger is another, is enough to keep the budget. A signature covers every field
of the decision and the purpose "cap", so one made for a plan is worth nothing here. The decision is a line of the
hash chain: nobody can take it back unnoticed, and every report shows it. One round of 32 bytes to each peer.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.account import CapDecision, Raised, Terms, read_account
from accounting.budget import Budget, BudgetError
from accounting.ledger import FileLedger, FileSets, LedgerError, read_ledger, states_of
from protocols.config import ConfigError
from protocols.errors import ProtocolError
from protocols.net.certificates import Credentials, fingerprint, is_signed, sign

if TYPE_CHECKING:  # readers of a report import this module without CrypTen
    from protocols.session.runtime import Session

PURPOSE = "cap"


def draft(ledger: Path, after: float, reason: str, date: str) -> Raised:
    """A decision about the ledger as it is now, without a signature."""
    entries, _ = read_ledger(ledger)
    terms = read_account(entries, FileSets.beside(ledger)).terms
    try:
        head = states_of(entries)[len(entries) - 1]  # the same at every party, whose records each charges
        found = CapDecision(ledger.name, terms.epsilon, after, terms.delta, head, reason, date)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Raised(found, {})


def signed_by(raised: Raised, credentials: Credentials, place: str) -> Raised:
    """The decision with the signature of the party at this place ('party-0')."""
    own = {
        "certificate": credentials.certificate.read_text(encoding="ascii"),
        "signature": sign(credentials, PURPOSE, raised.decision.message),
    }
    return replace(raised, signed={**raised.signed, place: own})


def write_decision(path: Path, raised: Raised) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in asdict(raised.decision).items()]
    for place, own in sorted(raised.signed.items()):
        lines += ["", f"[signed.{place}]", *(f"{key} = {json.dumps(text)}" for key, text in own.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_decision(path: Path) -> Raised:
    """The decision of a file; its signatures are not checked yet."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        return Raised.from_dict({"signed": {}, **data})
    except OSError as error:
        raise ConfigError(f"cannot read the decision on the cap {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path.name} is no decision on a cap: {error}") from None


def check_signatures(raised: Raised, parties: int, certificates: Mapping[str, str]) -> None:
    """Refuse a decision that not every party has signed with the certificate that the session file pins for it.

    All that stands there goes into the ledgers. A word of somebody else, whose signature nobody checked, would make
    them unreadable.
    """
    if not certificates:
        raise ConfigError("a cap is raised by all parties: the session file must pin their certificates")
    places = [f"party-{rank}" for rank in range(parties)]
    if strangers := sorted(set(raised.signed) - set(places)):
        raise ConfigError(f"the decision on the cap is signed by {strangers[0]}, which is no party; the cap stays")
    for place in places:
        if place not in raised.signed:
            raise ConfigError(f"{place} has not signed the decision on the cap; the cap stays")
        if not _signed(raised, place, certificates.get(place)):
            raise ConfigError(f"the signature of {place} under the decision on the cap is not its own; the cap stays")


def _signed(raised: Raised, place: str, pinned: str | None) -> bool:
    own = raised.signed[place]
    pem = own["certificate"].encode()
    try:
        known = pinned is None or fingerprint(pem) == pinned
        return known and is_signed(pem, PURPOSE, raised.decision.message, own["signature"])
    except ConfigError:  # what stands there is no certificate
        return False


def check_raised(budget: Budget) -> None:
    """Refuse a ledger with a decision that was not signed as it stands there. Run whenever a ledger is opened."""
    for raised in budget.account.raised:
        if not raised.signed or not all(_signed(raised, place, None) for place in raised.signed):
            raise LedgerError("the ledger has a decision on its cap without valid signatures; nothing was charged")


def raise_cap(session: Session, ledger: Path, file: str, certificates: Mapping[str, str]) -> None:
    """Run by all parties together at the start of a job: the decision of a file becomes a line of every ledger.

    Nothing happens without a file, or if its decision is about another ledger of this party. If one party refuses it,
    no ledger gets it. certificates: place -> SHA-256, as the session file pins them.
    """
    if not file or (raised := read_decision(Path(file))).decision.ledger != ledger.name:
        return
    error: Exception | None = None
    try:
        check_signatures(raised, session.parties, certificates)
        entries, _ = read_ledger(ledger)
        known = read_account(entries, FileSets.beside(ledger))
        if raised.decision not in [before.decision for before in known.raised]:
            why = raised.decision.misfit(known.terms.epsilon, known.terms.delta, states_of(entries))
            if why is not None:
                error = BudgetError(f"the decision on the cap {why}; the cap stays")
    except (ConfigError, LedgerError) as problem:
        error = problem
    told = session.tell_all("decision on the cap", int(error is None))
    if error is not None:
        raise error
    if not all(told):
        raise ProtocolError(f"party {told.index(0)} refuses the decision on the cap; the cap stays")
    whole = hashlib.sha256(json.dumps(raised.to_dict(), sort_keys=True).encode()).digest()  # the line of every ledger
    if len(set(session.swap_bytes("digest of the decision", whole))) > 1:
        raise ProtocolError("the parties have different decisions on the cap: give all the same file")
    Budget(FileLedger(ledger), Terms(known.terms.epsilon, known.terms.delta)).raise_cap(raised)
