"""The state of split learning at one party: its own encoder and optimiser, and its shares of the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from protocols.session.saving import restore_share, save_share
from protocols.steps.head import Weights
from protocols.steps.split import SPLIT_HEAD_BITS
from secure_sccvfl.training.modes.base import Seen

PARTS = ("weight", "bias", "velocity", "bias_velocity")


@dataclass(frozen=True)
class SplitState:
    """The state after the warm-up and every few steps. `weights` are tensors, `local` is the party's own.

    seen: what each step showed, if that is kept. taken: all steps so far. watched: shares of what early stopping has
    seen. stopped: whether it has stopped.
    """

    weights: Weights
    local: Mapping[str, np.ndarray] = field(repr=False)
    seen: tuple[Seen, ...] = field(repr=False)
    taken: int = 0
    watched: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    stopped: bool = False

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything by name, to be kept on disk."""
        made = {"taken": np.array(self.taken), "stopped": np.array(self.stopped)}
        made |= {f"weights/{name}": save_share(getattr(self.weights, name)) for name in PARTS}
        made |= {f"local/{key}": value for key, value in self.local.items()}
        made |= {f"watched/{key}": value for key, value in self.watched.items()}
        for number, step in enumerate(self.seen):
            made |= {f"seen/{number}/{f.name}": getattr(step, f.name) for f in fields(Seen)}
        return made

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> SplitState:
        """The state from what `arrays` returned."""

        def part(name: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}

        shown, names = part("seen"), [f.name for f in fields(Seen)]
        count = sum(key.endswith(f"/{names[-1]}") for key in shown)
        return cls(
            Weights(**{name: restore_share(share, SPLIT_HEAD_BITS) for name, share in part("weights").items()}),
            part("local"),
            tuple(Seen(*(shown[f"{n}/{name}"] for name in names)) for n in range(count)),
            int(arrays["taken"]),
            part("watched"),
            bool(arrays["stopped"]),
        )
