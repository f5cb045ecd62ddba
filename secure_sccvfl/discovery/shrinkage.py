"""What is left of a difference between groups once noise is allowed for. Post-processing of noisy tables.

A table of a few hundred records shows differences between groups that are sampling and release noise alone. Each
group's distribution is therefore shrunk towards the pooled one (positive-part James-Stein), by as much as its known
noise explains. With bins k, group g of n_g records out of n, its share pi_g of all records, its distribution p_g, the
pooled distribution q, G groups and the deviation sigma of the release:

    v_k    = q_k (1 - q_k) (1 - pi_g) / n_g + sigma^2 [(1 - pi_g)^2 / n_g^2 + (G - 1) / n^2]
    chi_g  = (K - 1) / K * sum_k (p_gk - q_k)^2 / v_k
    p~_g   = q + max(0, 1 - (K - 1) / chi_g) (p_g - q)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

TINY = 1e-12


def group_sizes(tables: Iterable[np.ndarray]) -> np.ndarray:
    """Records of each group: every table of an owner has the same ones, so their noisy sums are averaged."""
    sizes: np.ndarray = np.mean([table.sum(axis=0) for table in tables], axis=0)
    return sizes


@dataclass(frozen=True)
class Shrunken:
    """Distributions of the bins in each group (... x bins x groups) between what was seen and the pooled one.

    `pooled`: ... x bins. `kept`: the share of each group's difference that noise does not explain (... x groups).
    `variance`: of what was seen in each cell.
    """

    groups: np.ndarray
    pooled: np.ndarray
    shares: np.ndarray
    kept: np.ndarray
    variance: np.ndarray


def shrink(tables: np.ndarray, sizes: np.ndarray, deviation: float) -> Shrunken:
    """Shrink one table or a stack of them. `sizes`: records of each group. `deviation`: of the noise in a cell."""
    bins, known = tables.shape[-2], np.maximum(sizes, 1.0)
    total = known.sum(axis=-1, keepdims=True)
    shares = known / total
    own = tables / known[..., None, :]
    pooled = (own * shares[..., None, :]).sum(axis=-1)
    spread = np.clip(pooled * (1 - pooled), 0.0, None)
    noise = deviation**2 * (((1 - shares) / known) ** 2 + (known.shape[-1] - 1) / total**2)
    variance = spread[..., :, None] * ((1 - shares) / known)[..., None, :] + noise[..., None, :]
    beyond = own - pooled[..., :, None]
    chi = (bins - 1) / bins * (beyond**2 / np.maximum(variance, TINY)).sum(axis=-2)
    kept = np.clip(1 - (bins - 1) / np.maximum(chi, TINY), 0.0, None)
    found = proper(pooled[..., :, None] + kept[..., None, :] * beyond)
    return Shrunken(found, proper(pooled[..., :, None])[..., 0], shares, kept, variance)


def shrunken(table: np.ndarray, sizes: np.ndarray, deviation: float) -> np.ndarray:
    """The shrunken distributions alone (bins x groups)."""
    return shrink(table, sizes, deviation).groups


def proper(shares: np.ndarray) -> np.ndarray:
    """Shares of bins (... x bins x groups) without negative ones, that sum to 1 in each group."""
    found = np.clip(shares, 0.0, None)
    return found / np.maximum(found.sum(axis=-2, keepdims=True), TINY)
