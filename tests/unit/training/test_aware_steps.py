"""Private heads of mode `aware` reach their optimum on the data of the first run."""

from __future__ import annotations

import pytest

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.evaluation.methods import default_run, train_plainly
from secure_sccvfl.policy.card import named_card
from secure_sccvfl.training.trainer import AwareTrainer


def train_aware(seed: int) -> None:
    data = load("acs12-gender")
    config, budget = default_run(data)
    card = named_card("shipped", "acs12-gender")
    split, parties = make_split(data, "iid", seed), make_parties(data)
    train_plainly(data, split, parties, config, budget, seed, card=card, driver=AwareTrainer)


def test_a_private_head_of_mode_aware_settles() -> None:
    train_aware(640)


def test_with_the_steps_of_mode_sealed_it_does_not_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AwareTrainer, "further_steps", 0)
    with pytest.raises(FloatingPointError, match="training has not settled"):
        train_aware(640)
