"""The certificate under MPC against the plaintext one, bit for bit where nothing is rounded; and what it costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.budget import Budget
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.audit.canaries import CHANGED, KEPT, EvaluationCanary
from secure_sccvfl.data.dataset import Task
from secure_sccvfl.data.features import Feature
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.metrics import certified as secure
from secure_sccvfl.metrics.certified import AtEnds, certified
from secure_sccvfl.metrics.exact import SecureEvaluation, exact_figures, exact_release
from secure_sccvfl.metrics.noisy import NoisyEvaluation, Sums
from secure_sccvfl.metrics.rates import CERTIFIED, Copies
from secure_sccvfl.models.certificate import CertificateError, certified_binary, certified_class
from secure_sccvfl.models.encoders import FeatureEncoder, public_encoder
from secure_sccvfl.protocols.config import ConfigError
from secure_sccvfl.protocols.operations import noise
from secure_sccvfl.protocols.records.releases import ReleasePlan
from secure_sccvfl.protocols.session.runtime import Session
from secure_sccvfl.releases.charging import Charger
from secure_sccvfl.runs.evaluate import as_trained
from secure_sccvfl.runs.model_files import HeldOut
from secure_sccvfl.runs.scoring import ModelJob, prediction_plan
from secure_sccvfl.training.modes.options import RunOptions
from tests.support.sessions import results, run_session

GRID = 2.0**-16


def contributions(counts: tuple[int, ...], outputs: int, seed: int = 0) -> list[np.ndarray]:
    """Few different values, so that many levels are equal; all exact in fixed point."""
    rng = np.random.default_rng(seed)
    of_levels = [rng.integers(-6, 7, (count, outputs)) * GRID for count in counts]
    return [rows - rows[:1] for rows in of_levels]


def bits(base: np.ndarray, of_levels: list[np.ndarray], parties: int = 2) -> tuple[np.ndarray, int]:
    """The opened bits, and the rounds before the comparison of records."""
    counts = [len(rows) for rows in of_levels]
    levels = np.concatenate([rows + 3 * GRID for rows in of_levels]) if counts else np.zeros((0, base.shape[1]))

    def job(session: Session) -> Any:
        extremes = secure.ends(session, session.share(levels, owner=0, shape=levels.shape), counts)
        at_ends = AtEnds.of(session.share(base, owner=0, shape=base.shape), *extremes)
        rounds = session.costs["ends of the mediators"].rounds
        opened = session.open(certified(at_ends.low < 0, at_ends.high < 0), session.declared("result 1"))
        return np.asarray(opened), rounds

    opened, rounds = run_session(job, parties, ReleasePlan(list(results(parties).values())))[0]
    return opened, rounds


COUNTS = [(4, 7, 2), (1, 5), (16,), (1,), (), (3, 3, 3, 3)]


def near_ends(of_levels: list[np.ndarray], outputs: int) -> np.ndarray:
    """Logits around all values at which the certificate changes, on the grid."""
    return np.random.default_rng(1).integers(-30, 31, (400, outputs)) * GRID


@pytest.mark.parametrize("counts", COUNTS)
def test_bits_of_two_classes_are_those_in_plaintext_ties_included(counts: tuple[int, ...]) -> None:
    of_levels = contributions(counts, 1)
    base = near_ends(of_levels, 1)
    expected = certified_binary(base, of_levels)
    assert np.array_equal(bits(base, of_levels)[0], expected)
    assert 0.1 < expected.mean() < 0.9 or (max(counts, default=1) == 1 and expected.all())


@pytest.mark.parametrize(("counts", "classes"), [((4, 7, 2), 3), ((5, 3), 4), ((), 3)])
def test_bits_of_several_classes_are_those_in_plaintext_ties_included(counts: tuple[int, ...], classes: int) -> None:
    of_levels = contributions(counts, classes)
    base = near_ends(of_levels, classes)
    expected = certified_class(base, of_levels)
    assert np.array_equal(bits(base, of_levels, 3)[0], expected) and (0.02 < expected.mean() < 0.9 or not counts)


@pytest.mark.parametrize(("counts", "rounds"), [((2,), 7), ((16, 3), 10), ((17, 16), 11), ((40,), 12), ((1,), 0)])
def test_ends_take_at_most_twelve_rounds_up_to_64_levels(counts: tuple[int, ...], rounds: int) -> None:
    of_levels = contributions(counts, 1)
    assert bits(near_ends(of_levels, 1)[:3], of_levels)[1] == rounds


@pytest.mark.parametrize(("task", "sizes"), [("binary", (120, 60)), ("binary", (120, 8)), ("multiclass", (90, 40))])
def test_exact_shares_are_those_in_plaintext_without_small_groups(task: Task, sizes: tuple[int, ...]) -> None:
    outputs = 3 if task == "multiclass" else 1
    rows, rng = sum(sizes), np.random.default_rng(2)
    of_levels = contributions((4, 7, 2), outputs)
    base, codes = near_ends(of_levels, outputs)[:rows], np.repeat([0, 1], sizes)
    expected = (certified_class if outputs > 1 else certified_binary)(base, of_levels)
    label, levels = rng.integers(0, 2, rows), np.concatenate(of_levels)
    of = Copies(np.arange(rows), np.ones(rows), 1 - codes)

    def job(session: Session) -> Any:
        logits, below = (session.share(one, owner=0, shape=one.shape) for one in (base, levels))
        held = label if session.rank == 0 else None, codes if session.rank == 1 else None
        evaluation = SecureEvaluation(session, task, 0, 1, 20)
        at_ends = AtEnds.of(logits, *secure.ends(session, below, [len(one) for one in of_levels]))
        return evaluation.metrics(logits, *held, 2, {"own": (logits, of)}, at_ends)

    opened = run_session(job, 2, ReleasePlan([exact_release(2, task, ["own"], 2, certificate=True)]))[0]
    figures = exact_figures(opened, ["own"], 2)
    assert figures["metrics"]["certified"] == pytest.approx(expected.mean(), abs=1e-4)
    assert not any(name.endswith(("group 0", "group 1")) for name in figures["metrics"])
    for group, note in enumerate(figures["groups"]):
        here = codes == group
        assert (CERTIFIED in note["too_few"]) == (here.sum() < 20)
        assert (CERTIFIED in note.get("rates", {})) == (min(sizes) >= 20), "else it follows from the other group's"
        if min(sizes) >= 20:
            rate = note["rates"][CERTIFIED]
            assert rate["value"] == expected[here].mean() and rate["rows"] == here.sum()
            assert rate["low"] < rate["value"] < rate["high"]
    assert len(figures["groups"]) == 2 * (task == "binary")


def test_swapped_ends_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above can fail: with L and U swapped, records are certified that are not."""
    right = secure.ends
    monkeypatch.setattr(secure, "ends", lambda *given: right(*given)[::-1])
    of_levels = contributions((4, 7, 2), 1)
    base = near_ends(of_levels, 1)
    assert not np.array_equal(bits(base, of_levels)[0], certified_binary(base, of_levels))


