"""Encoders from noisy batch gradients: the sums, their sensitivity, their noise, their price, and the attack."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from secure_sccvfl.accounting.accountant import epsilons
from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.calibration import noise_multiplier
from secure_sccvfl.accounting.events import Event, Sensitivity
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.audit.attacks.labels import labels_from_dp
from secure_sccvfl.data.party import Part
from secure_sccvfl.protocols import ring
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.dealing import tuples
from secure_sccvfl.protocols.errors import ProtocolError, RangeError
from secure_sccvfl.protocols.records.releases import ANY, Release, ReleasePlan
from secure_sccvfl.protocols.steps import weighted_sums
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.releases.mechanisms import NoiseLevel, noised_event
from secure_sccvfl.runs.checkpoints import Checkpoints
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.base import noise_multiplier_of
from secure_sccvfl.training.modes.dp import DpConfig, Score, dp_config, dp_releases, parameters_of, train_dp
from secure_sccvfl.training.modes.options import RunOptions
from secure_sccvfl.training.shared import side_by_side
from secure_sccvfl.training.trainer import Hooks
from tests.support.chance import confirmed, fits_alone
from tests.support.gradient_modes import EVERYONE, LABEL_HOLDER, PARTIES, german, parts
from tests.support.sessions import LONG, run_session
from tests.unit.accounting.test_prices import replay


def planned_steps(config, multiplier):
    """All steps as one event."""
    moved = Sensitivity.of_any(weighted_sums.sensitivity(config.clip, PARTIES), 2.0**-weighted_sums.SUM_BITS)
    level, records = NoiseLevel(multiplier, "dealer+holder", PARTIES), records_of(None).digest
    event = noised_event("dp gradient", moved, level, records, sampling=config.sampling)
    return replace(event, count=config.steps)


def records_of(rows):
    return RecordSet(german().split.train[:rows].astype(np.uint64))


def test_sums_are_exact():
    rng = np.random.default_rng(0)
    widths, rows = (3, 5), 40
    blocks = [weighted_sums.clipped(rng.normal(size=(rows, w)), 1.0) for w in widths]
    weight = rng.uniform(-1, 1, (rows, 1))
    release = Release("sum", (0, 1), (ANY,), "test")

    def job(session):
        shared = session.share(weight, owner=1, shape=weight.shape, bits=weighted_sums.WEIGHT_BITS)
        sums = weighted_sums.weighted_sums(side_by_side(session, widths, blocks[session.rank]), shared)
        assert session.fraction(sums) == weighted_sums.SUM_BITS
        return session.open(sums.with_fraction(0), release).numpy()

    whole = ring.encode(np.hstack(blocks)).T @ ring.encode(weight, weighted_sums.WEIGHT_BITS)
    for sums_of_party in run_session(job, 2, ReleasePlan([release])):
        assert np.array_equal(sums_of_party, whole[:, 0])


@pytest.mark.parametrize(
    ("blocks", "shape", "message"),
    [
        (lambda s: s.share(np.ones((4, 2)), owner=0, shape=(4, 2)), (4, 1), "one block of columns of every party"),
        (lambda s: s.owned(np.ones((4, 2)), owner=0, shape=(4, 2)), (4, 1), "one block of columns of every party"),
        (lambda s: side_by_side(s, (2, 2), np.ones((4, 2))), (4, 2), "a weight each"),
        (lambda s: side_by_side(s, (2, 2), np.ones((4, 2))), (3, 1), "a weight each"),
    ],
)
def test_a_sum_takes_a_block_of_every_party_and_one_weight_for_each_row(blocks, shape, message):
    def job(session):
        with pytest.raises(ProtocolError, match=message):
            weighted_sums.weighted_sums(blocks(session), session.zeros(shape, weighted_sums.WEIGHT_BITS))

    run_session(job, 2)


def test_no_record_counts_for_more_than_the_sensitivity():
    """Residuals stay within the bound for every logit, in the range of the sigmoid or not; rows within the clip."""
    logits = np.concatenate([np.linspace(-30, 30, 2000), np.linspace(-300, 300, 2001)])[:, None]
    release = Release("residual", (0, 1), (ANY, ANY), "test")

    def job(session):
        shared = session.share(logits, owner=0, shape=logits.shape)
        return session.open(shared.sigmoid(bound=22.0, bits=weighted_sums.WEIGHT_BITS), release).numpy()

    sigmoid = run_session(job, 2, ReleasePlan([release]))[0]
    assert np.abs(sigmoid - 0.5).max() + 0.5 <= weighted_sums.LARGEST_WEIGHT
    rows = np.random.default_rng(0).normal(size=(500, 30)) * np.geomspace(1e-3, 1e3, 500)[:, None]
    short = weighted_sums.clipped(rows, 0.7) * 2**16
    assert np.array_equal(short, np.rint(short)), "exact in the ring"
    assert all(sum(int(v) ** 2 for v in row) <= (0.7 * 2**16) ** 2 for row in short)


@pytest.mark.parametrize("parties", [1, 2, 3, 5])
@pytest.mark.parametrize("clip", [0.1, 1.0])
def test_one_record_moves_the_sums_of_all_parties_together_by_the_sensitivity_and_not_by_less(parties, clip):
    """The worst record has a clipped gradient at every party: what is charged must cover all the sums at once."""
    rows = [weighted_sums.clipped(np.full((1, 7), 1e3 * (rank + 1)), clip)[0] for rank in range(parties)]
    moved = np.linalg.norm(np.concatenate(rows)) * weighted_sums.LARGEST_WEIGHT
    charged = weighted_sums.sensitivity(clip, parties)
    assert charged * (1 - 2**-8) < moved <= charged


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_clipping_cannot_bound_is_an_error(value):
    with pytest.raises(RangeError, match="NaN or infinite"):
        weighted_sums.clipped(np.array([[0.1, 0.2], [0.3, value]]), 1.0)


def test_no_record_moves_the_score_or_gradient_of_another():
    (party,) = german_part(0).parties
    odd = replace(party, inputs=np.vstack([party.inputs[:50], 1 - party.inputs[50:51]]))
    alone, with_one_more = (Score(p, 4, 0) for p in (party.take(np.arange(50)), odd))
    assert np.abs(alone.scores(7.0) - with_one_more.scores(7.0)[:50]).max() < 1e-12
    assert np.abs(alone.gradients() - with_one_more.gradients()[:50]).max() < 1e-12


def test_the_encoder_gives_the_units_that_were_trained():
    (party,) = german_part(0).parties
    score = Score(party, 4, 0)
    with torch.no_grad():
        units = torch.relu(score.network.hidden(score.rows)).numpy()
    encoded = score.encoder()(party.inputs)[:, -4:]
    scale = np.maximum(units.std(axis=0), 1e-3)
    assert np.allclose(encoded, (units - units.mean(axis=0)) / scale)


def german_part(rank, rows=None):
    part = parts(german(), rank)[0]
    if rows is None:
        return part
    return Part(
        tuple(p.take(np.arange(rows)) for p in part.parties),
        None if part.label is None else part.label[:rows],
        part.protected,
    )


def columns_of(rank):
    return Score(german_part(rank).parties[0], 1, 0).columns


def run_dp(config, tmp_path, multiplier, epsilon=8.0, rows=None, name="a run", hooks=None, resume=False):
    """`hooks` makes those of a party from its rank and checkpoints; `resume` goes on from the last common one."""
    columns = [columns_of(rank) for rank in EVERYONE]
    releases = dp_releases(columns, config)
    total = len(german().split.train) if rows is None else rows

    def job(session):
        part = german_part(session.rank, rows)
        budget = Budget.open(tmp_path / f"ledger-{session.rank}" / "ledger.jsonl", epsilon, 1e-5, total)
        charger = Charger(session, budget, multiplier, name, records_of(rows))
        kept = Checkpoints(tmp_path / f"{session.rank}", "ab" * 32)
        state = kept.resume(session, "binary") if resume else None
        party_hooks = None if hooks is None else hooks(session.rank, kept)
        model = train_dp(session, part, LABEL_HOLDER, columns, config, charger, 0, hooks=party_hooks, state=state)
        return model, budget.spent, session.costs.get("dp step"), session.released

    return run_session(job, PARTIES, ReleasePlan(releases))


def test_every_step_is_charged_before_it_is_opened(tmp_path):
    config = DpConfig(units=2, steps=3)
    results = run_dp(config, tmp_path, multiplier=4.0)
    planned = planned_steps(config, 4.0)
    for model, spent, cost, released in results:
        assert len(model.events) == config.steps
        assert spent.renyi == pytest.approx(epsilons([planned], 1e-5).renyi)
        assert cost.rounds == 4 * config.steps
        assert [entry["release"] for entry in released] == [f"noisy gradient {r}" for r in EVERYONE] * config.steps
        encoder = next(iter(model.encoders.values()))
        assert encoder.columns == encoder.plain.columns + config.units


def test_sampled_steps_are_charged_as_drawn(tmp_path, monkeypatch):
    """One object says what is paid and what is drawn: the chance asked of the dealer is the ledger's."""
    config = DpConfig(units=2, steps=3, sampling=0.25)
    asked = []
    honest = tuples.sampled
    monkeypatch.setitem(tuples._KINDS, "sampled", lambda rows, k: asked.append((rows, k)) or honest(rows, k))
    tuples.recipe.cache_clear()
    results = run_dp(config, tmp_path, multiplier=4.0)
    tuples.recipe.cache_clear()
    assert set(asked) == {(len(german().split.train), 2**14)}
    full = epsilons([planned_steps(replace(config, sampling=1.0), 4.0)], 1e-5)
    for model, spent, cost, _ in results:
        assert [event.sampling for event in model.events] == [0.25] * 3
        assert spent.agree and spent.renyi == pytest.approx(epsilons([planned_steps(config, 4.0)], 1e-5).renyi)
        assert spent.renyi < 0.6 * full.renyi
        assert cost.rounds == 5 * config.steps
    for rank in EVERYONE:
        assert replay((tmp_path / f"ledger-{rank}" / "ledger.jsonl").read_text())[0] == pytest.approx(
            spent.renyi, rel=1e-9
        )


