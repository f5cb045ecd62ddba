"""A bank (label) and a clinic (s) with own data: training and predictions over real sessions, parties as threads.

The label follows from `amount` of the bank and `edu` and `hours` of the clinic; `hours` follows from s.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.records.chain import read_chain
from tests.support.sessions import run_session

ADDRESSES = ("127.0.0.1:7000", "127.0.0.1:7001")
BANK, CLINIC = ("amount", "age"), ("s", "hours", "edu")
DESCRIPTION = """name = "two"
task = "binary"
id = "id"
label = { party = "bank", column = "y", classes = ["0", "1"] }
protected = [ { party = "clinic", column = "s", groups = ["0", "1"] } ]
[parties.bank]
file = "bank.csv"
features = [
  { name = "amount", kind = "number", low = 0, high = 1 },
  { name = "age", kind = "number", low = 0, high = 1 },
]
[parties.clinic]
file = "clinic.csv"
features = [
  { name = "hours", kind = "number", low = 0, high = 1 },
  { name = "edu", kind = "category", categories = ["a", "b", "c"] },
]
"""
CARD = """dataset = "two"
version = "1"
owners = ["board"]
[decisions]
hours = { role = "M", reason = "fixed", evidence = "a test" }
edu = { role = "N", reason = "fixed", evidence = "a test" }
amount = { role = "N", reason = "fixed", evidence = "a test" }
age = { role = "N", reason = "fixed", evidence = "a test" }
"""
AWARE = """
[aware]
purpose = "a test"
legal_basis = "a test"
owner = "policy board"
review_due = "2999-01-31"
"""
OPTIONS = {"align": "exact", "refreshes": 0, "warmup": 4, "steps": 10, "lambdas": [3.0], "take_lambda": 3.0}
People = dict[str, np.ndarray]


def people(count: int, seed: int = 0, prefix: str = "p") -> People:
    """Random people; their ids begin with the prefix."""
    rng = np.random.default_rng(seed)
    s = rng.integers(0, 2, count)
    hours = np.clip(0.35 + 0.3 * s + 0.15 * rng.normal(size=count), 0, 1).round(6)
    edu, amount, age = np.array(list("abc"))[rng.integers(0, 3, count)], rng.random(count), rng.random(count)
    score = 3 * (amount - 0.5) + 2.5 * (hours - 0.5) + 0.8 * (edu == "a") - 0.4 + rng.logistic(size=count) * 0.5
    ids = np.array([f"{prefix}{number}" for number in range(count)])
    columns = {"id": ids, "y": (score > 0).astype(int), "s": s, "hours": hours, "edu": edu}
    return {**columns, "amount": amount.round(6), "age": age.round(6)}


def write(path: Path, rows: Mapping[str, np.ndarray], columns: Sequence[str]) -> Path:
    """A CSV file with the ids and these columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", *columns])
        writer.writerows(zip(rows["id"], *(rows[name] for name in columns), strict=True))
    return path


def write_data(home: Path, rows: People, description: str = DESCRIPTION, card: str = CARD) -> Path:
    """The files of a consortium; returns its description."""
    home.mkdir(parents=True, exist_ok=True)
    write(home / "bank.csv", rows, ("y", *BANK))
    write(home / "clinic.csv", rows, CLINIC)
    (home / "card.toml").write_text(card)
    path = home / "own.toml"
    path.write_text(description)
    return path


def write_two(home: Path, rows: People, card: str = CARD) -> dict[str, Any]:
    """The same; returns options that a training and its predictions have in common."""
    return {"dataset": str(write_data(home, rows, card=card)), "card": str(home / "card.toml")}


def run_two(
    kind: Any,
    folder: Path,
    options: Mapping[str, Any],
    each: Sequence[Mapping[str, Any]] = ({}, {}),
    **settings: Any,
) -> list[dict[str, Any]]:
    """A job at both parties. each: options of one party alone. settings: of the session file."""
    configs = [
        SessionConfig(parties=ADDRESSES, options={**options, **party_options}, **settings) for party_options in each
    ]
    jobs = [kind(config, rank) for rank, config in enumerate(configs)]
    folder.mkdir(parents=True, exist_ok=True)
    plan = jobs[0].plan()
    settings = {"options": {"security": options["security"]}} if "security" in options else {}
    if configs[0].active:  # as runs/process.py does
        settings["mac_keys"] = [job.mac_key(folder / f"party-{rank}") for rank, job in enumerate(jobs)]
    work = lambda session: jobs[session.rank].run(session, lambda *_: None)  # noqa: E731
    return run_session(work, 2, plan, folder=folder, **settings)


def opened(folder: Path) -> list[str]:
    """What a session has opened."""
    log = folder / "party-0" / "releases.jsonl"
    return [entry["release"] for entry in read_chain(log)] if log.exists() else []


def table(path: Path) -> dict[str, dict[str, str]]:
    """The lines of a CSV file, by id."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def ledger_lines(home: Path, rank: int, name: str = "ledger.jsonl") -> list[dict[str, Any]]:
    """The lines of a party's ledger, or of another file beside it."""
    path = home / "sccvfl-ledgers" / f"party-{rank}" / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def error_text(error: BaseException) -> str:
    """What all parties say when a session stops."""
    return "; ".join(map(str, getattr(error, "exceptions", [error])))
