"""`bench.py serve`: single decisions in a row at the endpoint of an open session, for one client.

A model of German is trained once. Then each session serves other people, at every round trip: decisions alone, and
with all that an answer may have. Seconds are those of the client, from the request to the reply. The control is one
`predict` of the same people at the same round trip: they are on record, and the work is that for new people.
"""

from __future__ import annotations

import json
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.accounting.tables import Column, Table
from secure_sccvfl.audit.finished_run import write_records
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.research.benchmarks.measuring import PARTIES, Result, Row, Tell, run_session
from secure_sccvfl.runs.endpoint import ENDPOINT
from secure_sccvfl.runs.local.processes import LocalSession, session_config

ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "decisions": {},
    "decisions, certificates, other groups, reasons": {"what_if": True, "reasons": True},
}
ROUND_TRIPS_MS = (0, 20)
PATIENCE = 120.0
"""Seconds until a session has started."""


class Client:
    """Asks the endpoint of a session, whose folder at the receiver this is."""

    def __init__(self, folder: Path) -> None:
        path, end = folder / ENDPOINT, time.monotonic() + PATIENCE
        while not path.exists() or not path.read_text():
            if time.monotonic() > end:
                raise ProtocolError(f"no {ENDPOINT} in {folder}: the session did not start")
            time.sleep(0.01)
        self._endpoint = json.loads(path.read_text())

    def post(self, path: str, **content: str) -> dict[str, Any]:
        """The reply; a refusal raises."""
        headers = {"Authorization": f"Bearer {self._endpoint['token']}"}
        request = urllib.request.Request(self._endpoint["url"] + path, json.dumps(content).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return dict(json.load(reply))


def served(folder: Path, options: Row, people: list[str], delay: float) -> Row:
    """One session that decides these people in a row."""
    config = session_config(folder, "serve", PARTIES, {**options, "port": 0}, deadline=PATIENCE)
    with LocalSession(config, folder, delay=delay) as session:
        client, seconds = Client(folder / "party-0"), list[float]()
        for person in people:
            start = time.perf_counter()
            answer = client.post("/decision", id=person)["answer"]
            seconds.append(time.perf_counter() - start)
            if answer["id"] != person:
                raise ProtocolError("an answer is about another person")
        client.post("/stop")
        session.wait().check()
    result = json.loads((folder / "party-0" / "result.json").read_text())
    cost = result["cost"]["prediction"]
    return {
        "people": len(people),
        "median": float(np.median(seconds)),
        "p95": float(np.quantile(seconds, 0.95)),
        "largest": max(seconds),
        "per_second": len(people) / sum(seconds),
        "rounds": cost["rounds"] / len(people),
        "bytes": cost["bytes"] / len(people),
        "dealer_bytes": cost["dealer_bytes"] / len(people),
    }


def measure_serving(people: int, tell: Tell) -> Result:
    data, rows = pooled("german", PARTIES), list[Row]()
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as place:
        home = Path(place)
        given = {"dataset": "german", "model": str(home / "run"), "records": str(home / "new.csv")}
        run_session(home / "run", "train", {"dataset": "german", "seed": 0})
        sessions = [(delay, what) for delay in ROUND_TRIPS_MS for what in ANSWERS]
        for number, (delay, what) in enumerate(sessions):
            tell(f"{what}, {delay} ms round trip")
            chosen = np.arange(number * people, (number + 1) * people)
            write_records(data, chosen, home / "new.csv")
            options = {**given, **ANSWERS[what]}
            row = served(home / f"serve-{number}", options, data.ids[chosen].tolist(), delay / 2000)
            start = time.perf_counter()
            run_session(home / f"predict-{number}", "predict", options, PARTIES, delay / 2000)
            row |= {"together": time.perf_counter() - start}
            rows.append({"answers": what, "round_trip_ms": delay, **row})
    return Result({"rows": rows}, [ABOUT, Table.of(rows, COLUMNS)])


ABOUT = (
    "Single decisions about people of German in a row, by `serve` with three parties and a dealer, for a client at\n"
    "the receiver's endpoint. Rounds and bytes are those of party 0 for one person, with the start of the session\n"
    "and its idle turns. `together`: seconds of one `predict` of all these people, with the start of processes."
)
COLUMNS = (
    *(Column("answers"), Column("round trip ms", "round_trip_ms"), Column("people")),
    *(Column("median s", "median", ".3f"), Column("95 % s", "p95", ".3f"), Column("largest s", "largest", ".3f")),
    *(Column("per second", "per_second", ".2f"), Column("rounds", form=".1f")),
    *(Column("kB to peers", "bytes", ".1f", 1e3), Column("kB dealer", "dealer_bytes", ".1f", 1e3)),
    Column("together s", "together", ".1f"),
)
