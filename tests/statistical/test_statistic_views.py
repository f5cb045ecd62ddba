"""What parties and dealer see of secret statistics is the same whatever the secrets are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from secure_sccvfl.protocols.dealing.randomness import Draw
from secure_sccvfl.protocols.operations import group_table as protocol
from tests.support.chance import uniform
from tests.support.discovery import Consortium
from tests.support.views import Spy, all_bytes, distinguishable


def views(secret: int) -> Spy:
    """What the parties see, party 1 being the holder: all records in one bin and group, except for one."""
    group, spy = Consortium(rows=4000, holders=(1,), counts=(2,)), Spy()
    group.codes[0][:] = secret
    group.codes[0][:2] = [0, 1]
    for name, block in group.bins.items():
        group.bins[name] = np.eye(block.shape[1])[np.full(group.rows, secret)]
    group.run(
        lambda session, statistics, budget: statistics.projected(
            group.release_counts(session, statistics), 1, group.counts
        ),
        wrap=spy.wrap,
    )
    return spy


def tells() -> bool:
    """Whether the views of two very different secrets, at an owner or the holder, can be told apart or from noise."""
    seen = [views(secret).kept for secret in (0, 1)]
    return any(distinguishable(*(all_bytes(kept[rank, "group table"]) for kept in seen)) for rank in (0, 1))


@pytest.mark.chance(1e-9)  # six checks
def test_masked_blocks_reveal_nothing():
    assert not tells()


def test_a_missing_mask_is_noticed(monkeypatch: pytest.MonkeyPatch):
    honest = Draw.elements

    def flat(self: Draw, shape: tuple[int, ...], dtype: Any = np.int64) -> Any:
        words = honest(self, shape, dtype)
        return np.zeros_like(words) if np.dtype(dtype) == np.int32 and shape[0] == 4000 else words

    monkeypatch.setattr(Draw, "elements", flat)
    assert tells()


def test_the_dealer_receives_the_same_whatever_the_data_are():
    first, second = (views(secret).messages for secret in (0, 1))
    assert first == second and first[0] == first[1] == first[2] and len(first[0]) > 3


@pytest.mark.chance(1e-9)  # one check
def test_a_share_of_the_table_alone_is_uniform(monkeypatch: pytest.MonkeyPatch):
    kept: list[np.ndarray] = []
    honest = protocol.lifted

    def keeping(table: np.ndarray) -> Any:
        kept.append(table.copy())
        return honest(table)

    monkeypatch.setattr(protocol, "lifted", keeping)
    wide = {0: {"a": 150}, 1: {"b": 150}, 2: {"c": 150}}
    group = Consortium(rows=40, columns=wide, holders=(1,), counts=(4,))
    group.run(lambda session, statistics, budget: group.release_counts(session, statistics))
    shares = np.concatenate([table[300:].reshape(-1) for table in kept])  # party 2's columns, at every party
    assert uniform(shares.view(np.uint8))
