"""Opened gradients in the security evaluation: what is kept of them, and the verdict on s that follows from it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from secure_sccvfl.audit import inference
from secure_sccvfl.audit.attacks import labels
from secure_sccvfl.audit.attacks.labels import aligned, kept_of_split, passes_of, signals_of
from secure_sccvfl.audit.bounds import audit
from secure_sccvfl.audit.evaluation import ERROR, NOT_KEPT, Row, ViewAttacks
from secure_sccvfl.audit.finished_run import MOST_WORDS, FinishedRun, as_columns
from secure_sccvfl.audit.finished_run import Seen as Words
from secure_sccvfl.audit.inference import Inference
from secure_sccvfl.audit.report import assemble, markdown
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.party_data import pooled
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.records.transcript import Transcript
from secure_sccvfl.reports.sections import NOT_AUDITED, attack_story
from secure_sccvfl.research.split.mode import split_config
from secure_sccvfl.training.modes.base import Seen, keep_gradients
from secure_sccvfl.training.modes.options import RunOptions

WARMUP, STEPS, PARTY, WIDTH = 4, 12, 2, 8
ATTACKED = 500
"""Boosted trees take seconds to bin a column that has more than 255 values in a half."""
FAMILY = 13
"""Views with a verdict in an evaluation of three parties: each is held to its part of the error."""


@pytest.fixture(autouse=True)
def few_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attackers choose columns by two folds."""
    monkeypatch.setattr(inference, "FOLDS", 2)


def german_run(folder: Path) -> FinishedRun:
    data, options = pooled("german", 3), RunOptions.of({"dataset": "german", "mode": "split"})
    return FinishedRun(
        folder, options, data, make_split(data, options.data.split, options.data.seed), make_parties(data)
    )


def shown(groups: np.ndarray) -> tuple[Seen, ...]:
    """Gradients of split learning: residuals that drift, and with consistency a shift by the edit of the own group.

    Residuals are far larger than shifts, so that no single step tells s.
    """
    rng, views = np.random.default_rng(0), []
    residual, drift = rng.normal(size=(2, len(groups)))
    for number in range(STEPS):
        moved = 0.15 * (groups - 0.5) * (number >= WARMUP) + rng.normal(0, 0.05, len(groups))
        signal = residual + 0.01 * number * drift - moved
        views.append(Seen.of(np.arange(len(groups)), np.outer(signal, rng.normal(size=WIDTH)), 1))
    return tuple(views)


@cache
def verdict(source: str) -> Row:
    """On the view of a party that was shown gradients of s, of s of other records, or of the warm-up alone."""
    run = german_run(Path())
    codes = run.data.protected[0].codes[run.split.train]
    groups = np.random.default_rng(1).permutation(codes) if source == "shuffled" else codes
    seen = shown(groups)[: WARMUP if source == "warm-up" else STEPS]
    noise = np.random.default_rng(2).normal(size=(len(run.rows), 8)).astype(np.float32)
    attacks = ViewAttacks(run)
    values = run.truth("s"), run.own_columns((PARTY,)), noise, signals_of(seen, run.records)[run.rows]
    truth, own_columns, noise, signals = (value[:ATTACKED] for value in values)
    attacks.add("aia", "party", truth, own_columns, noise, signals=signals, promise=NOT_KEPT)
    attacks.decide(ERROR / FAMILY)
    return attacks.rows[0]


def test_gradients_of_all_steps_that_reveal_s_are_reported_as_a_leak() -> None:
    row = verdict("s")
    assert row.leak and row.gain_low is not None and row.gain_low > 0.1
    assert row.related is not None and row.related > 0.05, "no single step tells it: only all of them together do"


@pytest.mark.parametrize("source", ["shuffled", "warm-up"])
def test_gradients_that_do_not_reveal_s_are_not_reported_as_a_leak(source: str) -> None:
    row = verdict(source)
    assert row.leak is False and row.rate < 0.6


def test_the_control_is_the_better_of_two_attackers_without_the_view() -> None:
    """A view of noise must not gain because it led to another attacker, which has more luck with own columns."""
    truth = np.arange(100) % 2
    half, well = np.zeros(100, int), np.where(np.arange(100) < 20, 0, truth)
    control = Inference(truth, half, {})
    assert Inference(truth, well, {}, well).against(control) is well
    assert Inference(truth, well, {}, half).against(Inference(truth, well, {})) is well
    assert Inference(truth, well, {}).against(control) is half
    assert Inference(truth, well, {}).against(None) is None


def test_a_declared_leak_is_reported_first_and_breaks_no_promise() -> None:
    noise = np.random.default_rng(0).normal(0, 2.0, (2, 50))
    sound = {"sketch": audit(noise[0], noise[1] + 1, 2.0, 1e-5)}
    report = assemble(german_run(Path()), [verdict("s")], sound, 1.0)
    assert report["ok"] is True and [c["holds"] for c in report["checks"]] == [True, True]
    text = markdown(report)
    assert text.index("**leaks, as this mode declares**: s of a record") < text.index("All promises")
    assert "| leaks, as declared |" in text
    assert attack_story(report)[0].startswith("The protected attribute leaks, as this mode declares")
    quiet = assemble(german_run(Path()), [verdict("shuffled")], {}, 1.0)
    assert quiet["ok"] is False, "the tables were charged and not audited"
    assert "leaks, as" not in markdown(quiet) and "| no leak |" in markdown(quiet)
    assert attack_story(quiet) == [NOT_AUDITED]


