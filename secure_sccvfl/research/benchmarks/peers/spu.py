"""SPU (ABY3 over Z/2^64, three parties that trust no dealer): the same step in its own processes.

Its step is less work than ours: no consistency, no TLS, and rank 0 shares all inputs. SPU needs another numpy than
this project, so it has a separate environment (`make peers`). Without one it is left out, and the reason is reported.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from protocols.errors import ProtocolError
from protocols.net.rendezvous import listen_anywhere
from secure_sccvfl.research.benchmarks.measuring import PARTIES, Row, finished
from secure_sccvfl.research.benchmarks.peers import spu_process
from secure_sccvfl.research.benchmarks.step import MOMENTUM, RATE, Size, inputs, plain_weight

PYTHON = Path(__file__).resolve().parents[4] / ".venv-peers" / "bin" / "python"
"""Where `make peers` puts it."""
PROFILE = re.compile(rb"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)")


def spu_python(given: Path | None) -> tuple[Path | None, str]:
    """The Python that has SPU, or nothing and the reason."""
    python = given or PYTHON
    if not python.exists():
        return None, f"SPU is left out: there is no {python} (`make peers` makes .venv-peers; or give --spu PYTHON)"
    asked = subprocess.run([python, "-c", "import spu; print(spu.__version__)"], capture_output=True, text=True)
    if asked.returncode:
        return None, f"SPU is left out: {python} cannot import it: {asked.stderr.strip().splitlines()[-1]}"
    return python, f"SPU {asked.stdout.strip()}"


def run_spu(python: Path, repeats: int, size: Size) -> list[Row]:
    """One row: the slowest party's seconds, and the mean of what parties send."""
    given = inputs(size)
    with tempfile.TemporaryDirectory(prefix="sccvfl-bench-") as folder:
        place, addresses = Path(folder), _free_addresses()
        np.savez(place / "inputs.npz", rows=given.rows, label=given.label, rate=RATE, momentum=MOMENTUM)
        common = ["--addresses", *addresses, "--given", str(place), "--repeats", str(repeats)]
        outs, log = [place / f"row-{rank}.json" for rank in range(PARTIES)], place / "said.log"
        commands = [
            [str(python), spu_process.__file__, "--rank", str(rank), *common, "--out", str(out)]
            for rank, out in enumerate(outs)
        ]
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        codes = finished(commands, own, log)
        if any(codes):
            raise ProtocolError(f"SPU failed, exit codes {codes}: {log.read_text(errors='replace')[-2000:]}")
        rows: list[Row] = [json.loads(out.read_text()) for out in outs]
        sent = [tuple(map(int, found)) for found in PROFILE.findall(log.read_bytes())]
    slowest = max(rows, key=lambda row: statistics.median(row["seconds"]))
    error = float(np.abs(np.array(slowest.pop("weight")) - plain_weight(given, repeats + 1, lam=0.0)).max())
    traffic = {"sent": statistics.mean(s for s, _ in sent), "rounds": max(n for _, n in sent)} if sent else {}
    memory = max(row["memory"] for row in rows)
    return [{"job": "sealed", **slowest, "memory": memory, "max_error": error, **traffic, "dealer": 0.0}]


def _free_addresses() -> tuple[str, ...]:
    """Ports that were free a moment ago: SPU opens them itself."""
    made = [listen_anywhere() for _ in range(PARTIES)]
    for listener, _ in made:
        listener.close()
    return tuple(address for _, address in made)
