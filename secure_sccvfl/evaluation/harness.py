"""What a harness adds to a secure run on public benchmark data: common judges and simple baselines.

It sees the pooled data, which a consortium never does. It makes the edited test records of judges that training
never saw and hands each party its columns of them. It also trains the baselines of every table, in plaintext, with
the roles that the secure run found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from secure_sccvfl.data.dataset import Dataset
from secure_sccvfl.data.party import make_parties
from secure_sccvfl.data.splits import Split
from secure_sccvfl.discovery.plain_statistics import PlainStatistics
from secure_sccvfl.discovery.roles import Roles
from secure_sccvfl.evaluation.aware_baselines import aware
from secure_sccvfl.evaluation.baselines import drop_m, erm, logistic, majority, scc
from secure_sccvfl.evaluation.judges import HANDED_OUT, EditedRecords, JudgeError, judge
from secure_sccvfl.evaluation.metrics import evaluate
from secure_sccvfl.evaluation.prepared import Prepared
from secure_sccvfl.privacy.noise import GaussianNoise, SpendingPlan
from secure_sccvfl.training.plain import PlainEngine
from secure_sccvfl.training.trainer import TrainConfig, train

BASELINES = {"majority": majority, "logistic": logistic, "drop_m": drop_m, "erm": erm, "plaintext_scc": scc}


def edited_records(data: Dataset, split: Split, roles: Roles, seed: int) -> dict[str, EditedRecords]:
    """Edited test records of the judges that a run is scored on; none when there is nothing to edit."""
    used = data.ids[np.concatenate([split.train, split.validation])]
    try:
        return {kind: judge(kind, data.take(split.test), used, roles.named("M"), seed) for kind in HANDED_OUT}
    except JudgeError:
        return {}


def hand_out(data: Dataset, edits: dict[str, EditedRecords], folder: Path) -> None:
    """Write each party's columns of the edited records into its folder of a run.

    The holder of s gets their groups too: a model that uses s takes them from it.
    """
    parties = make_parties(data)
    cuts = np.cumsum([p.layout.width for p in parties])[:-1]
    for kind, edited in edits.items():
        for party, inputs in zip(parties, np.split(edited.inputs, cuts, axis=1), strict=True):
            path = folder / f"party-{party.rank}" / f"judge-{kind}.npz"
            arrays: dict[str, Any] = {"units": inputs, "source": edited.source, "weight": edited.weight}
            if party.name == data.protected[0].holder:
                arrays["target"] = edited.target
            np.savez(path, **arrays)


def baselines(
    data: Dataset,
    split: Split,
    roles: Roles,
    edits: dict[str, EditedRecords],
    config: TrainConfig,
    budget: SpendingPlan,
    seed: int,
    mode: str = "sealed",
) -> dict[str, dict[str, float]]:
    """Metrics of each baseline on the same test part, judges and roles. `mode`: of the run that they stand beside."""
    parties = make_parties(data)
    statistics = PlainStatistics(GaussianNoise(budget, seed))
    model = train(PlainEngine(), statistics, data, split, config, seed, roles=roles, parties=parties)
    ready = Prepared(data, split, parties, seed, budget, config, model, ())
    held_out = data.take(split.test)
    found: dict[str, dict[str, float]] = {}
    same = {"plaintext_scc": aware} if mode == "aware" else {}
    for name, method in {**BASELINES, **same}.items():
        if name == "drop_m" and not roles.named("M"):
            continue
        scored: list[Any] = evaluate(
            method(ready).predict,
            ready.inputs[split.test],
            held_out.label.values,
            held_out.protected[0].codes,
            data.task,
            edits,
        )
        found[name] = {s.metric if s.judge is None else f"{s.metric}_{s.judge}": s.value for s in scored}
    return found
