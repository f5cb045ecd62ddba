"""The options of a run and its gradient modes.

`options` (`RunOptions`), `base` (the interface `GradientMode`), `sealed` (the default, and `aware`), `dp`. A mode
says what it opens, what it charges, and how it trains after the statistics of s are known. Called by the jobs of
`runs`. To add one, write its module and add a line to `MODES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from secure_sccvfl.data.registry import Registry, imported

if TYPE_CHECKING:
    from secure_sccvfl.training.modes.base import GradientMode


@dataclass(frozen=True)
class ModeEntry:
    """Import path of a mode, its description, and what its gradients reveal. Reading it imports nothing.

    path: "module:attribute". labels, groups: what is revealed of y and of s of training records, to a party that
    knows those of other records. lambdas: the weights of consistency that it tries unless they are named; empty: the
    common grid.
    """

    path: str
    words: str
    labels: Literal["hidden", "noisy", "shown"]
    lambdas: tuple[float, ...] = ()
    groups: Literal["hidden", "shown"] = "hidden"


MODES: Registry[ModeEntry] = Registry(
    "mode",
    {
        "sealed": ModeEntry("secure_sccvfl.training.modes.sealed:Sealed", "trained under MPC", "hidden"),
        "split": ModeEntry(
            "secure_sccvfl.research.split.mode:Split", "split learning: gradients are shown", "shown", groups="shown"
        ),
        "aware": ModeEntry(
            "secure_sccvfl.training.modes.sealed:Aware", "trained under MPC; this model uses s", "hidden", (0.1,)
        ),
        "dp": ModeEntry(
            "secure_sccvfl.training.modes.dp:Dp", "trained under MPC, encoders by noisy gradients", "noisy"
        ),
    },
)


def gradient_mode(name: str) -> GradientMode:
    """The mode of this name."""
    mode: GradientMode = imported(MODES.get(name).path)()
    return mode
