"""What a party says about the noise of a run before it begins: it can ask for more noise, and change nothing else.

The parties used to tell each other whole plans, with ridge and curvature of the head. One with a little more noise
and a curvature of 0 was taken by all, and every honest ledger charged a head as if its curvature told nothing.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secure_sccvfl.accounting.accountant import epsilon_of
from secure_sccvfl.accounting.budget import Budget, read_account
from secure_sccvfl.accounting.calibration import HeadBudget
from secure_sccvfl.accounting.events import Event
from secure_sccvfl.accounting.records import RecordSet
from secure_sccvfl.protocols.errors import ProtocolError
from secure_sccvfl.protocols.steps import second_order
from secure_sccvfl.releases import charging
from secure_sccvfl.releases.default_budget import BASELINE_NOISE
from secure_sccvfl.releases.mechanisms import HeadNoise, HeadPlan, price_head
from secure_sccvfl.runs.train import TrainJob
from secure_sccvfl.training.modes import gradient_mode
from secure_sccvfl.training.modes.base import MOST_NOISE, Spread, planned_spread, spread_of
from secure_sccvfl.training.modes.options import RunOptions
from tests.adversarial.test_resumed_heads import tells
from tests.support.sessions import stopping
from tests.support.two_parties import OPTIONS, ledger_lines, people, run_two, write_data

RECORDS = RecordSet(np.arange(9, dtype=np.uint64))
DATA: dict[str, dict[str, str]] = {"german": {}, "heart": {"mode": "dp"}}


class Liar:
    """A session with one more party, which says this."""

    def __init__(self, said: float) -> None:
        self.parties, self.rank, self.said = 2, 0, said

    def swap_bytes(self, step: str, sent: bytes) -> list[bytes]:
        return [sent, struct.pack("<d", self.said)]


def spread_with(said: float, dataset: str = "german") -> tuple[Spread, Spread]:
    """What a run has if another party says this, and what a fresh one has."""
    options = RunOptions.of({"dataset": dataset, **DATA[dataset]})
    session: Any = Liar(said)
    schema = options.schema(3)
    budget = Budget.in_memory(options.privacy.epsilon, options.privacy.delta)
    return planned_spread(session, options, schema, budget, RECORDS, ()), spread_of(options, schema)


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e9, 2.0**60])
def test_figures_that_no_honest_party_can_need_are_refused(said: float) -> None:
    with pytest.raises(ProtocolError, match="party 1 plans with noise that no run has; nothing was opened"):
        spread_with(said)


def missed(plan: HeadPlan, budget: HeadBudget) -> list[str]:
    """What a head of this budget has less of than its own plan asks for."""
    least = (4 if plan.mechanism == "objective-symmetric" else 1) * plan.bend * plan.radius**2 / budget.ridge
    wrong = [] if budget.curvature >= least * (1 - 1e-12) else ["curvature"]
    wrong += [] if budget.ridge >= 2.8 else ["ridge"]
    return wrong + [name for name, value in vars(budget).items() if not value > 0]


@pytest.mark.parametrize("dataset", DATA)
@pytest.mark.parametrize("times", [1e-9, 0.5, 1.0, 1.0000001, 1.7, MOST_NOISE])
def test_every_other_figure_follows_from_public_things(dataset: str, times: float) -> None:
    fresh = spread_with(1.0, dataset)[1]
    assert fresh.heads is not None
    plan, budget = fresh.heads
    spread, _ = spread_with(times * budget.head_multiplier, dataset)
    assert spread.heads is not None
    _, planned = spread.heads
    assert not missed(plan, planned)
    if times <= 1:
        assert spread == fresh
        return
    assert planned.head_multiplier >= times * budget.head_multiplier * (1 - 1e-9)
    assert spread.multiplier >= times * fresh.multiplier * (1 - 1e-9)
    assert (
        planned.output_multiplier >= times * budget.output_multiplier * (1 - 1e-9) and planned.ridge >= budget.ridge
    )
    # The head's own part of the ledger costs no more than planned, and no less than its noise says.
    prices = [
        epsilon_of(price_head(plan, one, 600, "dealer", 2, RECORDS.digest).events, 1e-5) for one in (planned, budget)
    ]
    assert prices[0] < prices[1]


def test_a_curvature_that_was_made_up_would_be_noticed_here_and_cheaper_in_the_ledger() -> None:
    fresh = spread_with(1.0)[1]
    assert fresh.heads is not None
    plan, budget = fresh.heads
    noise = budget.table_multiplier, budget.head_multiplier, budget.output_multiplier
    forged = HeadBudget(*noise, ridge=0.6, curvature=1e-9)
    true = HeadBudget(*noise, ridge=0.6, curvature=plan.bend * plan.radius**2 / 0.6)
    assert missed(plan, forged) == ["curvature", "ridge"] and missed(plan, true) == ["ridge"]
    cost = [
        epsilon_of(price_head(plan, one, 600, "dealer", 2, RECORDS.digest).events, 1e-5) for one in (forged, true)
    ]
    assert cost[0] + 0.1 < cost[1]


def charged_and_drawn(
    home: Path, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> list[tuple[list[Event], HeadNoise]]:
    """Of each party: the events of its head in its ledger, and the noise that it was told to draw."""
    drawn: dict[str, HeadNoise] = {}
    honest = charging.Charger.charge_heads

    def charge_heads(self: charging.Charger, count: int) -> HeadNoise:
        drawn[str(self._session.rank)] = honest(self, count)
        return drawn[str(self._session.rank)]

    monkeypatch.setattr(charging.Charger, "charge_heads", charge_heads)
    data = write_data(home, people(400, seed=5))
    run_two(TrainJob, home / "run", {"dataset": str(data), "card": str(home / "card.toml"), **OPTIONS, **more})
    charged = []
    for rank in range(2):
        path = home / "sccvfl-ledgers" / f"party-{rank}" / "ledger.jsonl"
        account = read_account(path)
        charged.append(([e for e in account.events if e.name.startswith("head")], drawn[str(rank)]))
    return charged


@pytest.mark.parametrize(("kind", "times"), [("dealer+holder", 1.0), ("dealer", 2.5), ("all-parties", 2.5)])
def test_what_is_charged_is_what_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, times: float
) -> None:
    """Also if one party asks for more noise: sigma, its kind and hidden copies, number of heads, and curvature."""
    tells(monkeypatch, times)
    first, second = charged_and_drawn(tmp_path, monkeypatch, noise=kind, lambdas=[1.0, 3.0])
    assert first == second
    (head, output), noise = first
    assert (head.name, output.name) == ("head", "head output")
    assert (head.sigma, output.sigma) == (noise.sigma, noise.output)
    assert head.count == output.count == 2, "a head for each lambda"
    assert head.copies == 1 and head.dealer_copies == (2 if kind == "all-parties" else 0)
    assert noise.kind == ("all-parties" if kind == "all-parties" else "dealer")
    options = RunOptions.of({"dataset": str(tmp_path / "own.toml"), "card": str(tmp_path / "card.toml"), **OPTIONS})
    plan = gradient_mode(options.training.mode).heads(options, options.schema(2))
    assert plan is not None and noise.radius == plan.radius
    assert head.sensitivity == pytest.approx(2 * plan.slope * plan.radius)
    assert head.curvature >= plan.bend * plan.radius**2 / noise.ridge * (1 - 1e-12)


def test_baselines_are_charged_for_the_noise_that_they_are_drawn_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two more heads in the same budget, each with `BASELINE_NOISE` times the noise; left out, they would be free."""
    first, second = charged_and_drawn(tmp_path, monkeypatch, baselines=True)
    assert first == second
    events, noise = first
    assert noise.baselines is not None
    assert [(e.name, e.count) for e in events] == [
        *(("head", 1), ("head output", 1)),
        *(("head of baselines", 2), ("head output of baselines", 2)),
    ]
    assert (events[2].sigma, events[3].sigma) == (noise.baselines.sigma, noise.baselines.output)
    assert noise.baselines.sigma == pytest.approx(BASELINE_NOISE * noise.sigma, rel=1e-5)
    account = read_account(tmp_path / "sccvfl-ledgers" / "party-0" / "ledger.jsonl")
    spent, delta, cap = account.events, account.terms.delta, account.terms.epsilon
    assert 0.999 * cap < epsilon_of(spent, delta) <= cap
    assert epsilon_of([e for e in spent if "baselines" not in e.name], delta) < 0.95 * cap


