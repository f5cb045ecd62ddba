"""German credit for tests of the gradient modes: discovery in the clear, then a session of three parties."""

from __future__ import annotations

from functools import cache
from typing import Any

from secure_sccvfl.data.catalogue import load
from secure_sccvfl.data.party import Part
from secure_sccvfl.data.party_data import benchmark_part
from secure_sccvfl.data.splits import make_split
from secure_sccvfl.discovery.decisions import DiscoveryConfig
from secure_sccvfl.evaluation.methods import Prepared, prepare
from secure_sccvfl.protocols.records.releases import ANY, Release
from secure_sccvfl.training.config import TrainConfig

PARTIES = 3
EVERYONE = tuple(range(PARTIES))
LABEL_HOLDER, GROUP_HOLDERS = 0, (1,)


@cache
def german(seed: int = 0) -> Prepared:
    """With the roles of the score `stable`, which have more mediators: gradients tell s through edits of these."""
    data, config = load("german"), TrainConfig(discovery=DiscoveryConfig(score="stable"))
    return prepare(data, make_split(data, "iid", seed), seed, config)


def parts(ready: Prepared, rank: int) -> tuple[Part, Part, Part]:
    """Train, validation and test as one party holds them."""
    party_data = benchmark_part(ready.data, rank, "iid", ready.seed)
    return (
        party_data.part(party_data.split.train),
        party_data.part(party_data.split.validation),
        party_data.part(party_data.split.test),
    )


def generators_of(ready: Prepared, rank: int) -> dict[str, dict[int, Any]]:
    return {name: {rank: by_rank[rank]} for name, by_rank in ready.model.generators.items()}


def predictions() -> Release:
    """What the secure engine opens after a run of these modes."""
    return Release("predictions", EVERYONE, (ANY, ANY), "test", times=5)
