"""Common judges: one counterfactual model per split, fitted on records that training never used.

Every method is scored on the same edited test records, so a method can not look stable by editing little.
The harness runs judges; a consortium that can not pool records gets its own generator's numbers instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import ot

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.layout import Layout
from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.model.cvae import Cvae, CvaeConfig

JudgeKind = Literal["ot", "cvae"]
JUDGES: tuple[JudgeKind, ...] = ("ot", "cvae")
# A pair should agree on what is not edited where it can: those columns count a fifth of a mediator.
CONTEXT_WEIGHT = 0.2
OT_ROWS = 1500
MIN_GROUP = 5


class JudgeError(ValueError):
    """The judge was given records it must not see, or nothing to edit."""


@dataclass(frozen=True)
class Verdict:
    """Edited records: row `source[i]` of the held-out part becomes `units[i]`, with this weight."""

    judge: str
    source: np.ndarray
    units: np.ndarray
    weight: np.ndarray
    target: np.ndarray


def _targets(codes: np.ndarray, usable: np.ndarray, seed: int) -> np.ndarray:
    """Another group for every record, drawn evenly from the groups large enough; -1 when there is none."""
    rng = stream(seed, "judge-targets")
    order = rng.permuted(np.tile(usable, (len(codes), 1)), axis=1)
    first, second = order[:, 0], order[:, min(1, order.shape[1] - 1)]
    target = np.where(first != codes, first, second)
    return np.where(target == codes, -1, target)


def _transport(units: np.ndarray, codes: np.ndarray, layout: Layout, columns: np.ndarray, seed: int) -> Verdict:
    usable = np.flatnonzero(np.bincount(codes) >= MIN_GROUP)
    target = _targets(codes, usable, seed)
    weight = np.full(layout.width, np.sqrt(CONTEXT_WEIGHT))
    weight[columns] = 1.0
    for block in layout.blocks:
        if block.one_hot:
            weight[block.columns] /= np.sqrt(2.0)
    rng = stream(seed, "judge-rows")
    sources, mates, shares = [], [], []
    members = {int(g): rng.permutation(np.flatnonzero(codes == g))[:OT_ROWS] for g in np.unique(codes)}
    for a in members:
        for b in usable.tolist():
            if a == b or not (target[members[a]] == b).any():
                continue
            rows, others = members[a], members[b]
            cost = ot.dist(units[rows] * weight, units[others] * weight)
            plan = ot.emd(np.full(len(rows), 1 / len(rows)), np.full(len(others), 1 / len(others)), cost)
            i, j = np.nonzero(plan > 1e-12)
            wanted = target[rows[i]] == b
            sources.append(rows[i][wanted])
            mates.append(others[j][wanted])
            shares.append(plan[i, j][wanted] * len(rows))
    if not sources:
        raise JudgeError(f"no two groups have {MIN_GROUP} held-out records each")
    source, mate, share = (np.concatenate(v) for v in (sources, mates, shares))
    edited = units[source].copy()
    edited[:, columns] = units[mate][:, columns]
    return Verdict("ot", source, edited, share, codes[mate])


def _autoencoded(
    units: np.ndarray, codes: np.ndarray, layout: Layout, edited: tuple[str, ...], groups: int, seed: int
) -> Verdict:
    usable = np.flatnonzero(np.bincount(codes) >= MIN_GROUP)
    target = _targets(codes, usable, seed)
    model = Cvae(layout, edited, groups, CvaeConfig()).fit(units, codes, torch_seed(seed, "judge", "cvae"))
    source = np.flatnonzero(target >= 0)
    moved = model.edit(units[source], codes[source], target[source])
    return Verdict("cvae", source, moved, np.ones(len(source)), target[source])


def judge(
    kind: JudgeKind,
    held_out: Dataset,
    used_ids: np.ndarray,
    edited: tuple[str, ...],
    seed: int,
    attribute: int = 0,
) -> Verdict:
    """Edited copies of the held-out records. Raises when any of them was used in training.

    `ot`: exact optimal transport between the groups' records; a record takes the mediators of the records
    it is coupled with, weighted by the plan. `cvae`: a conditional VAE with MMD. Both change `edited` only.
    """
    seen = np.intersect1d(held_out.ids, used_ids)
    if len(seen):
        raise JudgeError(f"the judge would see {len(seen)} training records, such as {seen[0]!r}")
    if not edited:
        raise JudgeError("no feature to edit")
    features = tuple(sorted(held_out.features, key=lambda f: f.name))
    layout = Layout.of(features)
    order = [held_out.features.index(f) for f in features]
    units = layout.encode(held_out.values[:, order])
    protected = held_out.protected[attribute]
    if not (np.bincount(protected.codes) >= MIN_GROUP).any():
        raise JudgeError(f"no group has {MIN_GROUP} held-out records")
    if kind == "ot":
        verdict = _transport(units, protected.codes, layout, layout.columns(edited), seed)
    elif kind == "cvae":
        verdict = _autoencoded(units, protected.codes, layout, edited, len(protected.groups), seed)
    else:
        raise JudgeError(f"unknown judge {kind!r}; use ot or cvae")
    back = np.concatenate([layout.columns([f.name]) for f in held_out.features])
    return Verdict(verdict.judge, verdict.source, verdict.units[:, back], verdict.weight, verdict.target)