def recorded(folder: Path, kept: tuple[Seen, ...], opened: int) -> FinishedRun:
    """A run's folder with what a party kept, and with a transcript of what was opened to it."""
    party_folder = folder / f"party-{PARTY}"
    transcript = Transcript(party_folder / "transcript")
    for _ in range(opened):
        transcript.release(f"gradient {PARTY}", np.zeros(3, np.int64))
    transcript.close()
    keep_gradients(party_folder, kept)
    return german_run(folder)


def test_what_a_party_kept_is_read_back_for_the_attacked_records(tmp_path: Path) -> None:
    whole = german_run(tmp_path)
    seen = shown(whole.data.protected[0].codes[whole.split.train])
    run = recorded(tmp_path, seen, STEPS)
    read = run.signals((PARTY,))
    assert np.array_equal(read, signals_of(seen, run.records)[run.rows]) and read.shape[1] == STEPS


def test_a_run_that_kept_only_the_first_pass_is_not_evaluated(tmp_path: Path) -> None:
    """As runs did before: it would look as if s did not leak."""
    whole = german_run(tmp_path)
    seen = shown(whole.data.protected[0].codes[whole.split.train])
    with pytest.raises(ConfigError, match="was shown 12 gradients and kept 1"):
        recorded(tmp_path, seen[:1], STEPS).signals((PARTY,))
    np.savez(
        tmp_path / f"party-{PARTY}" / "gradients.npz", **{"rows 0": np.arange(2), "gradient 0": np.zeros((2, 3))}
    )
    assert kept_of_split(tmp_path / f"party-{PARTY}") == []


def test_gradients_of_own_data_are_not_kept() -> None:
    """They reveal labels and s, and on data that may not be pooled no truth is available to evaluate an attack."""
    options = RunOptions.of({"mode": "split"}).changed(
        dataset="loans.toml", pooled=False
    )  # refused by `RunOptions.of`
    assert not split_config(options).keep_shown
    assert split_config(RunOptions.of({"dataset": "german", "mode": "split"})).keep_shown


def test_factors_are_the_whole_gradient_and_line_up_from_step_to_step() -> None:
    """Also of several classes: signs and turns that a decomposition leaves open are those of the step before."""
    rng = np.random.default_rng(3)
    signal, direction = rng.normal(size=(50, 3)), rng.normal(size=(3, WIDTH))
    steps = []
    for _ in range(6):
        direction = direction + 0.05 * rng.normal(size=direction.shape)
        steps.append(Seen.of(np.arange(50), signal @ direction, 3))
        assert np.allclose(steps[-1].signal @ steps[-1].direction, signal @ direction)
    for before, after, plain in zip(aligned(steps), aligned(steps)[1:], steps[1:], strict=False):
        assert np.allclose(after.signal @ after.direction, plain.signal @ plain.direction)
        assert np.abs(after.direction - before.direction).max() < 0.2
        assert np.corrcoef(before.signal[:, 2], after.signal[:, 2])[0, 1] > 0.9


def test_batches_are_put_together_to_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten records in batches of four: two of them are in no batch of a pass, and have its mean."""
    rng = np.random.default_rng(4)
    batches = [rows for _ in range(3) for rows in np.split(rng.permutation(10)[:8], 2)]
    value = np.arange(1.0, 11.0)
    seen = [Seen(rows, value[rows, None] * (-1) ** n, np.array([[(-1.0) ** n]])) for n, rows in enumerate(batches)]
    assert [len(steps) for steps in passes_of(seen)] == [2, 2, 2]
    signals = signals_of(seen, 10)
    for number, column in enumerate(signals.T):
        inside = np.concatenate(batches[2 * number : 2 * number + 2])
        outside = np.setdiff1d(np.arange(10), inside)
        assert np.array_equal(column[inside], value[inside])
        assert np.allclose(column[outside], value[inside].mean())
    monkeypatch.setattr(labels, "MOST_PASSES", 2)
    assert np.array_equal(signals_of(seen, 10), signals[:, [0, 2]]), "spread over all"


def test_releases_do_not_give_way_to_masked_openings() -> None:
    """There are far more masked words than columns; what was opened last is a column all the same."""
    rng, rows = np.random.default_rng(5), np.arange(20)
    masked = [Words(("data", str(n)), rng.integers(-(2**62), 2**62, (20, 10))) for n in range(MOST_WORDS // 5)]
    opened = [Words(("release", "gradient 0"), rng.integers(0, 100, (20, 1))) for _ in range(60)]
    columns = as_columns([*masked, *opened], rows)
    for item in opened:
        scaled = (item.words[:, 0] / item.words.max()).astype(np.float32)
        assert (columns == scaled[:, None]).all(axis=0).any()
