"""A party that takes part in one secure aggregation: `aggregating.py stay|die [run_party arguments]`.

With `die` the process kills itself once the roster is known, as if its host had failed.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from secure_sccvfl.launch import run_party
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.protocols.steps.aggregation import aggregate
from secure_sccvfl.runs.selftest import SelfTest

TOTAL = Release("total", (0, 1, 2), (ANY,), "test")


def plan(self: SelfTest) -> ReleasePlan:
    return ReleasePlan([TOTAL])


def run(self: SelfTest, session: Session, progress: Any) -> dict[str, Any]:
    aggregated = aggregate(session, [1.0, 2.0], 5.0, TOTAL, present=session.rank != 1)
    return {"ok": True, "total": [] if aggregated.total is None else aggregated.total.tolist()}


def die(self: Session, *args: Any, **kwargs: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    SelfTest.plan, SelfTest.run = plan, run  # type: ignore[method-assign]
    if sys.argv[1] == "die":
        Session.open = die  # type: ignore[method-assign, assignment]
    sys.exit(run_party.main(sys.argv[2:]))
