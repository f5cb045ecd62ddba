"""The models `ot` (exact optimal transport) and `cvae` (conditional VAE with MMD), fitted on held-out records.

Both change records even where nothing depends on s, so they fail the permutation baseline; they stay in the tables
for comparison.
"""

from __future__ import annotations

import numpy as np
import ot

from secure_sccvfl.data.randomness import stream, torch_seed
from secure_sccvfl.evaluation.counterfactual_models import MIN_GROUP, Case, CounterfactualError, Counterfactuals
from secure_sccvfl.models.cvae import Cvae, CvaeConfig

# A pair should agree on unedited columns where possible: those count a fifth of a mediator.
CONTEXT_WEIGHT = 0.2
OT_ROWS = 1500


def by_transport(case: Case) -> Counterfactuals:
    """A record takes the mediators of the records that it is coupled with, weighted by the plan."""
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


def by_autoencoder(case: Case) -> Counterfactuals:
    model = Cvae(case.layout, case.edited, case.groups, CvaeConfig())
    model.fit(case.inputs, case.codes, torch_seed(case.seed, "judge", "cvae"))
    source = case.movable
    moved = model.edit(case.inputs[source], case.codes[source], case.target[source])
    return Counterfactuals("cvae", source, moved, np.ones(len(source)), case.target[source])
