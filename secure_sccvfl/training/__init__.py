"""The Engine seam, where values of several parties meet, its two sides, and the driver of the sealed method.

Called by modes, evaluation and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_sccvfl.data.registry import Registry

if TYPE_CHECKING:
    from secure_sccvfl.training.config import TrainConfig

RECIPES: Registry[TrainConfig] = Registry(
    "method",
    {
        "scc": "secure_sccvfl.training.recipes:SCC",
        "v1": "secure_sccvfl.training.recipes:V1",
        "paper": "secure_sccvfl.training.recipes:PAPER",
    },
)
"""Named recipes of the method; the first is the default. Reading the names imports nothing slow."""