def test_a_replaced_record_moves_two_numbers_of_certified_records() -> None:
    """And no more than that: two worlds of the canary are as far apart as is charged, except for the baselines."""
    canary = EvaluationCanary()
    moved = canary.exact(2, 0, KEPT) - canary.exact(2, 0, CHANGED)
    assert np.linalg.norm(moved) == pytest.approx(6**0.5), "right, two cells, flips, two of certified"
    assert np.linalg.norm(moved) <= canary.layout.sensitivity.replaced < np.linalg.norm(moved) * 1.001


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"mode": "dp"}, "encoders of mode dp mix columns"),
        ({"mode": "split"}, "encoders of mode split mix columns"),
        ({"mode": "aware"}, "a model of mode aware uses s"),
        ({"head": "mlp", "private_model": False}, "head mlp is not additive in the features"),
    ],
)
def test_models_without_a_certificate_say_why_if_asked(given: dict[str, Any], reason: str) -> None:
    assert RunOptions.of({"dataset": "german"}).evaluation.certificate
    assert not RunOptions.of({"dataset": "german", **given}).evaluation.certificate
    with pytest.raises(ConfigError, match=f"^no certificate: {reason}; leave out evaluation.certificate$"):
        RunOptions.of({"dataset": "german", **given, "certificate": True})


