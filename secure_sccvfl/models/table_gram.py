"""The expected Gram matrix of counterfactuals, from released noisy tables only.

The consistency penalty of a head w is the mean squared shift of the logit under counterfactuals, w^T G w. Taking G
over the training records makes the head an exact function of s of each of them. Here G is the expectation under the
released tables instead: given the group, mediators are independent and each follows its own noisy table. So G is
post-processing of charged releases. For a counterfactual from group g to group h let d_j be the displacement of
mediator j, m_j its mean and C_j its second moment under the table of j. With the share pi_g of group g and G groups,

    G = sum over g and h != g of pi_g / (G - 1) [ m m^T, with the block of each mediator replaced by C_j ].

Each party computes its own part locally, by enumerating bins, values within a bin, and random numbers of the
generator: a row sqrt(pi_g / (G - 1)) m for each pair of groups (`vectors`), and the blocks C_j - m_j m_j^T
(`within`). The whole matrix is the sum of outer products of the joined rows, plus the blocks. It is positive
semidefinite: C_j - m_j m_j^T is a covariance. Where parties estimate the shares of groups differently, each uses its
own: the product of two roots is their geometric mean.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from secure_sccvfl.data.layout import Block, Layout, unit_cuts
from secure_sccvfl.data.randomness import stream
from secure_sccvfl.discovery.scores import group_sizes
from secure_sccvfl.models.aware import AwareEncoder
from secure_sccvfl.models.encoders import FeatureEncoder, PlainEncoder, plain_block, plain_columns
from secure_sccvfl.models.generators import Generator
from secure_sccvfl.models.missing import move_chances
from secure_sccvfl.models.table_generator import TableGenerator

POINTS = 9
"""Values within a bin of a number."""
UNIFORMS = 41
"""Random numbers of a generator for each value. A number that may be missing has so many on each side of the chance
that it moves between missing and present, so that the weight of these moves is exact."""
DRAWN = 2000
"""Records drawn from tables for each group, where columns mix features."""


@dataclass(frozen=True)
class TableGram:
    """One party's part of the expected Gram matrix, over its own columns.

    vectors: weighted mean displacements (pairs of groups x columns). within: covariances of the displacements of each
    mediator (columns x columns).
    """

    vectors: np.ndarray
    within: np.ndarray

    @property
    def energy(self) -> np.ndarray:
        """The diagonal of this party's part of the matrix."""
        return np.asarray((self.vectors**2).sum(axis=0) + np.diag(self.within))

    def with_net_penalty(self, weight: float) -> TableGram:
        """The same with this additional weight on expected shifts: the outer products of the joined rows.

        A row of all parties times the head is the expected shift of the logit from one group to another. It decides
        the net flips.
        """
        return replace(self, vectors=self.vectors * np.sqrt(1.0 + weight))


@dataclass(frozen=True)
class _Values:
    """Enumerated values of one feature: rows in input space, their bins, and how many values each bin has."""

    rows: np.ndarray
    bins: np.ndarray
    each: np.ndarray


def table_generator(generator: Generator) -> TableGenerator:
    """The generator, if it follows from tables only; ValueError for one that is fitted to records."""
    if not isinstance(generator, TableGenerator):
        raise ValueError(
            "this generator is fitted to training records, so counterfactuals do not follow from released tables: "
            "use generator minimal, or consistency_from = records on public data"
        )
    return generator


def table_gram(
    layout: Layout, generator: Generator, encoder: PlainEncoder | AwareEncoder, edited: Collection[str], groups: int
) -> TableGram:
    """Party step, local: this party's part of the expected Gram matrix of changes of these features."""
    edit_generator = table_generator(generator)
    gram = TableGram(np.zeros((groups * (groups - 1), encoder.columns)), np.zeros((encoder.columns,) * 2))
    if not set(layout.names) & set(edited):
        return gram
    weights, at = _weights(edit_generator, groups), 0
    for block in layout.blocks:
        here = slice(at, at + plain_columns(block))
        at = here.stop
        if block.feature.name not in edited:
            continue
        columns, values = _columns_of(encoder, here), _enumerated(block)
        for number, ((source, target), weight) in enumerate(weights.items()):
            before, after, likely = _edited(edit_generator, block, values, source, target)
            moved = _encoded(encoder, block, here, after, target) - _encoded(encoder, block, here, before, source)
            mean = likely @ moved
            gram.vectors[number, columns] = np.sqrt(weight) * mean
            spread = (moved * likely[:, None]).T @ moved - np.outer(mean, mean)
            gram.within[np.ix_(columns, columns)] += weight * spread
    return gram


