"""Discovery once more, for the review of a run's card: on new records, with the settings of that run, in secret.

It is the job `discovery` on this machine. What it releases about the new records is charged to the ledgers of the
run's consortium, under the same cap; records that have spent their budget are refused. Public benchmark data have
nothing to protect: there the ledger is in the session's own folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocols.config import ConfigError
from protocols.errors import ProtocolError
from protocols.records.chain import unused_name
from secure_sccvfl.data.catalogue import is_benchmark
from secure_sccvfl.policy.reviews import Found
from secure_sccvfl.reports.folders import RunFolder, result_of
from secure_sccvfl.runs.console import OK
from secure_sccvfl.runs.local.processes import run_job, session_config
from secure_sccvfl.runs.local.whole_run import natural_parties

REVIEWS = "reviews"
NOT_OURS = ("dataset", "card", "resume", "source")
"""Options of a training that a discovery does not take over."""


def discover_again(run: Path, dataset: str, number: str) -> tuple[Found, list[Path]]:
    """Run discovery on a data set for review `number` of a run; returns what it found and the files that it made."""
    folder, beside = run / REVIEWS / number, unused_name(run.parent / f"{run.name}-review")
    parties, settings = _settings(run, dataset)
    ending = run_job(session_config(beside, "discovery", parties, settings), beside)
    if ending.code != OK:  # a session that was refused or stopped is no part of the run
        raise ProtocolError(f"{ending.cause} (logs are in {beside / 'logs'})")
    folder.parent.mkdir(exist_ok=True)
    beside.rename(folder)
    found = Found.of(result_of(folder, 0), f"{REVIEWS}/{number}")
    return found, sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock")


def _settings(run: Path, dataset: str) -> tuple[int, dict[str, Any]]:
    """Number of parties and options of the session: those of the run, on another data set, with the same ledgers."""
    folder = RunFolder.of(run)
    folder.must_hold_all("run the job discovery at every host, then review with --discovery")
    known = folder.session()
    settings = {k: v for k, v in known.options.items() if k not in NOT_OURS} | {"dataset": dataset}
    before = str(known.options["dataset"])
    if not is_benchmark(before) and "ledger" not in settings:
        settings["ledger"] = str(Path(before).parent / "sccvfl-ledgers")
    return len(known.parties) if is_benchmark(dataset) else natural_parties(dataset), settings


def discovered(folder: Path) -> Found:
    """What a discovery session in a folder found: on this machine, or at this party of a session by hand."""
    for place in (folder / "result.json", folder / "party-0" / "result.json"):
        if place.exists():
            try:
                return Found.of(json.loads(place.read_text(encoding="utf-8")), str(folder))
            except ValueError:
                break
    raise ConfigError(f"{folder} is not the folder of a finished discovery session")