def test_a_prediction_without_a_certificate_is_refused_in_one_line() -> None:
    layout = Layout.of((Feature("age", "number", low=0, high=1, edges=(0, 0.5, 1)),))
    mixed = FeatureEncoder(public_encoder(layout), np.ones((2, 1)), np.zeros(1), np.zeros(1))
    schema: Any = SimpleNamespace(layouts={0: layout}, task="regression", label_holder=0, parties=("bank", "clinic"))
    schema.group_holders = (1,)
    for changes in ({"encoder": mixed}, {"module": "mlp"}, {"aware": "declared"}):
        plain = {"encoder": public_encoder(layout), "module": None, "aware": None}
        facts: Any = SimpleNamespace(**{**plain, **changes}, rank=0, roles={"age": "M"}, proxies="guard")
        with pytest.raises(CertificateError, match=r"^no certificate: .* is no sum over .*; use --no-certificate$"):
            ModelJob.end_rows(facts, schema, np.zeros((3, 1)))
    with pytest.raises(CertificateError, match=r"^no certificate: a regression decides nothing"):
        prediction_plan(RunOptions.of({"dataset": "german", "certified": True}), schema)


@pytest.mark.parametrize(("task", "expected_of"), [("binary", certified_binary), ("multiclass", certified_class)])
def test_noisy_counts_are_those_in_plaintext_without_their_noise(
    task: Task, expected_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(party: Any, kind: str, sigma: float, rows: int, holders: Any) -> np.ndarray:
        return np.zeros((rows, len(holders)), np.int64)

    monkeypatch.setattr(noise, "noise_share", silent)
    outputs = 3 if task == "multiclass" else 1
    of_levels = contributions((4, 7, 2), outputs)
    base, codes = near_ends(of_levels, outputs)[:100], np.repeat([0, 1], (60, 40))
    layout, levels = Sums(task, 2, ("own",), certificate=True), np.concatenate(of_levels)

    def job(session: Session) -> Any:
        records = RecordSet(np.arange(100, dtype=np.uint64))
        charger = Charger(session, Budget.in_memory(4.0, 1e-5), 3.0, "run", records)
        logits, below = (session.share(one, owner=0, shape=one.shape) for one in (base, levels))
        held = np.zeros(100, int) if session.rank == 0 else None, codes if session.rank == 1 else None
        at_ends = AtEnds.of(logits, *secure.ends(session, below, [len(one) for one in of_levels]))
        copies = {"own": (logits, Copies(np.arange(100), np.ones(100)))}
        noisy = NoisyEvaluation(SecureEvaluation(session, task, 0, 1), charger)
        return noisy.sums(layout, logits, *held, copies, ends=at_ends)

    sums = run_session(job, 2, ReleasePlan([layout.release(2)]))[0][CERTIFIED]
    bits = expected_of(base, of_levels)
    by_group = [number for g in (0, 1) for number in ((~bits[codes == g]).sum(), bits[codes == g].sum())]
    assert sums.tolist() == (by_group if task == "binary" else [bits.sum()]) and 0 < bits.sum() < 100


def test_a_model_of_an_earlier_version_is_evaluated_as_all_agreed_then() -> None:
    earlier: Any = SimpleNamespace(seed=0, held_out=HeldOut("iid", True, "exact", {}))
    options = RunOptions.of({"dataset": "german", "controls": "none"})
    assert options.evaluation.certificate and not as_trained(options, {}, earlier).evaluation.certificate
    with pytest.raises(ConfigError, match="trained with certificate = False, so it is not evaluated with True"):
        as_trained(options, {"certificate": True}, earlier)
