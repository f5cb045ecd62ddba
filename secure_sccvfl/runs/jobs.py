"""What a session can run. A job declares its releases first, then runs on an open session.

All parties run the same job; `run` returns this party's result as plain data.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol

from secure_sccvfl.protocols.config import ConfigError, SessionConfig
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session

Progress = Callable[[str, int, int], None]
"""Called with the name of the step that begins, its number, and how many there are."""


JOBS = {
    "align": "runs.alignment:AlignJob",
    "bench-align": "research.benchmarks.preparation:AlignmentBenchmark",
    "bench-discovery": "research.benchmarks.preparation:DiscoveryBenchmark",
    "bench-ops": "research.benchmarks.steps:OperationsBenchmark",
    "bench-shards": "research.benchmarks.shards:ShardsBenchmark",
    "bench-step": "research.benchmarks.steps:StepBenchmark",
    "canary-audit": "audit.canaries:CanaryAudit",
    "discovery": "runs.discover:DiscoveryJob",
    "evaluate": "runs.evaluate:EvaluateJob",
    "predict": "runs.predict:PredictJob",
    "selftest": "runs.selftest:SelfTest",
    "serve": "runs.serve:ServeJob",
    "share-probe": "audit.share_probe:ShareProbe",
    "train": "runs.train:TrainJob",
}
"""Module and class of each job, below `secure_sccvfl`: only the one that a session names is imported."""

WITHOUT_DATA = "selftest"
"""The job that is about no records."""
SELFTEST_OPTIONS = ("seed", "size", "repeat")


class Job(Protocol):
    """Made from the session's configuration and the rank of the process that runs it."""

    def plan(self) -> ReleasePlan:
        """Every value that this job will open."""
        ...

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        """Do the work. `ok` in the result says whether it succeeded."""
        ...


def make_job(config: SessionConfig, rank: int) -> Job:
    """The job that a session file names, as the process at `rank` runs it."""
    job: Job = _kind(config.job)(config, rank)
    return job


def check_job(job: str) -> None:
    _kind(job)


def public_plan(config: SessionConfig) -> ReleasePlan:
    """What the job will open, from the session file and the description alone: no record and no model is read."""
    kind = _kind(config.job)
    if not hasattr(kind, "public_plan"):
        raise ConfigError(f"the job {config.job!r} is none that a consortium plans")
    plan: ReleasePlan = kind.public_plan(config)
    return plan


def job_config(config: SessionConfig, job: str) -> SessionConfig:
    """The session of one job, with the options that it knows."""
    if job != WITHOUT_DATA:
        return config.for_job(job)
    return replace(config.for_job(job), options={k: v for k, v in config.options.items() if k in SELFTEST_OPTIONS})


def agreed_plan(config: SessionConfig, job: Job) -> ReleasePlan:
    """What a job will open. If the session needs approval, nothing may go beyond what people saw beforehand."""
    plan = job.plan()
    if config.needs_approval:
        approved = public_plan(job_config(config, config.job)).releases
        for name, release in plan.releases.items():
            planned = approved.get(name)
            if planned is None or not planned.covers(release):
                raise ConfigError(f"{config.job} would open {name!r} otherwise than the approved plan says")
    return plan


def _kind(job: str) -> Any:
    if job not in JOBS:
        raise ConfigError(f"no such job: {job!r}; available: {', '.join(JOBS)}")
    module, _, name = JOBS[job].partition(":")
    return getattr(import_module(f"secure_sccvfl.{module}"), name)


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
            counts = Counter(self.operations.get(name, {})) + (Counter(self._session.operations) - called)
            self.operations[name] = dict(sorted(counts.items()))

    def _now(self) -> dict[str, int]:
        cost = self._session.total_cost
        return {"rounds": cost.rounds, "bytes": cost.sent, "dealer_bytes": cost.dealer}