def sampled_gram(
    layout: Layout, generator: Generator, encoder: FeatureEncoder, edited: Collection[str], groups: int, seed: int
) -> TableGram:
    """The same for an encoder whose columns mix features: over records drawn from the party's own noisy tables.

    Given the group, features are independent and each follows its table, so no training record enters.
    """
    edit_generator = table_generator(generator)
    gram = TableGram(np.zeros((groups * (groups - 1), encoder.columns)), np.zeros((encoder.columns,) * 2))
    for number, ((source, target), weight) in enumerate(_weights(edit_generator, groups).items()):
        rows = _drawn(layout, edit_generator, source, stream(seed, "records of tables", source, *layout.names))
        moved = edit_generator(rows, source, np.full(len(rows), target), 0)
        shift = (encoder(moved) - encoder(rows)) if edited else np.zeros((len(rows), encoder.columns))
        mean = shift.mean(axis=0)
        gram.vectors[number] = np.sqrt(weight) * mean
        gram.within[:] += weight * (shift.T @ shift / len(rows) - np.outer(mean, mean))
    return gram


def _weights(edit_generator: TableGenerator, groups: int) -> dict[tuple[int, int], float]:
    """pi_g / (G - 1) of every pair of groups."""
    sizes = np.maximum(group_sizes(edit_generator.material.own_tables), 1.0)
    return {(g, h): sizes[g] / sizes.sum() / (groups - 1) for g, h in permutations(range(groups), 2)}


def _drawn(layout: Layout, edit_generator: TableGenerator, group: int, rng: np.random.Generator) -> np.ndarray:
    """Records in input space, drawn from the tables of one group."""
    columns = []
    for block in layout.blocks:
        values = _enumerated(block)
        likely = edit_generator.shares(block)[values.bins, group] / values.each[values.bins]
        columns.append(values.rows[rng.choice(len(likely), DRAWN, p=likely / likely.sum())])
    return np.hstack(columns)


def table_movement(layout: Layout, generator: Generator, edited: Collection[str], groups: int) -> dict[str, float]:
    """Party step, local: the mean change of each of these features under its table, in input space.

    It is 0 for a feature that does not change.
    """
    edit_generator, movements = table_generator(generator), {}
    for block in layout.blocks:
        if block.feature.name in edited:
            values = _enumerated(block)
            moved = [_edited(edit_generator, block, values, *pair) for pair in permutations(range(groups), 2)]
            sizes = [(likely[:, None] * np.abs(after - before)).sum() for before, after, likely in moved]
            movements[block.feature.name] = float(np.mean(sizes))
    return movements


def _enumerated(block: Block) -> _Values:
    if block.one_hot:
        return _Values(np.eye(block.width), np.arange(block.width), np.ones(block.width))
    cuts = unit_cuts(block.feature)
    steps, inside = len(cuts) - 1, (np.arange(POINTS) + 0.5) / POINTS
    rows = np.zeros((steps * POINTS + block.width - 1, block.width))
    rows[: steps * POINTS, 0] = (cuts[:-1, None] + inside * np.diff(cuts)[:, None]).reshape(-1)
    rows[steps * POINTS :, 1:] = 1.0  # a missing value
    bins = np.concatenate([np.repeat(np.arange(steps), POINTS), np.arange(steps, steps + block.width - 1)])
    return _Values(rows, bins, np.bincount(bins).astype(float))


def _edited(
    edit_generator: TableGenerator, block: Block, values: _Values, source: int, target: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every value with every random number, before and after, and its probability in the source group."""
    grid = (np.arange(UNIFORMS) + 0.5) / UNIFORMS
    summary, shares = edit_generator.summary(block), edit_generator.shares(block)
    likely = shares[values.bins, source] / values.each[values.bins]
    if block.one_hot or block.width == 1:
        before = np.repeat(values.rows, UNIFORMS, axis=0)
        after = edit_generator.edit(
            block, before, summary[:, source], summary[:, target], np.tile(grid, len(values.rows))
        )
        return before, edit_generator.scaled(block, before, after), np.repeat(likely, UNIFORMS) / UNIFORMS
    chance = move_chances(values.rows[:, 1] > 0.5, summary[-1, source], summary[-1, target])[:, None]
    uniform = np.hstack([chance * grid, chance + (1 - chance) * grid])
    weight = np.repeat(np.hstack([chance, 1 - chance]), UNIFORMS, axis=1) / UNIFORMS
    before = np.repeat(values.rows, 2 * UNIFORMS, axis=0)
    after = edit_generator.edit(block, before, summary[:, source], summary[:, target], uniform.ravel())
    return before, edit_generator.scaled(block, before, after), (likely[:, None] * weight).ravel()


def _encoded(
    encoder: PlainEncoder | AwareEncoder, block: Block, here: slice, rows: np.ndarray, group: int
) -> np.ndarray:
    """Encodings of one feature, in mode `aware` as a member of a group."""
    plain = plain_block(replace(block, start=0, stop=block.width), rows)
    return encoder.block(plain, here, group) if isinstance(encoder, AwareEncoder) else plain


def _columns_of(encoder: PlainEncoder | AwareEncoder, here: slice) -> np.ndarray:
    """The columns of an encoder that one feature reaches."""
    plain = np.arange(here.start, here.stop)
    return encoder.block_columns(here) if isinstance(encoder, AwareEncoder) else plain
