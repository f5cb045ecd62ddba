"""Small training runs in threads with transcripts and a wire-tap, sound or with a defence switched off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from secure_sccvfl.audit.finished_run import FinishedRun
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.session.tensors import current
from secure_sccvfl.runs.local.relay import Relay
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training import secure_steps
from tests.support import sessions

PARTIES = 3
SHORT = {"lambdas": [8.0], "warmup": 4, "steps": 6, "refreshes": 0, "checkpoints": False}


class OpeningJob(TrainJob):
    """A job that declares the gradient of every record's logit as a release."""

    def plan(self) -> ReleasePlan:
        leak = Release("gradients", tuple(range(PARTIES)), (ANY, ANY), "test: what must be caught", times=1000)
        return ReleasePlan([*super().plan().releases.values(), leak])


def open_gradients(patch: pytest.MonkeyPatch) -> None:
    """Every residual is opened to all parties."""
    sound = secure_steps.residual_of_private

    def opening(*arguments: Any) -> Any:
        residual, session = sound(*arguments), current()
        if "gradients" in session._plan.releases:
            session.open(residual.with_fraction(0), session.declared("gradients"))
        return residual

    patch.setattr(secure_steps, "residual_of_private", opening)


def no_masks(patch: pytest.MonkeyPatch) -> None:
    """Tuples as they should be, but all of zeros."""
    import numpy as np

    patch.setattr(tuples.Field, "expand", lambda self, draw, rank: np.zeros(self.shape, self.dtype))


def record(folder: Path, make: type[TrainJob] = TrainJob, **options: Any) -> FinishedRun:
    """Train shortly, with transcripts of all places and the bytes on the wire. options: unlike those of `SHORT`."""
    config, listeners = sessions.local_config(PARTIES, options={**SHORT, **options}, job="train")
    with Relay(config.parties, folder=folder / "network") as tap, pytest.MonkeyPatch.context() as patch:
        tapped = replace(config, parties=tap.addresses)
        patch.setattr(sessions, "local_config", lambda parties, **settings: (tapped, listeners))
        jobs = [make(tapped, rank) for rank in range(PARTIES)]
        sessions.run_session(
            lambda session: jobs[session.rank].run(session, lambda *step: None),
            PARTIES,
            jobs[0].plan(),
            folder=folder,
            transcripts=True,
        )
    (folder / "session.toml").write_text(tapped.to_toml())
    return FinishedRun.load(folder)
