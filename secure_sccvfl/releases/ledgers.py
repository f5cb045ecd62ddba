"""Where a party's ledgers lie, opening one, and raising its budget.

A budget is raised by a file that every party signs with the key of its certificate.

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

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from secure_sccvfl.accounting.accountant import (
    epsilon_added,
    epsilon_against_dealer,
    epsilon_of,
    epsilon_with_batches_known,
    finite,
)
from secure_sccvfl.accounting.budget import (
    Account,
    Budget,
    BudgetError,
    CapDecision,
    account_of,
    by_part,
    read_account,
)
from secure_sccvfl.accounting.calibration import check_target
from secure_sccvfl.accounting.ledger import SETS, FileLedger, LedgerError, read_ledger, states_of
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.net.certificates import Credentials, fingerprint, is_signed, sign
from secure_sccvfl.protocols.records.private import private

if TYPE_CHECKING:  # readers of a report import this module for the names of the ledgers, without CrypTen
    from secure_sccvfl.protocols.operations.noise import NoiseKind
    from secure_sccvfl.protocols.session.runtime import Session

LEDGER = "ledger.jsonl"
EVALUATIONS = "evaluation.jsonl"
"""The ledger of what was released about held-out records, next to that of training."""
PREDICTION_LOGS = f"predictions-{16 * '[0-9a-f]'}.*"
"""What a party keeps about the predictions of each model, next to its ledger (`releases.prediction_log`)."""

CAP_PURPOSE = "cap"
"""What a signature under a decision on a budget is for."""
FINISHED_HEADS = "heads.txt"
"""Which session has finished the head of each charge: the charge's run and the session, next to the ledger."""


def lasting_folder(dataset: str, ledger: str, pooled: bool, rank: int) -> Path | None:
    """The folder of a party's ledgers if they outlive a run."""
    if pooled and not ledger:
        return None
    return (Path(ledger) if ledger else Path(dataset).parent / "sccvfl-ledgers") / f"party-{rank}"


def fresh_beside_used(dataset: str, ledger: str, pooled: bool, rank: int) -> str:
    """A warning for people if the ledgers of these options are new and used ones of this party lie next to them.

    Budgets start at zero in a new folder, whatever was released about the same records before. Nothing can show
    whether the records are the same, so this is no error. "" if there is nothing to say.
    """
    chosen = lasting_folder(dataset, ledger, pooled, rank)
    if chosen is None or _is_used(chosen):
        return ""
    near = {Path(dataset).resolve().parent, chosen.resolve().parent.parent}
    ledgers = {path.parent for folder in near for path in folder.glob(f"*/party-{rank}/{SETS}")}
    others = sorted(str(path) for path in ledgers if _is_used(path) and not (path / "releases.jsonl").exists())
    if not others:
        return ""
    return f"the ledger in {chosen} is new, and {others[0]} has charges: in the new one every budget starts at zero"


def _is_used(folder: Path) -> bool:
    """Whether anything was charged in the ledgers of a folder."""
    return any((folder / SETS).glob("*"))


def ledger_folder(dataset: str, ledger: str, pooled: bool, session: Session, home: Path | None = None) -> Path:
    """The folder of this party's ledgers, their sets of records, and the key of these.

    There is one folder for all records of a consortium, whatever their description is called. The default lies
    next to the description. Public benchmark data have nothing to protect, so their ledger belongs to one run alone.
    `home` is the folder of that run if it differs from the session's.
    """
    lasting = lasting_folder(dataset, ledger, pooled, session.rank)
    if lasting is not None:
        folder = lasting.parent
        old = sorted(folder.glob(f"*/party-{session.rank}/{LEDGER}"))
        if old:
            raise ConfigError(
                f"{old[0].parent.parent.name} in {folder.name} is a ledger of version 1, one for each set of "
                "records; this version keeps one for all. Move it away, and subtract what it spent from the cap"
            )
        if warning := fresh_beside_used(dataset, ledger, pooled, session.rank):
            logging.getLogger("party").warning("%s", warning)
        return lasting
    run_path = home or session.folder
    if run_path is None:
        raise ConfigError("a run needs a folder for its ledger")
    return run_path


