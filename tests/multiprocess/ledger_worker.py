"""Starts spenders of one budget, real processes forked from this small one, and says how each ended.

Reads one JSON line per round: {"folder", "spenders": [{"name", "multipliers", "kill_at", "kill_after",
"unlocked", "release_first"}]}. All spenders of a round run at once. Each charges, and after each charge makes
its release: one line in FOLDER/released. kill_at: SIGKILL itself just before this many-th system call on
files. kill_after: killed from outside after this many milliseconds. unlocked and release_first break the
protocol on purpose.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget, BudgetError
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.records import RecordSet

CAP, DELTA, RECORDS = 8.0, 1e-5, RecordSet(np.arange(5, dtype=np.uint64))
epsilon_of([Event("warm", 1.0, 1.0, RECORDS.digest)], DELTA)  # its slow imports happen here once, not in every fork


def die_before(step: int) -> None:
    """SIGKILL this process just before its step-th call that opens, syncs, renames or locks a file."""
    counter = itertools.count()
    for module, name in ((os, "open"), (os, "fsync"), (os, "replace"), (os, "close"), (fcntl, "flock")):
        real = getattr(module, name)

        def counted(*arguments: Any, real: Any = real, **options: Any) -> Any:
            if next(counter) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(module, name, counted)


def release(folder: Path, key: str) -> None:
    handle = os.open(folder / "released", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{key}\n".encode())
    os.fsync(handle)
    os.close(handle)


def spend(folder: Path, order: dict[str, Any]) -> None:
    if order.get("unlocked"):
        fcntl.flock = lambda *_: time.sleep(0.01)  # type: ignore[assignment]
    if order.get("kill_at") is not None:
        die_before(order["kill_at"])
    budget = Budget.open(folder / "ledger.jsonl", CAP, DELTA)
    for number, multiplier in enumerate(order["multipliers"]):
        key = f"{order['name']}/{number}"
        if order.get("release_first"):
            release(folder, key)
        try:
            budget.charge(Event("sketch", 1.0, multiplier, RECORDS.digest), key, RECORDS)
        except BudgetError:
            continue
        if not order.get("release_first"):
            release(folder, key)


def fork(folder: Path, order: dict[str, Any]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            spend(folder, order)
            code = 0
        finally:
            os._exit(code)
    return child


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        folder, spenders = Path(request["folder"]), request["spenders"]
        children = [fork(folder, order) for order in spenders]
        started = time.monotonic()
        for child, order in sorted(
            zip(children, spenders, strict=True), key=lambda pair: pair[1].get("kill_after") or 0
        ):
            if order.get("kill_after") is not None:
                time.sleep(max(0.0, order["kill_after"] / 1000 - (time.monotonic() - started)))
                os.kill(child, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main()
