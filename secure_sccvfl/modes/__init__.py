"""How a run is set up: its options, and the gradient modes that they choose between.

A mode says what it opens, what it charges, and how it trains once the statistics of s are in hand. Called by the
jobs of `run`. To add one, write its module and add a line to `MODES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from secure_sccvfl.modes.base import GradientMode

MODES: Mapping[str, tuple[str, str]] = {
    "sealed": ("secure_sccvfl.modes.sealed:Sealed", "trained in secret"),
    "split": ("secure_sccvfl.modes.split:Split", "split learning: gradients are shown"),
    "dp": ("secure_sccvfl.modes.dp:Dp", "trained in secret, encoders by noisy gradients"),
}
"""Where each mode is, and its words for people."""


def gradient_mode(name: str) -> GradientMode:
    """The mode of this name."""
    module, _, kind = MODES[name][0].partition(":")
    made: GradientMode = getattr(import_module(module), kind)()
    return made
