"""The second judge, `cvae`: a conditional VAE with MMD, fitted on the held-out records with their true groups."""

from __future__ import annotations

import numpy as np

from secure_sccvfl.data.randomness import torch_seed
from secure_sccvfl.evaluation.counterfactual_models import Case, Counterfactuals
from secure_sccvfl.models.cvae import Cvae, CvaeConfig


def edit(case: Case) -> Counterfactuals:
    model = Cvae(case.layout, case.edited, case.groups, CvaeConfig())
    model.fit(case.inputs, case.codes, torch_seed(case.seed, "judge", "cvae"))
    source = case.movable
    moved = model.edit(case.inputs[source], case.codes[source], case.target[source])
    return Counterfactuals("cvae", source, moved, np.ones(len(source)), case.target[source])
