"""The `cvae` generator of a sealed run: a conditional VAE that a party can train without s.

The party draws a pseudo group for each of its own records from the naive Bayes posterior of its noisy tables. That
is post-processing of what was released to it: it costs no budget and needs nobody's s. The edits are softer than
with the true s, since one party's columns say little about a record's group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.discovery.scores import probabilities
from secure_sccvfl.models.cvae import Cvae, CvaeConfig
from secure_sccvfl.models.generators import GeneratorConfig, GeneratorKind, Material


def group_shares(layout: Layout, tables: Mapping[str, np.ndarray]) -> np.ndarray:
    """Party step, local: the share of each group, by the noisy table of the party's first feature."""
    first = np.clip(tables[layout.names[0]], 0.5, None)
    return np.asarray(first.sum(axis=0) / first.sum())


def group_posterior(layout: Layout, inputs: np.ndarray, tables: Mapping[str, np.ndarray]) -> np.ndarray:
    """Party step, local: p(s | own columns) of every record under the noisy tables, rows x groups."""
    score = np.tile(np.log(group_shares(layout, tables)), (len(inputs), 1))
    for block in layout.blocks:
        table = probabilities(tables[block.feature.name], 0.5)
        score += layout.bin_one_hot(block, inputs) @ np.log(table)
    share = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(share / share.sum(axis=1, keepdims=True))


def pseudo_groups(
    layout: Layout, inputs: np.ndarray, tables: Mapping[str, np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    """Party step, local: a group for every record, drawn from `group_posterior`."""
    share = group_posterior(layout, inputs, tables)
    return (rng.random((len(inputs), 1)) > share.cumsum(axis=1)).sum(axis=1).clip(0, share.shape[1] - 1)


@dataclass(frozen=True)
class CvaeGenerator:
    """Edits by dec(z, s') - dec(z, s); without mediators it copies."""

    model: Cvae | None
    scale: float

    def __call__(self, inputs: np.ndarray, source: int, target: np.ndarray, draw: int) -> np.ndarray:
        if self.model is None:
            return inputs.copy()
        return self.model.edit(inputs, np.full(len(inputs), source), target, self.scale)


def fit_cvae_generator(material: Material, config: GeneratorConfig, seed: int) -> CvaeGenerator:
    """Party step, local: train on the party's own rows and pseudo groups."""
    if not material.edited:
        return CvaeGenerator(None, config.scale)
    layout, inputs, tables = material.layout, material.inputs, material.tables
    groups = next(iter(tables.values())).shape[1]
    codes = pseudo_groups(layout, inputs, tables, stream(seed, "pseudo", *layout.names))
    names = tuple(n for n in layout.names if n in material.edited)
    model = Cvae(layout, names, groups, CvaeConfig(epochs=120))
    return CvaeGenerator(model.fit(inputs, codes, torch_seed(seed, "cvae", *layout.names)), config.scale)


KIND = GeneratorKind(fit_cvae_generator)