@pytest.mark.chance(1e-9)  # `fits_alone` of 840 values: all parties together
def test_a_sampled_step_is_the_noisy_sum_of_its_batch(tmp_path):
    """Over the expected batch: the mean step is that of the full batch, with the noise that was charged.

    Who is in the batch adds less than 1 % to the variance of a value, so values are as good as independent.
    """
    config = DpConfig(units=10, steps=1, sampling=0.5)
    label = german().data.label.values[german().split.train]
    models = [model for model, *_ in run_dp(config, tmp_path, multiplier=3.0)]
    scores = sum(Score(german_part(rank).parties[0], config.units, 0).scores(22.0 / PARTIES) for rank in EVERYONE)
    residual = 1 / (1 + np.exp(-scores)) - label
    sigma, off = models[0].events[0].sigma, []
    for model in models:
        seen = model.seen[0]
        each = seen.gradients * residual[:, None]
        batch = 0.25 * (each**2).sum(axis=0)
        assert (batch < 0.01 * 2 * sigma**2).mean() > 0.9
        off.append((seen.total - 0.5 * each.sum(axis=0)) / np.sqrt(2 * sigma**2 + batch))  # noise twice
    assert fits_alone(np.concatenate(off), 1.0)


def test_settings_that_cannot_be_drawn_or_priced_are_refused(tmp_path):
    with pytest.raises(ValueError, match="multiple of"):
        DpConfig(sampling=0.3)
    with pytest.raises(ExceptionGroup) as caught:
        run_dp(DpConfig(units=1, steps=1, sampling=0.5), tmp_path, multiplier=0.01, epsilon=1e9)
    assert caught.group_contains(ValueError, match="too small for the price")


