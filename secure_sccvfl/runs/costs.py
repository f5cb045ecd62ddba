"""What each phase of a run took at this party: seconds, rounds and bytes; and which CrypTen operators it called."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from protocols.session.runtime import Session


class PhaseMeter:
    """Adds up costs by phase; a phase may be entered again."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.costs: dict[str, dict[str, float]] = {}
        self.operations: dict[str, dict[str, int]] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, before, called = time.perf_counter(), self._now(), Counter(self._session.operations)
        try:
            yield
        finally:
            cost = self.costs.setdefault(name, {"seconds": 0.0, "rounds": 0, "bytes": 0, "dealer_bytes": 0})
            cost["seconds"] += time.perf_counter() - start
            for key, value in self._now().items():
                cost[key] += value - before[key]
            known = Counter(self.operations.get(name, {})) + (Counter(self._session.operations) - called)
            self.operations[name] = dict(sorted(known.items()))

    def _now(self) -> dict[str, int]:
        cost = self._session.total_cost
        return {"rounds": cost.rounds, "bytes": cost.sent, "dealer_bytes": cost.dealer}
