"""What a session can run. A job declares its releases first, then runs on an open session.

All parties run the same job; `run` returns this party's result as plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

from protocols.config import ConfigError, SessionConfig
from protocols.records.releases import ReleasePlan
from protocols.session.runtime import Session

Progress = Callable[[str, int, int], None]
"""Called with the name of the step that begins, its number, and how many there are."""


class Job(Protocol):
    def plan(self) -> ReleasePlan:
        """Every value that this job will open."""
        ...

    def run(self, session: Session, progress: Progress) -> dict[str, Any]:
        """Do the work. `ok` in the result says whether it succeeded."""
        ...


def make_job(config: SessionConfig, rank: int) -> Job:
    """The job that a session file names, as the process at `rank` runs it; it alone is imported."""
    makers: dict[str, Callable[[], Job]] = {
        "bench-discovery": lambda: _job("benchmarks.discovery", "DiscoveryBenchmark")(config),
        "bench-ops": lambda: _job("benchmarks.operations", "OperationsBenchmark")(config),
        "bench-step": lambda: _job("benchmarks.step", "StepBenchmark")(config),
        "canary-audit": lambda: _job("security.dp_audit", "CanaryAudit")(config, rank),
        "discovery": lambda: _job("run.discover", "DiscoveryJob")(config, rank),
        "evaluate": lambda: _job("run.score", "EvaluateJob")(config, rank),
        "predict": lambda: _job("run.score", "PredictJob")(config, rank),
        "selftest": lambda: _job("run.selftest", "SelfTest")(config),
        "share-probe": lambda: _job("security.share_probe", "ShareProbe")(config),
        "train": lambda: _job("run.train", "TrainJob")(config, rank),
    }
    if config.job not in makers:
        raise ConfigError(f"no such job: {config.job!r}; there is {', '.join(sorted(makers))}")
    return makers[config.job]()


def _job(module: str, name: str) -> Callable[..., Job]:
    found: Callable[..., Job] = getattr(import_module(f"secure_sccvfl.{module}"), name)
    return found