def test_options_of_a_run_plan_sketches_and_steps_together():
    plain = {"mode": "dp", "private_model": False}
    options = RunOptions.of({**plain, "dp_sampling": 0.3, "dp_steps": 20})
    schema = options.schema(3)
    config, multiplier = dp_config(options), noise_multiplier_of(options, schema)
    assert (config.steps, config.sampling) == (20, round(0.3 * 2**16) / 2**16)
    events = [planned_steps(config, multiplier), Event("sketches", 1.0, multiplier, "records", count=2)]
    assert 7.99 < epsilons(events, 1e-5).renyi <= 8
    assert noise_multiplier_of(RunOptions.of(plain), schema) == noise_multiplier(8.0, 1e-5, 12)
    assert noise_multiplier_of(RunOptions.of({"private_model": False}), schema) == noise_multiplier(8.0, 1e-5, 2)
    assert noise_multiplier_of(RunOptions.of({"mode": "dp"}), schema) > noise_multiplier(8.0, 1e-5, 12)
    for bad in ({"dp_sampling": 0.0}, {"dp_sampling": 1.1}, {"dp_steps": 0}):
        with pytest.raises(ConfigError):
            RunOptions.of({"mode": "dp", **bad})
    with pytest.raises(ConfigError, match="for mode dp"):
        gradient_mode("sealed").check(RunOptions.of({"dp_sampling": 0.5}), RunOptions().schema(3))


def test_the_budget_ends_training_and_nothing_more_is_opened(tmp_path):
    config = DpConfig(units=1, steps=4)
    two = epsilons([planned_steps(DpConfig(units=1, steps=2), 4.0)], 1e-5).renyi
    for model, spent, _, released in run_dp(config, tmp_path, multiplier=4.0, epsilon=two + 1e-6):
        assert len(model.events) == 2 and len(released) == 2 * PARTIES
        assert spent.renyi <= two + 1e-6


