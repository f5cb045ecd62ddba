"""Training of a consistent model: one trainer, one engine interface, and an engine in plaintext and under MPC.

In the order of a run: `modes` (what a run of each gradient mode opens, charges and trains), `config` (settings),
`model` (a run's inputs, state and result), `trainer` (the method: encode, discover, make generators and
penalty, train the head: for one public lambda if it is private, else for a grid), `engine` (the interface), `plain`
(plaintext), `secure` with `shared` (what a party holds of it: shares, and its own values in the clear) and
`secure_steps` (steps, by `protocols.steps`), `grid` (public rules of second-order steps, the default), `modules`
(heads that are CrypTen modules).

Columns of different parties, labels and s meet only in an engine.
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
