"""Raising a budget: a file that every party signs with the key of its certificate, and its way into the ledgers.

| step | who | what |
|---|---|---|
| draft | one party | `cap.toml`: ledger, old and new budget, a hash of the ledger's lines, reason, date |
| sign | every party, with its own key | certificate and signature under its name |
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from accounting.budget import Budget, BudgetError, CapDecision, account_of, read_account
from accounting.ledger import FileLedger, LedgerError, read_ledger, states_of
from protocols.config import ConfigError
from protocols.errors import ProtocolError
from protocols.net.certificates import Credentials, fingerprint, is_signed, sign

if TYPE_CHECKING:  # readers of a report import this module without CrypTen
    from protocols.session.runtime import Session

PURPOSE = "cap"


def draft(ledger: Path, after: float, reason: str, date: str) -> CapDecision:
    """A decision about the ledger as it is now, without a signature."""
    entries, terms = read_ledger(ledger)[0], read_account(ledger).terms
    try:
        head = states_of(entries)[len(entries) - 1]  # the same at every party, whose records each charges
        return CapDecision(ledger.name, terms.epsilon, after, terms.delta, head, reason, date)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def signed_by(decision: CapDecision, credentials: Credentials, party: str) -> CapDecision:
    """The decision with the signature of this party ('party-0')."""
    signature = {
        "certificate": credentials.certificate.read_text(encoding="ascii"),
        "signature": sign(credentials, PURPOSE, decision.message),
    }
    return replace(decision, signed={**decision.signed, party: signature})


def write_decision(path: Path, decision: CapDecision) -> None:
    lines = [f"{key} = {json.dumps(value)}" for key, value in decision.content.items()]
    for party, signature in sorted(decision.signed.items()):
        lines += ["", f"[signed.{party}]", *(f"{key} = {json.dumps(text)}" for key, text in signature.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_decision(path: Path) -> CapDecision:
    """The decision of a file; its signatures are not checked yet."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        return CapDecision.from_dict({"signed": {}, **data})
    except OSError as error:
        raise ConfigError(f"cannot read the decision on the cap {path.name}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path.name} is no decision on a cap: {error}") from None


def check_signatures(decision: CapDecision, parties: int, certificates: Mapping[str, str]) -> None:
    """Refuse a decision that not every party has signed with the certificate that the session file pins for it.

    The ledgers get all signatures. One of somebody else, which nobody checked, would make them unreadable.
    """
    if not certificates:
        raise ConfigError("a cap is raised by all parties: the session file must pin their certificates")
    names = [f"party-{rank}" for rank in range(parties)]
    if strangers := sorted(set(decision.signed) - set(names)):
        raise ConfigError(f"the decision on the cap is signed by {strangers[0]}, which is no party; the cap stays")
    for party in names:
        if party not in decision.signed:
            raise ConfigError(f"{party} has not signed the decision on the cap; the cap stays")
        if not _signed(decision, party, certificates.get(party)):
            raise ConfigError(f"the signature of {party} under the decision on the cap is not its own; the cap stays")


def _signed(decision: CapDecision, party: str, pinned: str | None) -> bool:
    signature = decision.signed[party]
    pem = signature["certificate"].encode()
    try:
        expected = pinned is None or fingerprint(pem) == pinned
        return expected and is_signed(pem, PURPOSE, decision.message, signature["signature"])
    except ConfigError:  # no certificate
        return False


def check_raised(budget: Budget) -> None:
    """Refuse a ledger with a decision without valid signatures. Run whenever a ledger is opened."""
    for decision in budget.account.raised:
        if not decision.signed or not all(_signed(decision, party, None) for party in decision.signed):
            raise LedgerError("the ledger has a decision on its cap without valid signatures; nothing was charged")


def raise_cap(session: Session, ledger: Path, file: str, certificates: Mapping[str, str]) -> None:
    """Run by all parties together at the start of a job: the decision of a file becomes a line of every ledger.

    Nothing happens without a file, or if its decision is about another ledger of this party. If one party refuses it,
    no ledger gets it. certificates: SHA-256 by party, as the session file pins them.
    """
    if not file or (decision := read_decision(Path(file))).ledger != ledger.name:
        return
    error: Exception | None = None
    try:
        check_signatures(decision, session.parties, certificates)
        entries = read_ledger(ledger)[0]
        account = account_of(entries, FileLedger(ledger).load)
        if not account.has(decision) and (why := decision.misfit(account.terms, states_of(entries))) is not None:
            error = BudgetError(f"the decision on the cap {why}; the cap stays")
    except (ConfigError, LedgerError) as problem:
        error = problem
    answers = session.tell_all("decision on the cap", int(error is None))
    if error is not None:
        raise error
    if not all(answers):
        raise ProtocolError(f"party {answers.index(0)} refuses the decision on the cap; the cap stays")
    line = hashlib.sha256(json.dumps(decision.to_dict(), sort_keys=True).encode()).digest()
    if len(set(session.swap_bytes("digest of the decision", line))) > 1:
        raise ProtocolError("the parties have different decisions on the cap: give all the same file")
    Budget(FileLedger(ledger), account.terms).raise_cap(decision)