@pytest.mark.chance(1e-9)  # `fits_alone` of 840 values: all parties together
def test_the_noise_has_the_size_that_is_charged(tmp_path):
    """From what a party saw: total minus the exact sum, over all parameters and both copies of noise."""
    config = DpConfig(units=10, steps=1)
    ready = german()
    label = ready.data.label.values[ready.split.train]
    models = [model for model, *_ in run_dp(config, tmp_path, multiplier=3.0)]
    scores = sum(Score(german_part(rank).parties[0], config.units, 0).scores(22.0 / PARTIES) for rank in EVERYONE)
    residual = 1 / (1 + np.exp(-scores)) - label
    noise = np.concatenate([m.seen[0].total - m.seen[0].gradients.T @ residual for m in models])
    assert fits_alone(noise, np.sqrt(2) * models[0].events[0].sigma)


class Fault(Exception):
    pass


@pytest.mark.parametrize(("behind", "steps", "charged"), [(None, 3, 5), (1, 2, 6)])
def test_a_stopped_run_continues_and_pays_for_each_release_once(behind, steps, charged, tmp_path):
    """Stopped in step 3 of 5. A party that did not keep it sends all back to step 2: the third is paid anew."""
    config = DpConfig(units=2, steps=5, sampling=0.5)
    opened, together = {rank: [] for rank in EVERYONE}, threading.Barrier(PARTIES)

    def stopping(rank, kept):
        def keep(state):
            opened[rank] = state.mode_arrays["dp totals"]
            if len(opened[rank]) < 3 or rank != behind:
                kept.keep(state)
            if len(opened[rank]) == 3:
                together.wait(LONG)
                raise Fault

        return Hooks(keep=keep)

    with pytest.raises(ExceptionGroup):
        run_dp(config, tmp_path, multiplier=4.0, hooks=stopping)
    results = run_dp(config, tmp_path, multiplier=4.0, name="again", resume=True)
    planned = planned_steps(replace(config, steps=charged), 4.0)
    for rank, (model, spent, cost, released) in enumerate(results):
        assert len(model.seen) == config.steps, "as many steps as a run that nobody disturbed"
        assert len(model.events) == config.steps - steps
        assert cost.rounds == 5 * len(model.events) and len(released) == PARTIES * len(model.events)
        assert spent.renyi == pytest.approx(epsilons([planned], 1e-5).renyi), "nothing is forgotten"
        totals = np.array([step.total for step in model.seen])
        assert np.array_equal(totals[:steps], opened[rank][:steps]) and np.array_equal(
            model.mode_arrays["dp totals"], totals
        )
        assert (behind is None) == np.array_equal(totals[:3], opened[rank]), "new noise where a step is made again"
        # The encoder is the one that these sums give, whoever was stopped on the way.
        score = Score(german_part(rank).parties[0], config.units, 0)
        for step in model.seen:
            assert np.array_equal(weighted_sums.clipped(score.gradients(), 1.0), step.gradients)
            score.learn(step.total / (0.5 * len(step.gradients)), config.rate, config.momentum)
        units = german_part(rank).parties[0].inputs
        assert np.array_equal(score.encoder()(units), model.encoders[rank](units))


def labels_read(folder, multiplier, epsilon, rows=60):
    """How well each party reads labels from its sums, with few records and many parameters."""
    label = german().data.label.values[german().split.train][:rows]
    folder.mkdir()
    results = run_dp(DpConfig(units=4, steps=2), folder, multiplier, epsilon, rows)
    return [labels_from_dp(model.seen, label) for model, *_ in results]


def test_without_noise_the_labels_can_be_solved_for(tmp_path):
    assert max(rate.rate for rate in labels_read(tmp_path / "open", 1e-3, 1e9)) > 0.9


@pytest.mark.chance(1e-9)
def test_noise_takes_the_labels_away(tmp_path):
    """Of 60 labels the attack has 36 right on average and would need 49, 3.4 standard errors more: about .001 for
    any of three parties, and 1e-12 in four runs one after the other.
    """
    folders = (tmp_path / str(number) for number in itertools.count())
    assert not confirmed(lambda: any(r.low > r.chance for r in labels_read(next(folders), 3.0, 8.0)), 4)


def test_per_record_gradients_are_those_of_single_records():
    """Opacus' against a loop of autograd over one record each, at the start and after a step."""
    (party,) = german_part(0, 40).parties
    score = Score(party, 3, 0)
    for _ in range(2):
        each, (wide, bias, out) = score.gradients(), score.network.parameters()
        scores = (torch.relu(wide @ row + bias) @ out[0] / 3 for row in score.rows)
        alone = [torch.autograd.grad(one, (wide, bias, out)) for one in scores]
        expected = np.array([torch.cat([g.flatten() for g in one]).numpy() for one in alone])
        assert each.shape == (40, parameters_of(score.columns, DpConfig(units=3)))
        assert np.abs(each - expected).max() < 1e-12 < 1e-3 < np.abs(expected).max()
        score = Score(party, 3, 0)
        score.learn(expected.mean(axis=0), 1.0, 0.5)