def test_baselines_draw_noise_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three heads, each with one fresh vector in its objective and one on its weights, of the charged deviations."""
    honest, drawn = second_order.noise_of_heads, list[tuple[float, tuple[int, int], bool]]()

    def noise_of_heads(session: Any, kind: Any, sigma: float, shape: tuple[int, int], bits: int) -> Any:
        if session.rank == 0:
            drawn.append((sigma, shape, bits == second_order.NOISE_BITS))
        return honest(session, kind, sigma, shape, bits)

    monkeypatch.setattr(second_order, "noise_of_heads", noise_of_heads)
    (_, noise), _ = charged_and_drawn(tmp_path, monkeypatch, baselines=True)
    other = noise.baselines
    assert other is not None and {shape[1] for _, shape, _ in drawn} == {1}
    objective, output = ([sigma for sigma, _, of_gradient in drawn if of_gradient == kind] for kind in (True, False))
    records = noise.sigma / objective[0]
    assert 100 < records < 400
    assert objective == pytest.approx([one.sigma / records for one in (noise, other, other)], rel=1e-12)
    assert output == [noise.output, other.output, other.output]


def test_a_run_with_made_up_noise_stops_before_anything_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tells(monkeypatch, 1e6)
    options = {"dataset": str(write_data(tmp_path, people(400, seed=5))), "card": str(tmp_path / "card.toml")}
    with stopping("party 0 plans with noise that no run has"):
        run_two(TrainJob, tmp_path / "run", {**options, **OPTIONS})
    assert not [line for rank in range(2) for line in ledger_lines(tmp_path, rank) if line["kind"] == "charge"]
