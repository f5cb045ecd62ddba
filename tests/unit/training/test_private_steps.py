"""Private heads reach their optimum in mode `aware`, and where s has more groups than two."""

from __future__ import annotations

import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.methods import default_run, train_plainly
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.training import trainer
from secure_sccvfl.training.trainer import AwareTrainer, Trainer


def train_private(name: str, seed: int, driver: type[Trainer] = Trainer) -> None:
    data = load(name)
    config, budget = default_run(data)
    card = named_card("shipped", name)
    split, parties = make_split(data, "iid", seed), make_parties(data)
    train_plainly(data, split, parties, config, budget, seed, card=card, driver=driver)


def test_a_private_head_of_mode_aware_settles() -> None:
    train_private("acs12-gender", 640, AwareTrainer)


def test_with_the_steps_of_mode_sealed_it_does_not_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AwareTrainer, "further_steps", 0)
    with pytest.raises(FloatingPointError, match="training has not settled"):
        train_private("acs12-gender", 640, AwareTrainer)


@pytest.mark.filterwarnings("ignore::secure_sccvfl.data.dataset.DataWarning")
def test_a_private_head_of_five_groups_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small groups have large displacements, which scale the other curvature of their columns down."""
    train_private("mobility", 5000)
    least = trainer.least_curvature
    monkeypatch.setattr(trainer, "least_curvature", lambda *given: 4 * least(*given))
    with pytest.raises(FloatingPointError, match="training has not settled"):
        train_private("mobility", 5000)
