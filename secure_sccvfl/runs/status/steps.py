"""Which step a job has reached, and how long the rest of it takes.

A job reports each step with its number and how many there are (`begins`). Steps that are counted together are a
stage. The time left is an estimate for the current stage alone, from the pace of its steps so far: stages differ too
much in their steps to tell one from another. What comes after it is named instead (`stages_of`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_SEALED = ("discovery and warm-up", "late refresh", "training")
_STAGES = {
    "sealed": ("alignment", *_SEALED),
    "aware": ("alignment", *_SEALED),
    "dp": ("alignment", "dp encoders", *_SEALED),
}


def stages_of(job: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """The stages of a job in order, as far as its settings tell; empty if they do not."""
    stages = _STAGES.get(str(options.get("mode", "sealed")), ()) if job == "train" else ()
    return stages if options.get("late_refreshes", 1) else tuple(stage for stage in stages if stage != "late refresh")


@dataclass(frozen=True)
class At:
    """Where a job is. `left`: seconds to the end of the stage, None while its pace is unknown. `then`: the next."""

    step: str
    number: int
    total: int
    seconds: float
    left: float | None
    then: tuple[str, ...]


class Steps:
    """The steps of one job."""

    def __init__(self, stages: Sequence[str] = ()) -> None:
        self._stages = tuple(stages)
        self._step, self._number, self._total = "", 0, 0
        self._first, self._began, self._reached = 0, time.monotonic(), time.monotonic()

    def begins(self, step: str, number: int, total: int, now: float | None = None) -> None:
        """A step begins: its name, its number from 0, and how many there are."""
        now = time.monotonic() if now is None else now
        if total != self._total or number <= self._number:
            self._first, self._began = number, now
        self._step, self._number, self._total, self._reached = step, number, total, now

    def at(self, now: float | None = None) -> At | None:
        """Where the job is, or None before its first step."""
        if not self._total:
            return None
        now = time.monotonic() if now is None else now
        done = self._number - self._first
        left: float | None = None
        if done > 0:
            pace = (self._reached - self._began) / done
            left = pace * (self._total - self._number) - (now - self._reached)
            left = left if left > 0 else None  # this step takes longer than those before it
        return At(self._step, self._number, self._total, now - self._began, left, self._then())

    def _then(self) -> tuple[str, ...]:
        here = [k for k, name in enumerate(self._stages) if self._step.startswith(name)]
        return self._stages[here[0] + 1 :] if here else ()
