"""What a session can run. A job declares its releases first, then runs on an open session.

All parties run the same job; `run` returns this party's result as plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from protocols.config import ConfigError, SessionConfig
from protocols.releases import ReleasePlan
from protocols.runtime import Session

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
    """The job that a session file names, as the process at `rank` runs it."""
    from secure_sccvfl.bench_step import StepBenchmark
    from secure_sccvfl.benchmark import OperationsBenchmark
    from secure_sccvfl.discovery_job import DiscoveryJob
    from secure_sccvfl.score_jobs import EvaluateJob, PredictJob
    from secure_sccvfl.selftest import SelfTest
    from secure_sccvfl.train_job import TrainJob

    makers: dict[str, Callable[[], Job]] = {
        "bench-ops": lambda: OperationsBenchmark(config),
        "bench-step": lambda: StepBenchmark(config),
        "discovery": lambda: DiscoveryJob(config),
        "evaluate": lambda: EvaluateJob(config, rank),
        "predict": lambda: PredictJob(config, rank),
        "selftest": lambda: SelfTest(config),
        "train": lambda: TrainJob(config, rank),
    }
    if config.job not in makers:
        raise ConfigError(f"no such job: {config.job!r}; there is {', '.join(sorted(makers))}")
    return makers[config.job]()
