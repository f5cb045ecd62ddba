"""What a party infers of s from its own columns and noisy tables: posteriors of groups, and groups drawn from them.

This is post-processing of what was released to the party: it costs no budget and needs nobody's s.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secure_sccvfl.data.layout import Layout
from secure_sccvfl.discovery.scores import probabilities


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
