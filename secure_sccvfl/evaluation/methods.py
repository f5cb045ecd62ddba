"""Names of the methods in the tables; each is a function from a prepared seed to a fitted predictor."""

from __future__ import annotations

from collections.abc import Callable

from secure_sccvfl.data.registry import Registry
from secure_sccvfl.evaluation.aware_baselines import aware, parity, pcf
from secure_sccvfl.evaluation.baselines import (
    drop_m,
    drop_m_guard,
    erm,
    logistic,
    majority,
    no_guard,
    no_masks,
    scc,
)
from secure_sccvfl.evaluation.network_baselines import (
    COMPONENTS,
    LETTER_ABLATIONS,
    SWITCHES,
    baseline,
    letter_with,
    policy_blind_repaired,
    scc_split,
    server_consistency_repaired,
    uniform_cf_repaired,
)
from secure_sccvfl.evaluation.prepared import Fitted, Prepared

__all__ = ["ABLATIONS", "METHODS", "SWITCHES", "Method", "letter_with"]

Method = Callable[[Prepared], Fitted]
METHODS: Registry[Method] = Registry(
    "method",
    {
        "majority": majority,
        "logreg": logistic,
        "drop_m": drop_m,
        "drop_m_guard": drop_m_guard,
        "erm": erm,
        "parity": parity,
        "pcf": pcf,
        "aware": aware,
        **{name: baseline(name) for name in COMPONENTS},
        "uniform_cf_repaired": uniform_cf_repaired,
        "policy_blind_repaired": policy_blind_repaired,
        "server_consistency_repaired": server_consistency_repaired,
        "paper": letter_with(),
        "scc_split": scc_split,
        "scc": scc,
    },
)
ABLATIONS: Registry[Method] = Registry(
    "ablation",
    {
        "scc": scc,
        "no_masks": no_masks,
        "no_generator": server_consistency_repaired,
        "no_consistency": erm,
        "no_guard": no_guard,
        "drop_m": drop_m,
        "drop_m_guard": drop_m_guard,
        "paper": letter_with(),
        **{name: letter_with(**changes) for name, changes in LETTER_ABLATIONS.items()},
    },
)
