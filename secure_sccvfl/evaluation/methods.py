"""The methods of the tables by name; each is a function from a prepared seed to a fitted predictor."""

from __future__ import annotations

from collections.abc import Callable

from secure_sccvfl.data.registry import Registry
from secure_sccvfl.evaluation.baselines import aware, drop_m, drop_m_guard, erm, logistic, majority, scc
from secure_sccvfl.evaluation.prepared import Fitted, Prepared

Method = Callable[[Prepared], Fitted]
NETWORKS = (
    *("erm_network", "adv_nomask", "uniform_cf", "policy_blind", "server_consistency", "server_consistency_flipped"),
    *("uniform_cf_repaired", "policy_blind_repaired", "server_consistency_repaired", "paper", "scc_split"),
)
"""The paper-faithful method and its baselines. They are research code, so they are imported on first use."""
METHODS: Registry[Method] = Registry(
    "method",
    {
        "majority": majority,
        "logreg": logistic,
        "drop_m": drop_m,
        "drop_m_guard": drop_m_guard,
        "erm": erm,
        "parity": "secure_sccvfl.research.comparisons:parity",
        "pcf": "secure_sccvfl.research.comparisons:pcf",
        "aware": aware,
        **{name: f"secure_sccvfl.research.paper.methods:{name}" for name in NETWORKS},
        "scc": scc,
    },
)
