"""What parties and dealer see of secret statistics is the same whatever the secrets are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocols.dealing.randomness import Draw
from protocols.net.transport import Transport
from protocols.operations import group_table as protocol
from tests.support.chance import alike, uniform
from tests.support.discovery import Consortium


class Watched:
    """Keeps the masked blocks that come to one party, and what is told to the dealer."""

    def __init__(
        self, transport: Transport, blocks: dict[int, list[np.ndarray]], told: dict[int, list[bytes]]
    ) -> None:
        self._inner, self._blocks, self._told = transport, blocks, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def exchange(self, step: str, send: Any, receive: Any) -> Any:
        came = self._inner.exchange(step, send, receive)
        if step == "group table":
            self._blocks[self._inner.node] += [array for arrays in came.values() for array in arrays]
        return came

    def send_message(self, peer: int, step: str, message: bytes) -> None:
        self._told[self._inner.node].append(message)
        self._inner.send_message(peer, step, message)


def views(secret: int) -> tuple[dict[int, np.ndarray], dict[int, list[bytes]]]:
    """Bytes that the holder (1) and an owner (0) see: all records in one bin and group, but for one."""
    group = Consortium(rows=4000, holders=(1,), counts=(2,))
    group.codes[0][:] = secret
    group.codes[0][:2] = [0, 1]
    for name, block in group.bins.items():
        group.bins[name] = np.eye(block.shape[1])[np.full(group.rows, secret)]
    blocks: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}
    told: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    group.run(
        lambda session, statistics, budget: statistics.projected(group.sketch(session, statistics), 1, group.counts),
        wrap=lambda transport: Watched(transport, blocks, told),
    )
    return {
        rank: np.concatenate([np.ascontiguousarray(b).reshape(-1).view(np.uint8) for b in blocks[rank]])
        for rank in (0, 1)
    }, told


def tells(secrets: tuple[int, int] = (0, 1)) -> bool:
    """Whether the views of two very different secrets can be told apart, or from noise."""
    seen = [views(secret)[0] for secret in secrets]
    sound = [alike(*(view[rank] for view in seen)) for rank in (0, 1)]
    return not all(sound + [uniform(view[rank]) for view in seen for rank in (0, 1)])


@pytest.mark.chance(1e-9)  # six checks
def test_masked_blocks_tell_nothing():
    assert not tells()


def test_a_missing_mask_is_noticed(monkeypatch: pytest.MonkeyPatch):
    honest = Draw.words

    def flat(self: Draw, shape: tuple[int, ...], dtype: Any = np.int64) -> Any:
        words = honest(self, shape, dtype)
        return np.zeros_like(words) if np.dtype(dtype) == np.int32 and shape[0] == 4000 else words

    monkeypatch.setattr(Draw, "words", flat)
    assert tells()


def test_the_dealer_is_told_the_same_whatever_the_data_are():
    first, second = (views(secret)[1] for secret in (0, 1))
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
    group.run(lambda session, statistics, budget: group.sketch(session, statistics))
    own = np.concatenate([table[300:].reshape(-1) for table in kept])  # party 2's columns, at every party
    assert uniform(own.view(np.uint8))
