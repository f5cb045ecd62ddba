"""Where a party's ledgers lie, and opening one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from accounting.account import Account, read_account
from accounting.accountant import (
    epsilon_added,
    epsilon_against_dealer,
    epsilon_of,
    epsilon_with_batches_known,
    finite,
)
from accounting.budget import Budget
from accounting.calibration import check_target
from accounting.ledger import SETS, FileSets, read_ledger
from protocols.config import ConfigError
from protocols.operations.noise import NoiseKind
from protocols.session.runtime import Session
from secure_sccvfl.privacy.caps import check_raised

LEDGER = "ledger.jsonl"
EVALUATIONS = "evaluation.jsonl"
"""The ledger of what was told about held-out records, beside that of training."""


def lasting_folder(dataset: str, ledger: str, pooled: bool, rank: int) -> Path | None:
    """The folder of a party's ledgers if they outlive a run."""
    if pooled and not ledger:
        return None
    return (Path(ledger) if ledger else Path(dataset).parent / "sccvfl-ledgers") / f"party-{rank}"


def ledger_folder(dataset: str, ledger: str, pooled: bool, session: Session, home: Path | None = None) -> Path:
    """The folder of this party's ledgers, their sets of records, and the key of these.

    There is one folder for all records of a consortium, whatever their description is called. The default lies
    beside the description. Public benchmark data have nothing to protect, so their ledger belongs to one run alone.
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
        return lasting
    own = home or session.folder
    if own is None:
        raise ConfigError("a run needs a folder for its ledger")
    return own


def open_budget(place: Path, epsilon: float, delta: float, rows: int, file: str = LEDGER) -> tuple[Budget, Path]:
    """This party's ledger of this name, for releases about `rows` records, and its path.

    Decisions to raise its cap must be signed as they stand there (`caps.py`).
    """
    place.mkdir(parents=True, exist_ok=True)
    try:
        check_target(epsilon, delta, rows)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    budget = Budget.open(place / file, epsilon, delta, rows)
    check_raised(budget)
    return budget, place / file


def spent_in(ledger: Path, noise: NoiseKind, runs: Collection[str]) -> dict[str, Any]:
    """`spent_figures` of a ledger as it is now, for reading only."""
    return spent_figures(read_account(read_ledger(ledger)[0], FileSets.beside(ledger)), noise, runs)


def spent_figures(account: Account, noise: NoiseKind, runs: Collection[str]) -> dict[str, Any]:
    """What the record that has spent most has spent, in every reading, for a job's result.

    `runs`: the names under which this run has charged, one for each session of it. `releases` are its own; other runs
    may have charged the same ledger before, or at the same time.
    """
    terms = account.terms
    return {
        "epsilon_rdp": account.most(epsilon_of),
        "epsilon_added": account.most(epsilon_added),
        "epsilon_dealer": finite(account.most(epsilon_against_dealer)),
        "epsilon_batches_known": account.most(epsilon_with_batches_known),
        "delta": terms.delta,
        "cap": terms.epsilon,
        "noise": noise,
        "releases": sum(charge.key.partition(" ")[0] in runs for charge in account.charges),
        "releases_in_ledger": len(account.charges),
        "raised": [raised.decision.reason for raised in account.raised],
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
