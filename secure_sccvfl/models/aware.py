"""Encodings that use s: for every group that a record may be in, its owner makes the encoding locally.

Before: a party holds its columns and its own noisy tables by group, and never s per record. For a hypothesised
group g it subtracts from its mediators the mean of group g minus the pooled mean (by its shrunken table).
It appends the same columns times the centred one-hot of g, so that the head may weigh a mediator differently in each
group. The engine selects the encoding of the true group under MPC. A party without mediators has the same encoding
for every group.

A record moved to another group is encoded as one of that group: s moves along with its mediators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.party import Blocks, Party
from secure_sccvfl.discovery.noisy_tables import NoisyTables
from secure_sccvfl.models.counterfactuals import EncodedCounterfactuals
from secure_sccvfl.models.encoders import Encoder, PlainEncoder, plain_columns, public_square, shortened
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.models.table_generator import mean_encoding, shrunken
from secure_sccvfl.policy.roles import Roles


@dataclass(frozen=True)
class AwareEncoder:
    """Party step, local: the encoding of rows as members of given groups.

    offsets: mean encoding of each group minus the pooled one (groups x plain columns), 0 outside
    mediators. shares: of the groups among all records. mediators: their plain columns.
    """

    plain: PlainEncoder
    offsets: np.ndarray
    shares: np.ndarray
    mediators: np.ndarray
    radius: float = float("inf")
    """Rows are scaled to this length if they are longer; infinite without a private head."""

    def __post_init__(self) -> None:
        if self.offsets.shape != (len(self.shares), self.plain.columns):
            raise ValueError(f"offsets {self.offsets.shape} do not fit {len(self.shares)} groups")

    @property
    def groups(self) -> int:
        return len(self.shares)

    @property
    def columns(self) -> int:
        return self.plain.columns + (self.groups - 1) * len(self.mediators)

    def __call__(self, inputs: np.ndarray, groups: int | np.ndarray) -> np.ndarray:
        """Encodings of these rows; `groups` is one hypothesised group, or one for each row."""
        codes = np.broadcast_to(np.asarray(groups), len(inputs))
        base = self.plain(inputs) - self.offsets[codes]
        member = np.eye(self.groups)[codes] - self.shares
        moved = base[:, self.mediators]
        rows = np.hstack([base, *(moved * member[:, [g]] for g in range(1, self.groups))])
        return rows if np.isinf(self.radius) else shortened(rows, self.radius)

    def block(self, plain: np.ndarray, here: slice, group: int) -> np.ndarray:
        """The columns that one mediator reaches, from its plain columns `here`, as a member of a group."""
        base = plain - self.plain.mean[here] - self.offsets[group, here]
        member = np.eye(self.groups)[group] - self.shares
        return np.hstack([base, *(base * member[g] for g in range(1, self.groups))])

    def block_columns(self, here: slice) -> np.ndarray:
        """The indices of these columns."""
        first = int(np.searchsorted(self.mediators, here.start))
        mediator_numbers = np.arange(first, first + here.stop - here.start)
        more = [self.plain.columns + g * len(self.mediators) + mediator_numbers for g in range(self.groups - 1)]
        return np.concatenate([np.arange(here.start, here.stop), *more])


def aware_radius(layout: Layout, roles: Roles) -> float:
    """A public bound on the length of aware rows: mediators count twice, since their columns come again by group."""
    squares = [public_square(b) * (2 if roles.of[b.feature.name] == "M" else 1) for b in layout.blocks]
    return float(np.sqrt(sum(squares)))


def aware_columns(layout: Layout, roles: Roles, groups: int) -> int:
    """Number of columns of the aware encoding of a record, by the public dictionary and the roles."""
    widths = {block.feature.name: plain_columns(block) for block in layout.blocks}
    return sum(width * (groups if roles.of[name] == "M" else 1) for name, width in widths.items())


def make_aware(
    layout: Layout, encoder: Encoder, noisy: NoisyTables, roles: Roles, private: bool = False
) -> AwareEncoder:
    """Party step, local: an aware encoder from the released tables of its mediators.

    private: rows are scaled to `aware_radius`.
    """
    if not isinstance(encoder, PlainEncoder):
        raise TypeError(f"aware encodings need the plain encoder, not {type(encoder).__name__}")
    tables = {name: noisy.tables[name] for name in layout.names if name in noisy.tables} or noisy.tables
    sizes = np.maximum(np.mean([table.sum(axis=0) for table in tables.values()], axis=0), 1.0)
    shares = sizes / sizes.sum()
    offsets: list[np.ndarray] = []
    mediators: list[int] = []
    at = 0
    for block in layout.blocks:
        name, width = block.feature.name, plain_columns(block)
        if roles.of[name] == "M":
            distributions = shrunken(noisy.tables[name], sizes, noisy.deviation, noisy.structure)
            means = np.stack([mean_encoding(block, p) for p in distributions.T])
            offsets.append(means - shares @ means)
            mediators += range(at, at + width)
        else:
            offsets.append(np.zeros((len(sizes), width)))
        at += width
    radius = aware_radius(layout, roles) if private else np.inf
    return AwareEncoder(encoder, np.hstack(offsets), shares, np.array(mediators, int), radius)


AwareEncoders = Mapping[int, AwareEncoder]
"""By the rank of the party."""


def hypotheses(encoders: AwareEncoders, parties: Sequence[Party]) -> Iterator[Blocks]:
    """[hypothesised group] -> encodings of these parties' records, made on demand."""
    for group in range(encoders[parties[0].rank].groups):
        yield {p.rank: p.cleared(encoders[p.rank](p.inputs, group)) for p in parties}


class AwareCounterfactuals(EncodedCounterfactuals):
    """Counterfactuals of one part, encoded with the target group instead of the hypothesised one."""

    def __init__(
        self,
        parties: Sequence[Party],
        groups: int,
        generators: Mapping[int, Generator],
        encoders: AwareEncoders,
        draws: int,
        seed: int,
    ) -> None:
        plain = {p.rank: np.zeros((0, encoders[p.rank].columns)) for p in parties}
        super().__init__(parties, groups, generators, {}, plain, draws, seed)
        self.aware = encoders

    def displacement(self, party: Party, edited: np.ndarray, source: int, target: np.ndarray) -> np.ndarray:
        encoder = self.aware[party.rank]
        return encoder(edited, target) - encoder(party.inputs, source)