def open_budget(folder: Path, epsilon: float, delta: float, rows: int, file: str = LEDGER) -> tuple[Budget, Path]:
    """This party's ledger of this name, for releases about `rows` records, and its path.

    Decisions to raise its budget must be signed as they stand there (`check_raised`).
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        check_target(epsilon, delta, rows)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    budget = Budget.open(folder / file, epsilon, delta, rows)
    check_raised(budget)
    return budget, folder / file


def agree_on_run(session: Session, folder: Path) -> str:
    """Run by all parties together before anything is charged: a name for this run that no ledger here knows.

    folder: the folder of this party's ledgers. The name is drawn by all parties (`Session.agree_on_name`). Each then
    says whether a charge in its own ledgers carries it, and all stop together if one does: charges of a known name
    would look like those of the earlier run. A session that resumes a run agrees on a separate name. Three rounds.
    """
    name = session.agree_on_name()
    names = {
        str(entry["key"]).partition(" ")[0]
        for path in (folder / LEDGER, folder / EVALUATIONS)
        if path.is_file()
        for entry in read_ledger(path)[0]
        if entry["kind"] == "charge"
    }
    answers = session.tell_all("is the name of the run new", int(name not in names))
    if not all(answers):
        raise ProtocolError(
            f"the ledger of party {answers.index(0)} already has charges under this run's name; nothing was charged "
            "or released: start the run again"
        )
    return name


def session_that_finished_head(folder: Path, run: str) -> str:
    """The session that has finished the head under the charge of this run; "" if none has."""
    path = folder / FINISHED_HEADS
    return _session_of(path.read_text(encoding="utf-8"), run) if path.exists() else ""


def claim_private_head(folder: Path, run: str, session: str) -> None:
    """Record that this session finishes the head under the charge of this run, before anything follows from the head.

    One charge is for one head. The noise of a head that nothing follows from may be drawn again, so the record is
    written right before the first opening, and not when training starts. It lies next to the ledger and not in the
    run's folder: of a folder there may be copies, of any age. ProtocolError if another session has claimed it.
    """
    with open(folder / FINISHED_HEADS, "a+", encoding="utf-8", opener=private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        claimant = _session_of(file.read(), run)
        if claimant not in ("", session):
            raise ProtocolError(
                "another session has finished the head of this charge: go on with its folder, or train a new run, "
                "which is charged; nothing was opened"
            )
        if not claimant:
            file.write(f"{run} {session}\n")
            file.flush()
            os.fsync(file.fileno())


def _session_of(text: str, run: str) -> str:
    return next((line.split(" ")[1] for line in text.splitlines() if line.startswith(f"{run} ")), "")


def spent_in(ledger: Path, noise: NoiseKind, runs: Collection[str]) -> dict[str, Any]:
    """`spent_figures` of a ledger as it is now, for reading only."""
    account = read_account(ledger)
    return spent_figures(account, noise, runs, held_out=ledger.name == EVALUATIONS)


def spent_figures(
    account: Account, noise: NoiseKind, runs: Collection[str], *, held_out: bool = False
) -> dict[str, Any]:
    """The largest budget consumption of a record, in every reading, for a job's result.

    `runs`: the names under which this run has charged, one for each session of it. `releases` are its own; other runs
    may have charged the same ledger before, or at the same time. `parts`: what tables, heads and so on of that record
    would cost alone. `held_out`: whether it is the ledger of evaluations.
    """
    terms = account.terms
    split = by_part(account.dearest(), held_out=held_out)
    return {
        "epsilon_rdp": account.most(epsilon_of),
        "parts": {part: epsilon_of(events, terms.delta) for part, events in split.items()},
        "epsilon_added": account.most(epsilon_added),
        "epsilon_dealer": finite(account.most(epsilon_against_dealer)),
        "epsilon_batches_known": account.most(epsilon_with_batches_known),
        "delta": terms.delta,
        "cap": terms.epsilon,
        "noise": noise,
        "releases": sum(charge.key.partition(" ")[0] in runs for charge in account.charges),
        "releases_in_ledger": len(account.charges),
        "raised": [decision.reason for decision in account.raised],
    }


def keep_copy(ledger: Path, folder: Path) -> None:
    """Copy a ledger with its head and its sets into a run's own folder; the run's reports are made from this copy."""
    if ledger.parent == folder:
        return
    (folder / SETS).mkdir(exist_ok=True)
    for path in (ledger, ledger.with_name(ledger.name + ".head")):
        shutil.copy(path, folder / path.name)  # with its mode
    for line in ledger.read_text(encoding="utf-8").splitlines():
        event = json.loads(line).get("event")
        if event is not None:
            shutil.copy(ledger.parent / SETS / event["records"], folder / SETS)


def draft_decision(ledger: Path, after: float, reason: str, date: str) -> CapDecision:
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
        "signature": sign(credentials, CAP_PURPOSE, decision.message),
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
            raise ConfigError(
                f"the signature of {party} under the decision on the cap is not of its pinned certificate, which may "
                "have been renewed: let it sign again (raise-cap sign), or drop the cap file if all ledgers have the "
                "decision; the cap stays"
            )


def _signed(decision: CapDecision, party: str, pinned: str | None) -> bool:
    signature = decision.signed[party]
    pem = signature["certificate"].encode()
    try:
        expected = pinned is None or fingerprint(pem) == pinned
        return expected and is_signed(pem, CAP_PURPOSE, decision.message, signature["signature"])
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
