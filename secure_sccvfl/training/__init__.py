"""The Engine seam, where values of several parties meet, its two sides, and the driver of the sealed method.

Called by modes, evaluation and benchmarks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protocols.config import ConfigError
from secure_sccvfl.data.registry import Registry

if TYPE_CHECKING:
    from secure_sccvfl.training.config import TrainConfig

RECIPES: Registry[TrainConfig] = Registry(
    "method",
    {
        "scc": "secure_sccvfl.training.recipes:SCC",
        "paper": "secure_sccvfl.training.recipes:PAPER",
    },
)
"""Named recipes of the method; the first is the default. Reading the names imports nothing slow."""

_REMOVED: Mapping[str, Any] = {"source": "tables", "consistency": "squared", "guard_grows": False}


def without_removed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a session file without those of earlier versions; ConfigError if one asks for what was removed."""
    for name, remaining in _REMOVED.items():
        if options.get(name, remaining) != remaining:
            raise ConfigError(f"{name} = {options[name]!r} was removed with method v1; leave {name} out")
    return {name: value for name, value in options.items() if name not in _REMOVED}
