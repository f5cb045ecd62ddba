"""How a run is set up: its options, and the gradient modes that they choose between.

A mode says what it opens, what it charges, and how it trains after the statistics of s are known. Called by the
jobs of `run`. To add one, write its module and add a line to `MODES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.modes.base import GradientMode


@dataclass(frozen=True)
class ModeEntry:
    """Where a mode is, and its words for people. Reading the words imports nothing."""

    place: str
    words: str


MODES: Registry[ModeEntry] = Registry(
    "mode",
    {
        "sealed": ModeEntry("secure_sccvfl.modes.sealed:Sealed", "trained in secret"),
        "split": ModeEntry("secure_sccvfl.modes.split:Split", "split learning: gradients are shown"),
        "dp": ModeEntry("secure_sccvfl.modes.dp:Dp", "trained in secret, encoders by noisy gradients"),
    },
)


def gradient_mode(name: str) -> GradientMode:
    """The mode of this name."""
    made: GradientMode = imported(MODES.get(name).place)()
    return made
