"""The first judge, `ot`: exact optimal transport between the records of the groups.

A record takes the mediators of the records that it is coupled with, weighted by the plan.
"""

from __future__ import annotations

import numpy as np
import ot

from secure_sccvfl.data.randomness import stream
from secure_sccvfl.evaluation.counterfactual_models import MIN_GROUP, Case, CounterfactualError, Counterfactuals

# A pair should agree on unedited columns where possible: those count a fifth of a mediator.
CONTEXT_WEIGHT = 0.2
OT_ROWS = 1500


def edit(case: Case) -> Counterfactuals:
    inputs, codes, target, layout = case.inputs, case.codes, case.target, case.layout
    columns = layout.columns(case.edited)
    weight = np.full(layout.width, np.sqrt(CONTEXT_WEIGHT))
    weight[columns] = 1.0
    for block in layout.blocks:
        if block.one_hot:
            weight[block.columns] /= np.sqrt(2.0)
    rng = stream(case.seed, "judge-rows")
    sources, matches, shares = [], [], []
    members = {int(g): rng.permutation(np.flatnonzero(codes == g))[:OT_ROWS] for g in np.unique(codes)}
    for a in members:
        for b in case.usable.tolist():
            if a == b or not (target[members[a]] == b).any():
                continue
            rows, others = members[a], members[b]
            cost = ot.dist(inputs[rows] * weight, inputs[others] * weight)
            plan = ot.emd(np.full(len(rows), 1 / len(rows)), np.full(len(others), 1 / len(others)), cost)
            i, j = np.nonzero(plan > 1e-12)
            wanted = target[rows[i]] == b
            sources.append(rows[i][wanted])
            matches.append(others[j][wanted])
            shares.append(plan[i, j][wanted] * len(rows))
    if not sources:
        raise CounterfactualError(f"no two groups have {MIN_GROUP} held-out records each")
    source, matched, share = (np.concatenate(v) for v in (sources, matches, shares))
    moved = inputs[source].copy()
    moved[:, columns] = inputs[matched][:, columns]
    return Counterfactuals("ot", source, moved, share, codes[matched])
