"""Training of a consistent model: one trainer, one engine interface, and an engine in plaintext and under MPC.

From the lowest: `modules` (heads that are CrypTen modules), `grid` (public rules of second-order training), `engine`
(the interface), `config` (settings and numbers of steps), `plain` (the plaintext engine), `shared`, `secure_steps`
and `secure` (the engine under MPC), `model` (what a run is given, keeps and returns), `trainer` (the method, also for
a model that uses s), and `modes` (what a run of each gradient mode opens, charges and trains).
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
