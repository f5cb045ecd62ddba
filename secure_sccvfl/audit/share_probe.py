"""A share-distinguishing game through the real protocol.

Each party in turn is the owner, many times over. The owner shares one of two chosen secrets, far apart. The parties
put it under a mask, open that, and square it. All others together write down what they hold for it: shares, their
shares of the tuple, what was opened, shares of the square. An adversary that knows the secret of half of the
repetitions must not guess it for the other half better than a coin.

The job writes shares to disk. The secrets are constants of the game, so they give nothing away.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.audit.finished_run import Seen, as_columns
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.protocols.config import SessionConfig
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.session.saving import views_of_a_square
from secure_sccvfl.runs.jobs import Progress

SECRETS = (0.0, 11.9)
REPETITIONS = 2000
FILE = "probe.npz"


def drawn(repetitions: int, owner: int) -> np.ndarray:
    """Which of the two secrets each repetition has; the owner and the referee of the game know it."""
    return stream(owner, "share probe").integers(0, 2, repetitions)


def held(session: Session, owner: int, repetitions: int) -> dict[str, np.ndarray]:
    """One party's part: what it holds about all repetitions, by name."""
    values = np.array(SECRETS)[drawn(repetitions, owner)] if session.rank == owner else None
    return views_of_a_square(session, values, owner, repetitions)


def columns(parts: list[dict[str, np.ndarray]]) -> np.ndarray:
    """What a coalition holds of each repetition: every part, their sums, and the opening without its own masks."""
    seen = [
        Seen((str(rank), name), words[:, None]) for rank, part in enumerate(parts) for name, words in part.items()
    ]
    sums = {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}
    seen += [Seen(("sum", name), words[:, None]) for name, words in sums.items() if name != "opened"]
    rest = parts[0]["opened"] + sums["mask"]
    seen += [Seen(("rest",), rest[:, None]), Seen(("rest and shares",), (rest - sums["share"])[:, None])]
    return as_columns(seen, np.arange(len(rest)))


class ShareProbe:
    """Job "share-probe"."""

    def __init__(self, config: SessionConfig, rank: int) -> None:
        self.repetitions = int(config.options.get("repetitions", REPETITIONS))

    def plan(self) -> ReleasePlan:
        return ReleasePlan([])

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        arrays: dict[str, Any] = {}
        for owner in range(session.parties):
            progress("share probe", owner, session.parties)
            part = held(session, owner, self.repetitions)
            if session.rank != owner:
                arrays |= {f"{owner} {name}": words for name, words in part.items()}
        if session.folder is not None:
            np.savez(session.folder / FILE, **arrays)
            (session.folder / FILE).chmod(0o600)
        return {"ok": True, "repetitions": self.repetitions}


def read_probe(folder: Path, owner: int, members: list[int]) -> list[dict[str, np.ndarray]]:
    """What these parties hold of the game with this owner, from the folder of the session."""
    parts = []
    for rank in members:
        with np.load(folder / f"party-{rank}" / FILE) as file:
            here = f"{owner} "
            parts.append({name.removeprefix(here): file[name] for name in file.files if name.startswith(here)})
    return parts
