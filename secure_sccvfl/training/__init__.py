"""The Engine seam, where values of several parties meet, its two sides, and the driver of the sealed method.

Called by modes, evaluation and benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protocols.config import ConfigError
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


_REMOVED: Mapping[str, Any] = {"source": "tables", "consistency": "squared", "guard_grows": False}


def without_removed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a session file without those of earlier versions; ConfigError if one asks for what was removed."""
    for name, remaining in _REMOVED.items():
        if options.get(name, remaining) != remaining:
            raise ConfigError(f"{name} = {options[name]!r} was removed with method v1; leave {name} out")
    return {name: value for name, value in options.items() if name not in _REMOVED}
