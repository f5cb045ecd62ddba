"""Encoded counterfactuals: each party makes them locally, for every group a record may be in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.party import Blocks, Party
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.models.encoders import Encoder, shortened
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.policy.roles import Roles


def public_targets(rows: int, groups: int, seed: int, draw: int) -> np.ndarray:
    """Target group for every row and hypothesised source (rows x groups), the same at every party."""
    rng = stream(seed, "targets", draw)
    step = rng.integers(1, groups, size=(rows, groups))
    return (np.arange(groups)[None, :] + step) % groups


@dataclass(eq=False, repr=False)
class EncodedCounterfactuals:
    """Counterfactuals of one part: [draw][hypothesised group] -> encoded displacement per party, made on demand.

    It keeps, per party, the largest mean square of each column over groups: the owner's curvature bound.
    encodings: the parties' unedited records, by the same encoders. radii: longest displacements.
    """

    parties: Sequence[Party]
    groups: int
    generators: Mapping[int, Generator]
    encoders: Mapping[int, Encoder]
    encodings: Blocks
    draws: int
    seed: int
    radii: Mapping[int, float] | None = None

    def __post_init__(self) -> None:
        self.energy = {rank: np.zeros(block.shape[1]) for rank, block in self.encodings.items()}

    def __iter__(self) -> Iterator[Iterator[Blocks]]:
        for draw in range(self.draws):
            targets = public_targets(len(self.parties[0].inputs), self.groups, self.seed, draw)
            yield self._draw(draw, targets)

    def to_other_groups(self) -> Iterator[Blocks]:
        """One long draw: all records in every draw moved to the next group of the list, then to the one after it."""
        groups, rows = np.arange(self.groups), len(self.parties[0].inputs)
        return joined(
            [
                self._draw(draw, np.tile((groups + step) % self.groups, (rows, 1)))
                for step in range(1, self.groups)
                for draw in range(self.draws)
            ]
        )

    def _draw(self, draw: int, targets: np.ndarray) -> Iterator[Blocks]:
        for source in range(self.groups):
            blocks = {}
            for party in self.parties:
                edited = self.generators[party.rank](party.inputs, source, targets[:, source], draw)
                delta = party.cleared(self.displacement(party, edited, source, targets[:, source]))
                if self.radii is not None:
                    delta = shortened(delta, self.radii[party.rank])
                self.energy[party.rank] = np.maximum(self.energy[party.rank], (delta**2).mean(axis=0))
                blocks[party.rank] = delta
            yield blocks

    def displacement(self, party: Party, edited: np.ndarray, source: int, target: np.ndarray) -> np.ndarray:
        """Change of a party's encoding by a counterfactual from the hypothesised group to the target of each row."""
        return self.encoders[party.rank](edited) - self.encodings[party.rank]


def joined(groups: Sequence[Iterator[Blocks]]) -> Iterator[Blocks]:
    """All draws concatenated into one long draw."""
    for blocks in zip(*groups, strict=True):
        yield {rank: np.concatenate([one[rank] for one in blocks]) for rank in blocks[0]}


def below_each_other(counterfactuals: Sequence[EncodedCounterfactuals]) -> Iterator[Iterator[Blocks]]:
    """Counterfactuals of several generators, concatenated as those of one long part."""
    for draw in zip(*counterfactuals, strict=True):
        yield joined(draw)


@dataclass(frozen=True)
class ValidityTerms:
    """Forbidden changes by a counterfactual, and its size, per record and group; summed over features.

    identity: change of features that must not change. support: how far edited values leave the public range. size:
    change of the edited features: the mediators, and the proxies if a card has them edited.
    """

    identity: float = 0.0
    support: float = 0.0
    size: float = 0.0

    def __add__(self, other: ValidityTerms) -> ValidityTerms:
        return ValidityTerms(self.identity + other.identity, self.support + other.support, self.size + other.size)


def validity(
    parties: Sequence[Party], generators: Mapping[int, Generator], roles: Roles, groups: int
) -> ValidityTerms:
    """Validity terms of these parties' generators, averaged over records and source groups. Party-local."""
    total = ValidityTerms()
    for party in parties:
        mine = np.isin(np.arange(party.layout.width), party.layout.columns(roles.edited))
        for source in range(groups):
            target = np.full(len(party.inputs), (source + 1) % groups)
            edited = generators[party.rank](party.inputs, source, target, 0)
            moved = np.abs(edited - party.inputs).mean(axis=0)
            outside = np.abs(edited - np.clip(edited, 0.0, 1.0)).mean(axis=0)
            part = (moved[~mine].sum(), outside.sum(), moved[mine].sum())
            total = total + ValidityTerms(*(float(v) / groups for v in part))
    return total


def movement(
    parties: Sequence[Party], generators: Mapping[int, Generator], roles: Roles, groups: int
) -> tuple[dict[str, float], dict[str, float]]:
    """One counterfactual for every source group: how far each fixed and each edited feature moved. Party-local."""
    fixed: dict[str, float] = {}
    edited: dict[str, float] = {}
    for party in parties:
        for source in range(groups):
            target = np.full(len(party.inputs), (source + 1) % groups)
            moved = np.abs(generators[party.rank](party.inputs, source, target, 0) - party.inputs)
            for block in party.layout.blocks:
                name = block.feature.name
                far = float(moved[:, block.columns].max())
                where = edited if name in roles.edited else fixed
                where[name] = max(where.get(name, 0.0), far)
    return fixed, edited
