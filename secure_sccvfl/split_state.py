"""Where split learning stands at one party: its own encoder and optimiser, its shares of the head, early stopping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from protocols.head import Weights
from protocols.ring import Words


@dataclass(frozen=True)
class Seen:
    """What a party saw of a step: the rows, and the gradient in its activations for each of them."""

    rows: np.ndarray
    gradient: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class SplitState:
    """After the warm-up and after every check. `local` and `best_local` are the party's own, `best` is a share."""

    weights: Weights
    local: Mapping[str, np.ndarray] = field(repr=False)
    seen: tuple[Seen, ...] = field(repr=False)
    best_weights: Weights
    best_local: Mapping[str, np.ndarray] = field(repr=False)
    best: Words | None = field(default=None, repr=False)
    taken: int = 0
    waited: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it under names, to be kept on disk."""
        made = {"taken": np.array(self.taken), "waited": np.array(self.waited)}
        for name, weights in (("weights", self.weights), ("best weights", self.best_weights)):
            made |= {f"{name}/{f.name}": getattr(weights, f.name) for f in fields(Weights)}
        for name, local in (("local", self.local), ("best local", self.best_local)):
            made |= {f"{name}/{key}": value for key, value in local.items()}
        for number, step in enumerate(self.seen):
            made |= {f"seen/{number}/rows": step.rows, f"seen/{number}/gradient": step.gradient}
        return made if self.best is None else {**made, "best": self.best}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> SplitState:
        """From what `arrays` gave."""

        def part(name: str) -> dict[str, np.ndarray]:
            return {k.removeprefix(f"{name}/"): v for k, v in arrays.items() if k.startswith(f"{name}/")}

        seen = part("seen")
        return cls(
            Weights(**part("weights")),
            part("local"),
            tuple(Seen(seen[f"{n}/rows"], seen[f"{n}/gradient"]) for n in range(len(seen) // 2)),
            Weights(**part("best weights")),
            part("best local"),
            arrays.get("best"),
            int(arrays["taken"]),
            int(arrays["waited"]),
        )
