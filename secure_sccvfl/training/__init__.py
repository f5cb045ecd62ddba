"""The Engine seam, where values of several parties meet, its two sides, and the driver of the sealed method.

Called by modes, evaluation and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.training.config import TrainConfig

RECIPES: Registry[TrainConfig] = Registry(
    "method",
    {
        "scc": "secure_sccvfl.training.config:SCC",
        "paper": "secure_sccvfl.research.paper.settings:PAPER",
    },
)
"""Named recipes of the method; the first is the default. Reading the names imports nothing slow.

- `scc`: columns with evidence are mediators, noisy tables are shrunk by their known noise, counterfactuals change as
  few records as possible, lambda is a fixed price of a squared shift, and the proxy penalty has a separate weight.
- `paper`: the paper's method in mode `split`, for comparison.
"""


def paper_settings(dataset: str) -> Any:
    """The paper's hyperparameters for a data set (`research.paper.settings`), imported on first use."""
    return imported("secure_sccvfl.research.paper.settings:settings_of")(dataset)
