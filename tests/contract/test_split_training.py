"""Split training end to end on German: six rounds a step, what is opened and to whom, and what it gives away."""

import threading

import numpy as np
import pytest

from secure_sccvfl.audit.attacks.labels import labels_from_split, passes_of
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.research.split.mode import SplitConfig, SplitTrainer, split_releases
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.training.modes.base import Seen
from secure_sccvfl.training.secure import SecureEngine
from secure_sccvfl.training.trainer import Hooks, Problem
from tests.support.gradient_modes import (
    EVERYONE,
    GROUP_HOLDERS,
    LABEL_HOLDER,
    PARTIES,
    generators_of,
    german,
    parts,
    predictions,
)
from tests.support.sessions import LONG, run_session


def run_split(config, folder=None, stop=None, resume=False):
    """With a folder checkpoints are kept; `stop`: how many checkpoints are kept before a fault."""
    ready, together = german(), threading.Barrier(PARTIES)

    def job(session):
        engine = SecureEngine(session, LABEL_HOLDER, GROUP_HOLDERS)
        train, validation, test = parts(ready, session.rank)
        kept = None if folder is None else Checkpoints(folder / str(session.rank), "ab" * 32)
        state = kept.resume(session, "binary") if kept is not None and resume else None

        def keep(state):
            if kept is not None:
                kept.keep(state)
                if kept.number == stop:
                    together.wait(LONG)
                    raise Fault

        model = SplitTrainer(
            engine,
            Problem("binary", 1, train, validation),
            ready.roles,
            generators_of(ready, session.rank),
            config,
            0,
            Hooks(keep=keep),
            state,
        ).run()
        encoder = model.encoder
        logits = model.engine.logits(model.head, {session.rank: encoder(test.parties[0].inputs)})
        return model, logits, session.costs["split step"], session.released

    plan = ReleasePlan([predictions(), *split_releases(PARTIES, config)])
    return run_session(job, PARTIES, plan)


@pytest.mark.parametrize("batch", [None, 150])
def test_split_trains_and_gives_the_labels_away(batch):
    ready = german()
    config = SplitConfig(hidden=8, warmup=10, steps=20, encoder_rate=0.01, batch=batch)
    label = ready.data.label.values
    results = run_split(config)
    for rank, (model, logits, cost, released) in enumerate(results):
        assert cost.rounds == 6 * model.steps
        counts = {name: sum(entry["release"] == name for entry in released) for name in ("gradient 0", "gradient 2")}
        assert set(counts.values()) == {model.steps}
        assert all(
            entry["receivers"] == [int(entry["release"][-1])]
            for entry in released
            if entry["release"].startswith("gradient")
        )
        # Every record once, and every label of them.
        assert len(model.seen) == model.steps
        rows = np.concatenate([seen.rows for seen in passes_of(model.seen)[0]])
        assert len(np.unique(rows)) == len(rows) >= len(ready.split.train) - (batch or 1)
        rate = labels_from_split(model.seen, label[ready.split.train])
        assert rate.low > 0.99 > rate.chance, (rank, rate)
        right = ((logits[:, 0] > 0) == label[ready.split.test]).mean()
        assert right > 0.65
        assert np.array_equal(logits, results[0][1])


class Fault(Exception):
    pass


@pytest.mark.parametrize("stop", [1, 3])
def test_a_stopped_run_continues_as_if_undisturbed(stop, tmp_path):
    """Stopped after the warm-up, or after twenty more steps: the same steps, decisions and labels read."""
    config = SplitConfig(hidden=8, warmup=10, steps=40, encoder_rate=0.002, head_rate=0.02, batch=200)
    with pytest.raises(ExceptionGroup):
        run_split(config, tmp_path, stop)
    undisturbed, resumed = run_split(config), run_split(config, tmp_path, resume=True)
    for (before, expected, *_), (after, logits, cost, released) in zip(undisturbed, resumed, strict=True):
        assert after.steps == before.steps == config.warmup + config.steps, "a fixed number"
        steps_left = after.steps - config.warmup - (stop - 1) * config.keep_every
        assert cost.rounds == 6 * steps_left, "only the steps that were left"
        assert sum(entry["release"] == "gradient 0" for entry in released) == steps_left
        assert np.abs(logits - expected).max() < 0.02, "undisturbed runs differ by .005"
        assert ((logits > 0) == (expected > 0)).mean() >= 0.99
        assert len(after.seen) == len(before.seen) == after.steps, "also those before the fault"
        for one, other in zip(after.seen, before.seen, strict=True):
            assert np.array_equal(one.rows, other.rows)
            assert np.abs(one.signal @ one.direction - other.signal @ other.direction).max() < 0.02


def test_the_attack_finds_nothing_in_gradients_without_labels():
    """The check can fail: signals that do not depend on the label stay at the majority rate."""
    ready = german()
    label = ready.data.label.values[ready.split.train]
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(len(label), 1)) * rng.normal(size=(1, 8))
    rate = labels_from_split([Seen.of(np.arange(len(label)), noise, 1)], label)
    assert rate.low < rate.chance


def test_logits_out_of_range_stop_the_run():
    config = SplitConfig(hidden=4, warmup=5, steps=10, head_rate=60.0, encoder_rate=0.5)
    with pytest.raises(ExceptionGroup) as caught:
        run_split(config)
    assert caught.group_contains(ProtocolError, match="range of the sigmoid")


def test_everyone_is_declared():
    releases = {release.name: release for release in split_releases(PARTIES, SplitConfig(warmup=3, steps=4))}
    assert [releases[f"gradient {rank}"].receivers for rank in EVERYONE] == [(0,), (1,), (2,)]
    assert all(releases[f"gradient {rank}"].times == 7 for rank in EVERYONE)
    assert (releases["range check"].shape, releases["range check"].times) == ((1,), 3)
    with pytest.raises(ValueError, match="rates"):
        SplitConfig(head_rate=0)
