"""The state of split learning at one party: its own encoder and optimiser, and its shares of the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from protocols.steps.head import Weights


@dataclass(frozen=True)
class Seen:
    """What a party saw of a step: the rows, and the gradient in its activations for each of them."""

    rows: np.ndarray
    gradient: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class SplitState:
    """The state after the warm-up and every few steps. `weights` are shares, `local` is the party's own.

    taken: all steps so far. watched: shares of what early stopping has seen. stopped: whether it has stopped.
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
        made |= {f"weights/{f.name}": getattr(self.weights, f.name) for f in fields(Weights)}
        made |= {f"local/{key}": value for key, value in self.local.items()}
        made |= {f"watched/{key}": value for key, value in self.watched.items()}
        for number, step in enumerate(self.seen):
            made |= {f"seen/{number}/rows": step.rows, f"seen/{number}/gradient": step.gradient}
        return made

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> SplitState:
        """The state from what `arrays` returned."""

        def part(name: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}

        seen = part("seen")
        return cls(
            Weights(**part("weights")),
            part("local"),
            tuple(Seen(seen[f"{n}/rows"], seen[f"{n}/gradient"]) for n in range(len(seen) // 2)),
            int(arrays["taken"]),
            part("watched"),
            bool(arrays["stopped"]),
        )
